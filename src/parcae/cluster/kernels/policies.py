"""The kernels of policies, by the type of their tables.

A compiled policy is a named tuple of tables, and a kernel that is registered for the tuple's type:
`decide` (Decima's world) or `plan` (the world of cores). Kernels that play runs call it, and it
sees what a scheduler sees, not the future.
"""

from __future__ import annotations

from parcae.base.compiled.by_type import ByType
from parcae.base.compiled.kernels import inlined

#: decide(view, policy): the decision for one scheduling event, as (stage, limit, executor class,
#: hold). `view` is the Observation; in a simulated run it is the cluster's state.
decide = ByType("decide")

#: plan(view, orders, policy): write the orders (`parcae.cluster.orders.Orders`) that hold from now
#: on.
plan = ByType("plan")


@inlined
def _nothing(state, policy):  # type: ignore[no-untyped-def]
    pass


#: begin_run(state, policy): forget what the policy's tables keep of another run, after the run has
#: begun and before the first decision. Most policies need none.
begin_run = ByType("begin_run", lambda _: _nothing)

#: with_weights(weights, policy): the policy with other weights, for searches that try many.
with_weights = ByType("with_weights")
