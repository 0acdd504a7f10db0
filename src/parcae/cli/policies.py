"""`parcae policies`: what can decide."""

from __future__ import annotations

from typing import Annotated

import typer


def policies_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the policies and their world; a policy is written NAME or NAME:ARGUMENT, in the world of cores also NAME+guard:1.1.

    Example: parcae policies
    """
    from parcae.cli.tables import print_catalog
    from parcae.policies.orders.catalog import all_policies

    print_catalog("Policies", all_policies(), as_json, ("world",))
