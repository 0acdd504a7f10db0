"""What `parcae simulate` and `parcae packing simulate` share: options, JSON lines and charts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from parcae.cli.checks import chart_to_write, file_to_read
from parcae.cli.policy_names import names_in, policies_to_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from parcae.evaluation.gantt import Chart

PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Policies, separated by commas (the command `policies` lists them), or: all",
        callback=policies_to_read,
    ),
]


def policy_names(policy: str, every: Sequence[str]) -> tuple[str, ...]:
    """The policies that `--policy` names; `every` are those of `--policy all`."""
    return tuple(every if policy == "all" else names_in(policy))


@dataclass(frozen=True)
class JobSetOptions:
    """Job sequences of a file, instead of drawn ones."""

    job_set: Annotated[
        Path | None,
        typer.Option(
            "--job-set",
            help="Run the job sequences of this JSON file instead of drawn jobs.",
            callback=file_to_read,
        ),
    ] = None
    set_id: Annotated[
        str,
        typer.Option("--set", help="Which sequence of the file: its name (or position), or all."),
    ] = "all"


class PlayedRun(NamedTuple):
    """A run to show."""

    sequence: int
    result: dict[str, Any]
    run: Any


@dataclass(frozen=True)
class ShowOptions:
    """How runs are shown."""

    as_json: Annotated[bool, typer.Option("--json", help="Print each run as a line of JSON.")] = (
        False
    )
    gantt: Annotated[
        Path | None,
        typer.Option(
            "--gantt",
            help="Draw the runs of the first job sequence (*.html, *.png, *.svg or *.pdf).",
            callback=chart_to_write,
        ),
    ] = None

    def show(
        self,
        runs: Iterable[PlayedRun],
        print_runs: Callable[[Iterator[PlayedRun]], None],
        chart: Callable[[PlayedRun], Chart],
        title: str = "",
    ) -> None:
        """Print runs as they come, and draw those of the first sequence."""
        charts: list[Chart] = []

        def noted(group: Iterator[PlayedRun]) -> Iterator[PlayedRun]:
            for run in group:
                if self.gantt is not None and run.sequence == 0:
                    charts.append(chart(run))
                yield run

        for _, group in groupby(runs, lambda run: run.sequence):
            (_print_json if self.as_json else print_runs)(noted(group))
        if self.gantt is not None:
            from parcae.evaluation.gantt import write_gantt

            write_gantt(charts, self.gantt, title)
            typer.echo(f"Gantt chart: {self.gantt}", err=True)


def _print_json(runs: Iterator[PlayedRun]) -> None:
    for run in runs:
        typer.echo(json.dumps(run.result))
