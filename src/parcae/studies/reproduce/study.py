"""What a study is asked and what it answers: a table, a picture, numbers and an honest word about both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parcae import __version__
from parcae.files import write_text
from parcae.learning.recipes import Recipe
from parcae.simulation.config import SimulationConfig
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload

#: Minutes of training of a whole study, by default and with --full.
QUICK_MINUTES = 1.0
FULL_MINUTES = 120.0
#: Evaluation seeds of one study start this far from those of the next `--seed`.
_SEEDS_APART = 10_000
_FIRST_PACKING_SEED = 1_000


def _silent(_: str) -> None:
    return None


class _Amounts:
    """What follows from a request's numbers, whatever the study runs on."""

    seed: int
    is_full: bool
    num_runs: int | None

    def runs(self, quick: int, full: int) -> int:
        """How many runs: those asked for, or the study's own."""
        return self.num_runs or (full if self.is_full else quick)

    @property
    def first_seed(self) -> int:
        """First of the evaluation's seeds; no training ever uses one of them."""
        return self.seed * _SEEDS_APART

    @property
    def training_seed(self) -> int:
        """Seed of the trainings, 0 to 255."""
        return self.seed & 0xFF


@dataclass(frozen=True)
class RecordedSetting:
    """A recorded trace and the cluster that it is replayed on, for studies of executor classes.

    Args:
        workload: jobs with their arrivals; the first half by arrival trains, the second tests.
        config: the cluster. arrivals: e.g. "trace:0.8"; a load is a share of what the executor classes can serve.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str


@dataclass(frozen=True)
class StudyRequest(_Amounts):
    """What a study runs on and how much of it.

    Args:
        workload, config: the jobs and the cluster.
        stream: how jobs arrive in studies of continuous arrivals, e.g. "load:0.7".
        output: folder for the result; a study itself is given the folder for what it trains.
        is_full: the paper's number of runs and jobs, or a tenth of it.
        budget_s: wall-clock seconds of all trainings of the study together; simulation comes on top.
        seed: of the trainings, and where the evaluation's seeds start.
        policies: learned policies to show instead of those that ship or are trained.
        recipe: of the trainings.
        num_runs, num_jobs: instead of the study's own.
        processes: worker processes of comparisons.
        say: told what goes on.
        recorded: the trace of studies of executor classes, beside the workload.
    """

    workload: Workload
    config: SimulationConfig
    stream: str
    output: Path
    is_full: bool = False
    budget_s: float = 60.0 * QUICK_MINUTES
    seed: int = 0
    policies: tuple[str, ...] = ()
    recipe: Recipe = Recipe.FAST
    num_runs: int | None = None
    num_jobs: int | None = None
    processes: int | None = None
    say: Callable[[str], None] = _silent
    recorded: RecordedSetting | None = None

    def jobs(self, quick: int, full: int) -> int:
        """How many jobs a run has."""
        return self.num_jobs or (full if self.is_full else quick)


@dataclass(frozen=True)
class PackingRequest(_Amounts):
    """How much of a study of the packing world is run; the world is the study's.

    Args:
        output, is_full, budget_s, seed, num_runs, processes, say: as in `StudyRequest`; processes are threads here.
        policies: checkpoints to show, where they are of the study's setting, before those that ship or are trained.
        recipe: of the trainings.
        log: of a batch cluster, for the studies that run on one.
    """

    output: Path
    is_full: bool = False
    budget_s: float = 60.0 * QUICK_MINUTES
    seed: int = 0
    policies: tuple[str, ...] = ()
    recipe: str = "fresh"
    num_runs: int | None = None
    processes: int | None = None
    say: Callable[[str], None] = _silent
    log: Path | None = None

    @property
    def first_seed(self) -> int:
        """First of the evaluation's seeds, 1000 or above."""
        return _FIRST_PACKING_SEED + self.seed * _SEEDS_APART


@dataclass(frozen=True)
class StudyResult:
    """What came of a study.

    Args:
        title: what the study shows, in a line.
        paper: what the paper reports of it, with the place.
        columns, rows: the table, as text.
        numbers: the same and more, as plain JSON.
        notes: what to keep in mind when reading it: budgets, deviations, what was trained.
        draw: writes the picture.
    """

    title: str
    paper: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Mapping[str, Any]
    notes: Sequence[str]
    draw: Callable[[Path], None]


Study = Callable[[StudyRequest], StudyResult]
PackingStudy = Callable[[PackingRequest], StudyResult]


@dataclass(frozen=True)
class StudyFiles:
    """Where the result lies."""

    table: Path
    picture: Path
    numbers: Path


@dataclass(frozen=True)
class Origin:
    """How a result came about, for whoever wants it again.

    Args:
        name: the study's. seconds: wall time of the study. command: the command line, where there was one.
    """

    name: str
    seconds: float
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def settings_of(request: StudyRequest | PackingRequest) -> dict[str, Any]:
    """All that is needed to run the study again."""
    own = {
        "full": request.is_full,
        "training_budget_s": request.budget_s,
        "recipe": str(request.recipe),
        "seed": request.seed,
        "first_evaluation_seed": request.first_seed,
        "runs": request.num_runs,
        "policies": list(request.policies),
        "version": __version__,
    }
    if isinstance(request, PackingRequest):
        return own | ({"log": request.log.name} if request.log else {})
    setting = {
        "workload": request.workload.name,
        "fingerprint": fingerprint(request.workload),
        "config": request.config.model_dump(mode="json"),
        "stream": request.stream,
        "jobs": request.num_jobs,
    }
    if request.recorded is not None:
        trace = request.recorded
        setting["recorded"] = {
            "workload": trace.workload.name,
            "fingerprint": fingerprint(trace.workload),
            "config": trace.config.model_dump(mode="json"),
            "arrivals": trace.arrivals,
        }
    return setting | own


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example: `markdown_table(["a"], [["1"]])` has three lines, the second "| --- |".
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def page(result: StudyResult, origin: Origin, picture: str) -> str:
    """The study's page in Markdown."""
    parts = [
        f"# {origin.name}: {result.title}",
        f"The paper: {result.paper}",
        markdown_table(result.columns, result.rows),
        f"![{result.title}]({picture})",
        "\n".join(f"- {note}" for note in result.notes),
        f"Wall time {origin.seconds:,.0f} s."
        + (f" Command:\n\n    {origin.command}" if origin.command else ""),
        "Settings:\n\n    " + json.dumps(origin.settings, indent=2).replace("\n", "\n    "),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_study(result: StudyResult, origin: Origin, folder: Path) -> StudyFiles:
    """Write NAME.md, NAME.png and NAME.json into the folder, each wholly or not at all.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = StudyFiles(*(folder / f"{origin.name}.{kind}" for kind in ("md", "png", "json")))
    result.draw(files.picture)
    found = {
        "study": origin.name,
        "title": result.title,
        "paper": result.paper,
        "table": {"columns": list(result.columns), "rows": [list(row) for row in result.rows]},
        "numbers": dict(result.numbers),
        "notes": list(result.notes),
        "seconds": round(origin.seconds, 1),
        "command": origin.command,
        "settings": dict(origin.settings),
    }
    write_text(files.numbers, json.dumps(found, indent=2, allow_nan=False) + "\n")
    write_text(files.table, page(result, origin, files.picture.name))
    return files
