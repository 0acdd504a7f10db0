"""The input of a study (a request) and its result: a table, a picture, numbers and notes.

`write_study` writes the result as Markdown, PNG and JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parcae.base.files import write_text
from parcae.base.texts import __version__
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.recipes import Recipe
from parcae.learning.scenario import check_search_seed
from parcae.papers.findings import COLUMNS, Finding
from parcae.simulation.config import SimulationConfig
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload

#: Minutes for all trainings of a study together, by default and with --full.
QUICK_MINUTES = 1.0
FULL_MINUTES = 120.0
#: Key of the settings of a study of a log: two logs may have one name.
LOG_FINGERPRINT = "log_sha256"
#: Distance between the first evaluation seeds of two consecutive `--seed` values.
SEEDS_APART = 10_000
_FIRST_PACKING_SEED = 1_000


def _silent(_: str) -> None:
    return None


class _Amounts:
    """Quantities that follow from a request's numbers, common to both kinds of request."""

    seed: int
    is_full: bool
    num_runs: int | None

    def runs(self, quick: int, full: int) -> int:
        """Number of runs: the requested one, or the study's default."""
        # A requested number overrides both defaults.
        return self.num_runs or (full if self.is_full else quick)

    @property
    def first_seed(self) -> int:
        """The first evaluation seed. No training uses an evaluation seed."""
        return self.seed * SEEDS_APART

    @property
    def training_seed(self) -> int:
        check_search_seed(self.seed)
        return self.seed


@dataclass(frozen=True)
class RecordedSetting:
    """A recorded trace and the cluster that it is replayed on, for studies of executor classes.

    Args:
        workload: jobs with their arrivals; the first half by arrival is for training, the second
            for tests.
        config: the cluster.
        arrivals: e.g. "trace:0.8"; a load is a share of what the executor classes can serve.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str


@dataclass(frozen=True)
class StudyRequest(_Amounts):
    """The input of a study: its setting and its size.

    Args:
        workload: the jobs.
        config: the cluster.
        stream: arrivals in studies of continuous arrivals, e.g. "load:0.7".
        output: folder for the result; the study function itself gets the folder for its
            checkpoints.
        is_full: whether to use the paper's number of runs and jobs, or far fewer.
        budget_s: wall-clock seconds of all trainings of the study together, without simulation.
        seed: seed of the trainings, 0 to 255 where the study trains; it also determines the first
            evaluation seed.
        policies: learned policies to compare instead of shipped or newly trained ones.
        recipe: recipe of the trainings.
        num_runs: number of runs; None for the study's default.
        num_jobs: number of jobs in a run; None for the study's default.
        processes: number of worker processes of comparisons.
        say: called with a text about the current step.
        recorded: the recorded trace for studies of executor classes, in addition to the workload.
        decima: settings of Decima's network in all trainings, unless the study changes them.
        is_cluster_given: the user chose the cluster, so that no study chooses another size.
        trains_anew: train policies that ship, too.
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
    decima: DecimaSettings = field(default_factory=DecimaSettings)
    is_cluster_given: bool = False
    trains_anew: bool = False

    def jobs(self, quick: int, full: int) -> int:
        """Number of jobs in a run: the requested one, or the study's default."""
        return self.num_jobs or (full if self.is_full else quick)


@dataclass(frozen=True)
class PackingRequest(_Amounts):
    """The input of a packing study. The study itself defines the jobs and the cluster.

    Args:
        output, is_full, budget_s, seed, num_runs, say, trains_anew: as in `StudyRequest`.
        policies: checkpoints to use, if they fit the study's setting, before shipped or newly
            trained ones.
        recipe: recipe of the trainings.
        processes: number of threads that simulate.
        log: log of a batch cluster, for the studies that need one.
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
    trains_anew: bool = False

    @property
    def first_seed(self) -> int:
        """The first evaluation seed, at least 1000."""
        return _FIRST_PACKING_SEED + self.seed * SEEDS_APART


@dataclass(frozen=True)
class StudyResult:
    """The result of a study."""

    title: str
    paper: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Mapping[str, Any]
    notes: Sequence[str]
    draw: Callable[[Path], None]
    findings: Sequence[Finding] = ()


Study = Callable[[StudyRequest], StudyResult]
PackingStudy = Callable[[PackingRequest], StudyResult]


@dataclass(frozen=True)
class StudyFiles:
    """The files of a study's result."""

    table: Path
    picture: Path
    numbers: Path


