"""`parcae packing train` and `parcae packing tune`: packing policies learned for a load or a log."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.learning import BudgetOption, JsonOption, ProgressLine, SeedOption
from parcae.cli.packing_options import (
    BacklogOption,
    BadShareOption,
    CancelledOption,
    DrawnOptions,
    EstimatesOption,
    HorizonOption,
    LoadOption,
    LogOptions,
    MemoryOption,
    MixOption,
    ObjectiveOption,
    PartitionsOption,
    ProcessorsOption,
    RateOption,
    ResourcesOption,
    SlotsOption,
    SwfOption,
    UnitsOption,
    WindowOption,
    cost_of,
    reject_both,
    sizes,
)

if TYPE_CHECKING:
    from parcae.packing.sources import PackingSource

PieceOption = Annotated[
    int | None,
    typer.Option(
        "--piece-jobs",
        min=1,
        help="Jobs of the log's pieces. [default: 1000, of a short log a quarter]",
    ),
]
#: Jobs of the pieces of a log that networks learn on.
_TRAINING_PIECE = 1000


AlsoOption = Annotated[
    list[Path] | None,
    typer.Option("--also-swf", help="A further log, of which pieces are drawn in turn."),
]
SpeedsOption = Annotated[
    str,
    typer.Option(
        "--speeds",
        help="How many times as fast the jobs of a piece arrive, one of: 1,1.5,2. [default: 1]",
    ),
]


def _source(
    swf: list[Path],
    log: LogOptions,
    piece_jobs: int | None,
    speeds: str,
    most: int,
    drawn: DrawnOptions,
) -> PackingSource:
    """Drawn sequences, or pieces of logs' first halves (of `most` jobs, unless told); the second are kept for comparisons."""
    from dataclasses import replace

    from parcae.evaluation.packing.compare import part_of
    from parcae.evaluation.packing.tuning import tuning_pieces
    from parcae.packing.sources import LogSource, MixedSource

    reject_both(swf[0] if swf else None, drawn.load, drawn.rate)
    if not swf:
        return drawn.source()
    halves = [part_of(log.read(path).jobs, "first") for path in swf]
    sources = [
        replace(
            tuning_pieces(half, most) if piece_jobs is None else LogSource(half, piece_jobs),
            speeds=_speeds(speeds),
        )
        for half in halves
    ]
    return sources[0] if len(sources) == 1 else MixedSource(tuple(sources))


def _logs(swf: Path | None, also: list[Path] | None) -> list[Path]:
    from parcae.errors import ConfigError

    if swf is None and also:
        raise ConfigError("--also-swf adds to --swf: give that one first")
    return [] if swf is None else [swf, *(also or [])]


def _speeds(text: str) -> tuple[float, ...]:
    from parcae.errors import ConfigError

    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--speeds {text}: write numbers separated by commas, as in 1,1.5,2"
        ) from None


