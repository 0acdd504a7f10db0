"""The hand-made policies of the world of rigid jobs."""

from __future__ import annotations

from parcae.base.compiled.by_type import ByType

#: explore(view, cost, record, policy): draw a decision, and add it to the record with the cost that
#: has accrued before it. Returns a slot or VOID. Only policies in training have one.
explore = ByType("explore")
