"""What the commands that tune and train share, in every world: their options and their loops."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import checkpoint_to_write, finite, training_to_write
from parcae.cli.options import MOST, JsonOption
from parcae.cli.policy_names import start_to_read
from parcae.cli.progress import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from parcae.learning.loop import Iteration, Learner, Plan, TrainResult
    from parcae.policies.checkpoint import Checkpoint

BudgetOption = Annotated[
    float,
    typer.Option("--budget", min=0.01, help="Minutes of wall-clock time.", callback=finite),
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=255, help="Seed of the search or training.")
]
TrainingFolder = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="Folder for the state, the best policy (best.safetensors) and TensorBoard.",
        callback=training_to_write,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change a setting of the recipe: learning_rate=0.001. Can be repeated."
    ),
]
#: What a measurement on the selection runs is relative to.
_UNITS = {"ratio_to_fair": " of fair", "ratio_to_rule": " of the rule", "cost": ""}


@dataclass(frozen=True)
class Found:
    """A tuned policy: the best so far of a search, and the search as JSON and in words."""

    checkpoint: Checkpoint
    card: Mapping[str, Any]
    seconds: float
    #: For the progress line, and for the result.
    words: str
    sentence: str


@dataclass(frozen=True)
class SearchOptions:
    """How a policy's parameters are searched for, and where they go."""

    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="The checkpoint to write (*.safetensors).",
            callback=checkpoint_to_write,
        ),
    ]
    budget: BudgetOption = 3.0
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Checkpoint of a tuned rule to start from.",
            callback=start_to_read,
        ),
    ] = None
    seed: SeedOption = 0
    as_json: JsonOption = False

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return self.budget * 60

    def run(self, search: Callable[[Callable[[Found], None]], Found]) -> None:
        """Search, and print the result. The checkpoint always contains the best policy so far."""
        from parcae.base.errors import ConfigError
        from parcae.policies.checkpoint import SUFFIX, write_checkpoint

        if self.output.suffix != SUFFIX:
            raise ConfigError(f"-o {self.output}: give a file with a name that ends in {SUFFIX}")
        line = ProgressLine(self.budget_s)

        def save(found: Found) -> None:
            write_checkpoint(found.checkpoint, self.output)
            line.show(found.seconds, found.words)

        found = search(save)
        save(found)
        line.end()
        summary = json.dumps({**found.card, "output": str(self.output)})
        typer.echo(summary if self.as_json else f"{self.output}: {found.sentence}")


@dataclass(frozen=True)
class TrainingOptions:
    """How long a training runs, and where."""

    budget: BudgetOption = 5.0
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            min=1,
            max=MOST,
            help="End after this many iterations, or earlier when the budget is used up. A "
            "training that crashed and was resumed then ends with exactly the same weights.",
        ),
    ] = None
    seed: SeedOption = 0
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training in the output folder.")
    ] = False

    def plan(self, folder: Path) -> Plan:
        """The plan of a training in this folder."""
        from parcae.learning.loop import Plan

        command = shlex.join(["parcae", *sys.argv[1:]])
        return Plan(self.budget * 60, self.iterations, folder, self.resume, command)


def run_training(learner: Learner, plan: Plan, objective: str, as_json: bool) -> None:
    """Train, print the result, and end the command as scripts expect."""
    from parcae.learning.loop import train

    line = ProgressLine(plan.budget_s)
    words = _InWords(objective, _UNITS[learner.measured])
    result = train(learner, plan, lambda done: line.show(done.seconds, words.of(done)))
    line.end()
    summary = _summary(learner, plan, result, objective)
    typer.echo(json.dumps(summary) if as_json else _sentence(learner, result, summary))
    if result.ending == "interrupted":
        typer.echo("interrupted: to continue, add --resume to the same command", err=True)
        raise typer.Exit(130)
    # The best policy is written, but a script should notice that the training failed.
    if result.ending != "done":
        typer.echo(f"parcae: {result.ending}; {summary['output']} is the best policy", err=True)
        raise typer.Exit(1)


class _InWords:
    """The progress of a training in words: the best policy so far, and how good it is now.

    The latest measurement shows when a training gets worse, which the best does not.
    """

    def __init__(self, objective: str, unit: str) -> None:
        self._objective = objective
        self._unit = unit
        self._latest = ""

    def of(self, done: Iteration) -> str:
        """What to say after an iteration."""
        if not math.isnan(done.selected):
            self._latest = f", now {done.selected:.3f}"
        best = f"best {self._objective} {done.best:.3f}{self._unit}"
        return f"iteration {done.iteration}, {best}{self._latest}"


def _summary(learner: Learner, plan: Plan, result: TrainResult, objective: str) -> dict[str, Any]:
    """What a training came to, as plain JSON."""
    from parcae.learning.loop import BEST_FILE

    assert plan.folder is not None
    measurement = f"{learner.measured}_on_selection_runs"
    return {
        "output": str(plan.folder / BEST_FILE),
        learner.iterations_name: result.iterations,
        **result.counts,
        "seconds": round(result.seconds, 1),
        "objective": objective,
        measurement: result.checkpoint.card[measurement],
        "late_gain": result.late_gain,
        "ending": result.ending,
    }


def _sentence(learner: Learner, result: TrainResult, summary: dict[str, Any]) -> str:
    """What a training came to, in words."""
    best = summary[f"{learner.measured}_on_selection_runs"]
    measured = "not measured"
    if best is not None:
        measured = f"{best:.3f}{_UNITS[learner.measured]} on the selection runs"
    counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in result.counts.items()]
    work = ", ".join([*counts, f"{result.seconds:.0f} s"])
    return (
        f"{summary['output']}: {summary['objective']} {measured}, "
        f"after {result.iterations:,} {learner.iterations_name} ({work}){result.late_words}"
    )
