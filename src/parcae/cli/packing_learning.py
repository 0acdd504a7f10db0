"""`parcae packing train` and `parcae packing tune`: learn a packing policy for a load or a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import Only, file_to_read, refusing
from parcae.cli.groups import with_groups
from parcae.cli.learners import (
    Found,
    SearchOptions,
    SettingsOption,
    TrainingFolder,
    TrainingOptions,
    run_training,
)
from parcae.cli.options import MOST, JsonOption, numbers
from parcae.cli.packing_options import (
    ONE_SOURCE,
    DrawnOptions,
    LogOptions,
    ObjectiveOption,
    cost_of,
    reject_both,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from parcae.rigid.sources import PackingSource

#: Number of selection runs on the pieces of a log.
_LOG_SELECTION = 48


@dataclass(frozen=True)
class PieceOptions:
    """Pieces of logs, on which policies learn."""

    also_swf: Annotated[
        list[Path] | None,
        typer.Option(
            "--also-swf",
            help="A further log; pieces are drawn from all logs in turn. Can be repeated.",
            callback=file_to_read,
        ),
    ] = None
    piece_jobs: Annotated[
        int | None,
        typer.Option(
            "--piece-jobs",
            min=1,
            max=MOST,
            help="Number of jobs in each piece of a log. "
            "(default: 1000, or a quarter of a short log)",
        ),
    ] = None
    speeds: Annotated[
        str,
        typer.Option(
            "--speeds",
            help="Factors by which arrivals are sped up: 1,1.5,2. Each piece has one.",
        ),
    ] = "1"


@dataclass(frozen=True)
class PackingNetworkOptions:
    """How a packing network is trained, and from what."""

    objective: ObjectiveOption = None
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="deeprm: fresh | paper | fast; a2c: fast | paper; set: steps | log. "
            "(default: the first; set: log with --swf)",
        ),
    ] = None
    settings: SettingsOption = None
    start: Annotated[
        Path | None,
        typer.Option(
            "--start",
            help="A checkpoint to start from; for set also a tuned withholding rule.",
            callback=file_to_read,
        ),
    ] = None
    select_every: Annotated[
        int,
        typer.Option("--select-every", min=1, help="Number of iterations between measurements."),
    ] = 25


@dataclass(frozen=True)
class RuleSearchOptions(SearchOptions):
    """How the parameters of a rule are searched for."""

    objective: ObjectiveOption = None
    generations: Annotated[
        int | None,
        typer.Option(
            "--generations",
            min=1,
            help="End each search after this many generations. Without --start there are two.",
        ),
    ] = None


def _source(drawn: DrawnOptions, reading: LogOptions, pieces: PieceOptions) -> PackingSource:
    """The source of job sequences: drawn ones, or pieces of the first halves of logs.

    The second halves are reserved for comparisons.
    """
    from dataclasses import replace

    from parcae.base.errors import ConfigError
    from parcae.rigid.evaluation.tuning import tuning_pieces
    from parcae.rigid.sources import LogSource, MixedSource

    reject_both(reading.swf, drawn)
    if reading.swf is None:
        if pieces.also_swf:
            raise ConfigError("--also-swf adds logs to --swf: give the first log with --swf")
        return drawn.source()
    # All logs are read with the same options.
    logs = [reading.swf, *(pieces.also_swf or [])]
    halves = [reading.read_noting(path).jobs.halves()[0] for path in logs]
    # Without the memory of any job, a log has processors only.
    lacking = [path for path, half in zip(logs, halves, strict=True) if len(half.resources) == 1]
    if reading.memory is not None and 0 < len(lacking) < len(logs):
        raise ConfigError(
            f"--memory makes memory a resource of every log, but {', '.join(map(str, lacking))} "
            "contains no job's memory: leave out --memory, or this log"
        )
    sources = [
        replace(
            tuning_pieces(half)
            if pieces.piece_jobs is None
            else LogSource(half, pieces.piece_jobs),
            speeds=numbers("--speeds", pieces.speeds),
        )
        for half in halves
    ]
    return sources[0] if len(sources) == 1 else MixedSource(tuple(sources))


@refusing(*ONE_SOURCE)
@with_groups
def train_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="deeprm|a2c|set", help="The kind of policy to train.", show_default=False
        ),
    ],
    folder: TrainingFolder,
    *,
    drawn: DrawnOptions,
    reading: LogOptions,
    pieces: PieceOptions,
    net: PackingNetworkOptions,
    training: TrainingOptions,
    as_json: JsonOption = False,
) -> None:
    """Train a packing policy. Ctrl-C saves the state, and --resume continues.

    With a log, the policy is trained on its first half only.

    Example: parcae packing train set --load 0.1:1.84 --budget 5 -o training
    """
    from parcae.policies.checkpoint import read_checkpoint
    from parcae.rigid.learner import make_learner, start_from

    source = _source(drawn, reading, pieces)
    cost = cost_of(net.objective, reading.swf is not None)
    learner = make_learner(kind, source, cost, net.recipe, net.settings or [], training.seed)
    if net.start is not None:
        start_from(learner, read_checkpoint(net.start), str(net.start))
    learner.select_every = net.select_every
    # Runs of a log are longer than drawn ones, so fewer selection runs suffice.
    if reading.swf is not None:
        learner.num_selection = _LOG_SELECTION
    run_training(learner, training.plan(folder), cost.objective, as_json)


@refusing(
    *ONE_SOURCE,
    # The knob of Tetris is swept, which neither begins somewhere nor draws.
    Only(
        ("start", "seed", "generations", "budget"),
        lambda given: given["rule"] != "tetris",
        "to withhold",
    ),
)
@with_groups
def tune_command(
    rule: Annotated[
        str,
        typer.Argument(metavar="withhold|tetris", help="The policy to tune.", show_default=False),
    ],
    *,
    drawn: DrawnOptions,
    reading: LogOptions,
    pieces: PieceOptions,
    search: RuleSearchOptions,
) -> None:
    """Tune a hand-made packing policy.

    The checkpoint can be used as a policy in `parcae packing compare`. It always
    contains the best policy so far. Continue an interrupted search with --start.
    With a log, the policy is tuned on its first half only.

    Example: parcae packing tune withhold --load 1.3 --budget 1 -o withhold.safetensors
    """
    from parcae.base.errors import ConfigError
    from parcae.rigid.evaluation.policies import TUNED, Tuning, tune
    from parcae.rigid.evaluation.tuning import Tuned
    from parcae.rigid.policies.catalog import rule_checkpoint
    from parcae.rigid.sources import require_waiting

    if rule not in TUNED:
        raise ConfigError(f"{rule!r} cannot be tuned: write one of {', '.join(TUNED)}")
    source = _source(drawn, reading, pieces)
    require_waiting(source)
    cost = cost_of(search.objective, reading.swf is not None)
    setting = {"source": source.card(), "objective": cost.objective, "seed": search.seed}

    def found(tuned: Tuned, seconds: float, generations: int) -> Found:
        words = f"{generations} generations, {tuned.cost_words}"
        checkpoint = rule_checkpoint(tuned.policy, {**setting, **tuned.card})
        return Found(checkpoint, tuned.card, seconds, words, tuned.text)

    def tuned_policy(save: Callable[[Found], None]) -> Found:
        tuned = tune(
            rule,
            Tuning(source, cost, search.budget_s),
            # In practice no limit: the budget ends the search.
            max_generations=search.generations or 1 << 30,
            start=search.start and _parameters(Path(search.start)),
            seed=search.seed,
            progress=lambda *so_far: save(found(*so_far)),
        )
        # The whole budget counts as used, so that the progress line ends at 100%.
        return found(tuned, search.budget_s, int(tuned.card.get("generations", 0)))

    search.run(tuned_policy)


def _parameters(path: Path) -> Any:
    from parcae.base.errors import FormatError
    from parcae.policies.checkpoint import read_checkpoint
    from parcae.rigid.policies.catalog import policy_of_checkpoint
    from parcae.rigid.policies.kernels.decisions import PackingKind
    from parcae.rigid.policies.policy import HandMadePolicy

    policy = policy_of_checkpoint(read_checkpoint(path), str(path), str(path))
    if not isinstance(policy, HandMadePolicy) or policy.kind is not PackingKind.WITHHOLD:
        raise FormatError(
            f"{path}: not a tuned withholding rule, so the search cannot start from it"
        )
    return policy.params
