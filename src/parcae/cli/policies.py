"""`parcae policies`: what can decide."""

from __future__ import annotations

from typing import Annotated

import typer


def policies_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the policies; a policy is written NAME or NAME:ARGUMENT.

    Example: parcae policies
    """
    from parcae.cli.tables import print_catalog
    from parcae.policies.catalog import CATALOG

    print_catalog("Policies", ((e.usage, e.summary, e.source) for e in CATALOG), as_json)