def train_command(
    learner: Annotated[
        str, typer.Argument(metavar="deeprm|a2c|set", help="What learns.", show_default=False)
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Folder for the state, the best policy (best.safetensors) and TensorBoard.",
        ),
    ],
    load: LoadOption = None,
    rate: RateOption = None,
    mix: MixOption = "code",
    window: WindowOption = 50,
    slots: SlotsOption = 10,
    backlog: BacklogOption = 60,
    horizon: HorizonOption = 20,
    units: UnitsOption = 10,
    resources: ResourcesOption = 2,
    swf: SwfOption = None,
    also_swf: AlsoOption = None,
    piece_jobs: PieceOption = None,
    speeds: SpeedsOption = "1",
    processors: ProcessorsOption = None,
    memory: MemoryOption = None,
    estimates: EstimatesOption = "requested",
    cancelled: CancelledOption = "keep",
    partitions: PartitionsOption = None,
    max_bad_share: BadShareOption = 0.0,
    objective: ObjectiveOption = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="How it learns. [default: the learner's own]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value of a setting of the recipe: learning_rate=0.001"),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", help="A checkpoint to start from; for set, a tuned withholding rule as well."
        ),
    ] = None,
    budget: BudgetOption = 5.0,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations", min=1, help="End after so many; resuming is then exact to the last bit."
        ),
    ] = None,
    select_every: Annotated[
        int, typer.Option("--select-every", min=1, help="Iterations between measurements.")
    ] = 25,
    seed: SeedOption = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the folder's state.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a packing policy; Ctrl-C saves, and --resume goes on. Of a log it sees the first half alone.

    Example: parcae packing train set --load 0.1:1.84 --budget 5 -o training
    """
    from parcae.learning.packing.catalog import make_learner, start_weights
    from parcae.learning.packing.loop import BEST_FILE, PackingTraining, train_packing
    from parcae.policies.checkpoint import read_checkpoint

    log = LogOptions(processors, memory, estimates, cancelled, partitions, max_bad_share)
    drawn = DrawnOptions(load, rate, mix, window, units, resources, sizes(slots, backlog, horizon))
    source = _source(_logs(swf, also_swf), log, piece_jobs, speeds, _TRAINING_PIECE, drawn)
    cost = cost_of(objective, swf is not None)
    weights = None if start is None else start_weights(learner, read_checkpoint(start), str(start))
    line = ProgressLine(budget * 60)
    training = PackingTraining(
        source, cost, budget * 60, iterations, select_every, seed=seed, folder=folder, is_resumed=resume,
        num_selection=48 if swf is not None else 200, command=shlex.join(["parcae", *sys.argv[1:]]),
    )  # fmt: skip
    result = train_packing(
        make_learner(learner, source, cost, recipe, settings or [], weights, seed),
        training,
        lambda i: line.show(
            i.seconds, f"iteration {i.iteration}, {cost.name.lower()} {i.best:.3f} at best"
        ),
    )
    line.end()
    best = folder / BEST_FILE
    card = result.checkpoint.card
    found = {
        "output": str(best),
        "iterations": result.iterations,
        "seconds": round(result.seconds, 1),
        "objective": card["cost"],
        "cost_on_selection_runs": card["cost_on_selection_runs"],
        "ending": result.ending,
    }
    _tell(
        found,
        as_json,
        f"{best}: {_cost_text(found)} after {result.iterations:,} iterations ({result.seconds:.0f} s)",
    )
    if result.ending == "interrupted":
        typer.echo("interrupted; the same command with --resume goes on", err=True)
        raise typer.Exit(130)
    if result.ending != "done":
        typer.echo(f"parcae: {result.ending}", err=True)
        raise typer.Exit(1)


def _cost_text(found: dict[str, Any]) -> str:
    cost = found["cost_on_selection_runs"]
    return f"{found['objective'].replace('_', ' ')} {'not measured' if cost is None else f'{cost:.3f} on the selection runs'},"


def _tell(found: dict[str, Any], as_json: bool, text: str) -> None:
    typer.echo(json.dumps(found) if as_json else text)


def tune_command(
    rule: Annotated[
        str, typer.Argument(metavar="withhold|tetris", help="What is tuned.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Checkpoint to write (*.safetensors).")
    ],
    load: LoadOption = None,
    rate: RateOption = None,
    mix: MixOption = "code",
    window: WindowOption = 50,
    slots: SlotsOption = 10,
    backlog: BacklogOption = 60,
    horizon: HorizonOption = 20,
    units: UnitsOption = 10,
    resources: ResourcesOption = 2,
    swf: SwfOption = None,
    also_swf: AlsoOption = None,
    piece_jobs: PieceOption = None,
    speeds: SpeedsOption = "1",
    processors: ProcessorsOption = None,
    memory: MemoryOption = None,
    estimates: EstimatesOption = "requested",
    cancelled: CancelledOption = "keep",
    partitions: PartitionsOption = None,
    max_bad_share: BadShareOption = 0.0,
    objective: ObjectiveOption = None,
    start: Annotated[
        Path | None, typer.Option("--start", help="A tuned rule to go on from: a checkpoint.")
    ] = None,
    budget: BudgetOption = 3.0,
    generations: Annotated[
        int | None, typer.Option("--generations", min=1, help="End after so many.")
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Tune a hand-made packing policy; its checkpoint is a policy in `parcae packing compare`. Of a log it sees the first half.

    The checkpoint always holds the best so far: an interrupted search goes on with --start.

    Example: parcae packing tune withhold --load 1.3 --budget 1 -o withhold.safetensors
    """
    from parcae.errors import ConfigError
    from parcae.evaluation.packing.policies import TUNED
    from parcae.evaluation.packing.tuning import PIECE_JOBS, Tuned, tune_knob, tune_withholding
    from parcae.policies.checkpoint import write_checkpoint
    from parcae.policies.packing.catalog import SUFFIX, rule_checkpoint

    if rule not in TUNED:
        raise ConfigError(f"{rule!r} cannot be tuned: write one of {', '.join(TUNED)}")
    if output.suffix != SUFFIX or not output.parent.is_dir():
        raise ConfigError(
            f"-o {output}: write a file in a folder that is there, whose name ends in {SUFFIX}, as policies' do"
        )
    log = LogOptions(processors, memory, estimates, cancelled, partitions, max_bad_share)
    drawn = DrawnOptions(load, rate, mix, window, units, resources, sizes(slots, backlog, horizon))
    source = _source(_logs(swf, also_swf), log, piece_jobs, speeds, PIECE_JOBS, drawn)
    cost = cost_of(objective, swf is not None)
    line = ProgressLine(budget * 60)

    def save(tuned: Tuned, seconds: float, count: int) -> None:
        card = {"source": source.card(), "objective": cost.name.lower(), "seed": seed, **tuned.card}
        write_checkpoint(rule_checkpoint(tuned.policy, card), output)
        line.show(seconds, f"{count} generations, {cost.name.lower()} {tuned.cost:.3f}")

    if rule == "tetris":
        tuned = tune_knob(source, cost)
    else:
        first = None if start is None else _parameters(start)
        tuned = tune_withholding(
            source,
            cost,
            budget * 60,
            max_generations=generations or 1 << 30,
            start=first,
            seed=seed,
            progress=save,
        )
    save(tuned, budget * 60, int(tuned.card.get("generations", 0)))
    line.end()
    _tell({**tuned.card, "output": str(output)}, as_json, f"{output}: {tuned.text}")


def _parameters(path: Path) -> Any:
    from parcae.errors import FormatError
    from parcae.policies.checkpoint import read_checkpoint
    from parcae.policies.packing.catalog import policy_of_checkpoint
    from parcae.policies.packing.layout import PackingKind
    from parcae.policies.packing.policy import HandMadePolicy

    policy = policy_of_checkpoint(read_checkpoint(path), str(path), str(path))
    if not isinstance(policy, HandMadePolicy) or policy.kind is not PackingKind.WITHHOLD:
        raise FormatError(
            f"{path}: not a tuned withholding rule, which the search could go on from"
        )
    return policy.params
