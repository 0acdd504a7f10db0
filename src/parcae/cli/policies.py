"""`parcae policies`: lists the policies."""

from __future__ import annotations

from parcae.cli.options import JsonOption


def policies_command(as_json: JsonOption = False) -> None:
    """List the policies and the worlds in which they work.

    A policy is written NAME or NAME:ARGUMENT. In the world of cores it can have a guard
    (NAME+guard:1.1), pools (NAME+pools:FILE) and priorities (NAME+priorities:FILE.csv).

    Example: parcae policies
    """
    from parcae.cli.tables import print_catalog
    from parcae.policies.registry import all_policies

    print_catalog("Policies", all_policies(), as_json, ("world",))
