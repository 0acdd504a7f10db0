"""What the commands that tune and train share, in every world: their options and their loops."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from parcae.base.errors import ConfigError
from parcae.base.options import REQUIRED, option
from parcae.cli.options import JSON, MOST, Options
from parcae.cli.progress import ProgressLine
from parcae.learning.loop import Iteration, Learner, TrainingPlan, TrainResult
from parcae.learning.loop import train as run_loop
from parcae.policies.checkpoint import BEST_FILE, SUFFIX, Checkpoint, write_checkpoint

SEARCH_SEED = option(0, "Seed of the search or training.", "--seed", ge=0, le=255)
BUDGET = option(5.0, "Minutes of wall-clock time.", "--budget", ge=0.01)
SETTINGS = option(
    None, "Change a setting of the recipe: learning_rate=0.001. Can be repeated.", "--set"
)
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


class SearchOptions(Options):
    """How a policy's parameters are searched for, and where they go."""

    output: Path = option(
        REQUIRED, "The checkpoint to write (*.safetensors).", "-o", "--output", check="checkpoint"
    )
    budget: float = option(3.0, "Minutes of wall-clock time.", ge=0.01)
    start: str | None = option(None, "Checkpoint of a tuned rule to start from.", check="start")
    seed: int = SEARCH_SEED
    as_json: bool = JSON

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return self.budget * 60

    def run(self, search: Callable[[Callable[[Found], None]], Found]) -> None:
        """Search, and print the result. The checkpoint always contains the best policy so far."""
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


class TrainingOptions(Options):
    """How long a training runs, and where."""

    folder: Path = option(
        REQUIRED,
        "Folder for the state, the best policy (best.safetensors) and TensorBoard.",
        "-o",
        "--output",
        check="learned",
    )
    budget: float = BUDGET
    iterations: int | None = option(
        None,
        "End after this many iterations, or earlier when the budget is used up. A training that "
        "crashed and was resumed then ends with exactly the same weights.",
        ge=1,
        le=MOST,
    )
    seed: int = SEARCH_SEED
    resume: bool = option(False, "Continue the training in the output folder.", "--resume")
    as_json: bool = JSON

    def run(self, learner: Learner, objective: str) -> None:
        """Train, print the result, and end the command as scripts expect."""
        command = shlex.join(["parcae", *sys.argv[1:]])
        plan = TrainingPlan(self.budget * 60, self.iterations, self.folder, self.resume, command)
        line = ProgressLine(plan.budget_s)
        # The latest measurement shows when a training gets worse, which the best does not.
        latest = ""

        def show(done: Iteration) -> None:
            nonlocal latest
            if not math.isnan(done.selected):
                latest = f", now {done.selected:.3f}"
            best = f"best {objective} {done.best:.3f}{_UNITS[learner.measured]}"
            line.show(done.seconds, f"iteration {done.iteration}, {best}{latest}")

        result = run_loop(learner, plan, show)
        line.end()
        measurement = f"{learner.measured}_on_selection_runs"
        summary = {
            "output": str(self.folder / BEST_FILE),
            learner.iterations_name: result.iterations,
            **result.counts,
            "seconds": round(result.seconds, 1),
            "objective": objective,
            measurement: result.checkpoint.card[measurement],
            "late_gain": result.late_gain,
            "ending": result.ending,
        }
        typer.echo(json.dumps(summary) if self.as_json else _sentence(learner, result, summary))
        if result.ending == "interrupted":
            typer.echo("interrupted: to continue, add --resume to the same command", err=True)
            raise typer.Exit(130)
        # The best policy is written, but a script should notice that the training failed.
        if result.ending != "done":
            typer.echo(f"parcae: {result.ending}; {summary['output']} is the best policy", err=True)
            raise typer.Exit(1)


def _sentence(learner: Learner, result: TrainResult, summary: dict[str, Any]) -> str:
    """The result of a training, in words."""
    best = summary[f"{learner.measured}_on_selection_runs"]
    unit = f"{_UNITS[learner.measured]} on the selection runs"
    measured = "not measured" if best is None else f"{best:.3f}{unit}"
    counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in result.counts.items()]
    work = ", ".join([*counts, f"{result.seconds:.0f} s"])
    return (
        f"{summary['output']}: {summary['objective']} {measured}, "
        f"after {result.iterations:,} {learner.iterations_name} ({work}){result.late_words}"
    )