@dataclass(frozen=True)
class Origin:
    """How a result was made, for repeating it."""

    name: str
    seconds: float
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def settings_of(request: StudyRequest | PackingRequest) -> dict[str, Any]:
    """Everything that is needed to run the study again."""
    amounts = {
        "full": request.is_full,
        "training_budget_s": request.budget_s,
        "recipe": str(request.recipe),
        "seed": request.seed,
        "first_evaluation_seed": request.first_seed,
        "runs": request.num_runs,
        "policies": list(request.policies),
        "version": __version__,
    }
    # Packing studies define their jobs and cluster themselves.
    if isinstance(request, PackingRequest):
        if request.log is None:
            return amounts
        return amounts | {"log": request.log.name, LOG_FINGERPRINT: _fingerprint_of(request.log)}
    setting = {
        "workload": request.workload.name,
        "fingerprint": fingerprint(request.workload),
        "config": request.config.model_dump(mode="json"),
        "stream": request.stream,
        "jobs": request.num_jobs,
    }
    if request.is_cluster_given:
        setting["is_cluster_given"] = True
    if request.decima != DecimaSettings():
        setting["decima"] = request.decima.model_dump(mode="json", exclude_defaults=True)
    if request.recorded is not None:
        trace = request.recorded
        setting["recorded"] = {
            "workload": trace.workload.name,
            "fingerprint": fingerprint(trace.workload),
            "config": trace.config.model_dump(mode="json"),
            "arrivals": trace.arrivals,
        }
    return setting | amounts


def _fingerprint_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example: `markdown_table(["a"], [["1"]])` has three lines, the second "| --- |".
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def page(result: StudyResult, origin: Origin, picture: str) -> str:
    """The page of a study in Markdown."""
    parts = [
        f"# {origin.name}: {result.title}",
        f"The paper: {result.paper}",
        markdown_table(result.columns, result.rows),
        markdown_table(COLUMNS, [finding.row() for finding in result.findings])
        if result.findings
        else "",
        f"![{result.title}]({picture})",
        "\n".join(f"- {note}" for note in result.notes),
        f"Wall time {origin.seconds:,.0f} s."
        + (f" Command:\n\n    {origin.command}" if origin.command else ""),
        "Settings:\n\n    " + json.dumps(origin.settings, indent=2).replace("\n", "\n    "),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_study(result: StudyResult, origin: Origin, folder: Path) -> StudyFiles:
    """Write NAME.md, NAME.png and NAME.json. Each file appears only when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    files = StudyFiles(*(folder / f"{origin.name}.{kind}" for kind in ("md", "png", "json")))
    result.draw(files.picture)
    numbers = json.dumps(_card(result, origin), indent=2, allow_nan=False) + "\n"
    write_text(files.table, page(result, origin, files.picture.name))
    # The last file: where it is, the result is complete (`reproduce_often` does not repeat it).
    write_text(files.numbers, numbers)
    return files


def _card(result: StudyResult, origin: Origin) -> dict[str, Any]:
    """The result and how it was made, as plain JSON."""
    return {
        "study": origin.name,
        "title": result.title,
        "paper": result.paper,
        "table": {"columns": list(result.columns), "rows": [list(row) for row in result.rows]},
        "findings": [finding.to_json() for finding in result.findings],
        "numbers": dict(result.numbers),
        "notes": list(result.notes),
        "seconds": round(origin.seconds, 1),
        "command": origin.command,
        "settings": dict(origin.settings),
    }
