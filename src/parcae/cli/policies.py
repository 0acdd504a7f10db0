"""`parcae policies`: what can decide."""

from __future__ import annotations

from typing import Annotated

import typer


def policies_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the policies; a policy is written NAME or NAME:ARGUMENT.

    Example: parcae policies
    """
    from parcae.policies.catalog import CATALOG

    if as_json:
        import json

        rows = [{"usage": e.usage, "summary": e.summary, "source": e.source} for e in CATALOG]
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("policy", "what it does", "source", title="Policies")
    for entry in CATALOG:
        table.add_row(escape(entry.usage), escape(entry.summary), escape(entry.source))
    Console().print(table)
