"""Rigid jobs on the command line: the verbs of `parcae` with `--world rigid`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer

from parcae.base.errors import ConfigError, FormatError
from parcae.base.options import argument, option, same
from parcae.base.texts import plain
from parcae.cli.bench import show
from parcae.cli.checks import names_in
from parcae.cli.commands import Only, Values, command
from parcae.cli.compare import OutputOptions
from parcae.cli.options import JOB_SET, JSON, MOST, POLICY_HELP, SET, Options, numbers
from parcae.cli.progress import print_reading, telling
from parcae.cli.simulate import PlayedRun, ShowOptions, policy_names
from parcae.cli.tables import print_catalog, print_rows
from parcae.cli.train import SETTINGS, Found, SearchOptions, TrainingOptions
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.registry import all_policies
from parcae.rigid.benchmark import benchmark_packing
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.evaluation.compare import compare_log, compare_packing, number, run_policy
from parcae.rigid.evaluation.plots import MAX_JOBS, MAX_UNITS, can_be_drawn, packing_chart
from parcae.rigid.evaluation.tuning import (
    TUNED,
    RigidTuning,
    Tuned,
    resolve_packing,
    tuned_policy,
    tuning_pieces,
)
from parcae.rigid.evaluation.tuning import tune as tune_policy
from parcae.rigid.job_sets import read_packing_sets
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import NOT_YET, Cost
from parcae.rigid.logs import BatchLog, read_log
from parcae.rigid.metrics import MEASURES, mean_of_started, parse_cost, run_metrics, slowdown
from parcae.rigid.policies.catalog import (
    LEARNED,
    SHIPPED,
    PackingSetting,
    policy_of_checkpoint,
    rule_checkpoint,
)
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy
from parcae.rigid.policies.scores import PackingKind
from parcae.rigid.sources import (
    DrawnSource,
    MixedSource,
    PackingSource,
    RigidLogSource,
    job_mix,
    parse_load,
    require_waiting,
    sped_up,
)
from parcae.rigid.world import RigidOutcome

#: The policies of `--policy all`: those of the conformance runs.
CONFORMANCE_POLICIES = ("sjf", "packer", "tetris_k0.5", "tetris_k0.005")
DEFAULT_POLICIES = "sjf,packer,tetris,random"
DEFAULT_LOG_POLICIES = "easy,fcfs,conservative,sjf,tetris"
_COLUMNS = (
    "policy",
    "slowdown",
    "bounded",
    "completion",
    "waiting",
    "makespan",
    "busy",
    "never started",
    "decisions",
)
#: Number of loads into which a range is divided.
_NUM_RATES = 10
#: Number of selection runs on the pieces of a log.
_LOG_SELECTION = 48
OBJECTIVE = option(
    None,
    "What is minimised: slowdown | bounded-slowdown | completion | makespan | slowdown+makespan "
    "(default: slowdown; logs: bounded-slowdown)",
    "--objective",
)


class ReadingOptions(Options):
    """How a log is read."""

    processors: int | None = option(
        None, "Number of processors of the cluster. (default: as in the log)", ge=1
    )
    memory: int | None = option(
        None, "Memory of the cluster in KB; makes memory a second resource.", ge=1
    )
    estimates: str = option("requested", "Durations that the policies know: requested | actual")
    cancelled: str = option("keep", "Jobs that were cancelled while running: keep | drop")
    partitions: str | None = option(
        None, "Use only the jobs of these partitions, by number or name: 1,3"
    )
    max_bad_share: float = option(
        0.0, "Fail if more than this share of the lines is invalid.", ge=0, le=1
    )

    def read(self, path: Path) -> BatchLog:
        """Read a log."""
        words = None if self.partitions is None else names_in(self.partitions)
        return read_log(path, **{**self.settings(), "partitions": words})

    def settings(self) -> dict[str, Any]:
        """How a log is read, as JSON: the values of the options, by their names."""
        return self.model_dump(include=set(ReadingOptions.model_fields))


class LogOptions(ReadingOptions):
    """A log, if there is one, and how it is read."""

    swf: Path | None = option(
        None,
        "A log of a batch cluster: SWF, sacct --parsable2, PBS, LSF, or a table of jobs.",
        "--log",
        "--swf",
        check="read",
    )

    def read_noting(self, path: Path) -> BatchLog:
        """Read a log, and print on standard error what was left out or changed."""
        log = self.read(path)
        print_reading(log.report)
        return log


class SpedLogOptions(LogOptions):
    """A log, if there is one, how it is read, and how fast its jobs arrive."""

    speed: float = option(
        1.0, "Let the log's jobs arrive this many times as fast, e.g. 1.5.", ge=1e-3, le=1e3
    )

    def read(self, path: Path) -> BatchLog:
        """Read a log; see `ReadingOptions.read`."""
        log = super().read(path)
        if self.speed == 1.0:
            return log
        name = f"{log.jobs.name}[{self.speed:g} times as fast]"
        return replace(log, jobs=replace(sped_up(log.jobs, self.speed), name=name))


class DrawnOptions(Options):
    """How jobs are drawn, and the sizes of the cluster."""

    load: str | None = option(
        None,
        "Load of each resource: 1.3, 130%, several (0.7,1.3), or ten in a range (0.1:1.84).",
    )
    rate: str | None = option(
        None, "Mean arrivals per time step, instead of --load: 0.7, several, or a range."
    )
    mix: str = option("code", "Which jobs: as in DeepRM's code, or as in its paper: code | paper")
    window: int = option(50, "Number of time steps in which jobs arrive.", ge=1, le=MOST)
    num_slots: int = same(PackingConfig, "num_slots")
    backlog_size: int = same(PackingConfig, "backlog_size")
    horizon: int = same(PackingConfig, "horizon")
    num_units: int = option(10, "Number of units of each resource.", "--units", ge=1, le=MOST)
    num_resources: int = option(2, "Number of resources.", "--resources", ge=1, le=MOST)

    def source(self) -> DrawnSource:
        """The source of job sequences."""
        mix = job_mix(self.mix)
        capacity = [self.num_units] * self.num_resources
        # Both or neither.
        if (self.load is None) == (self.rate is None):
            raise ConfigError(
                "give exactly one of --load 1.3, --rate 0.7 and --swf FILE, so that it is known "
                "how many jobs arrive"
            )
        words = _spread(self.load) if self.load is not None else _spread(str(self.rate))
        prefix = "" if self.load is not None else "rate:"
        rates = tuple(round(parse_load(prefix + word, mix, capacity), 6) for word in words)
        settings = PackingConfig(
            num_slots=self.num_slots, backlog_size=self.backlog_size, horizon=self.horizon
        )
        return DrawnSource(
            rates, self.window, self.mix, self.num_units, self.num_resources, settings
        )

    def label(self) -> str:
        """The setting in words, for titles."""
        arrivals = f"load {self.load}" if self.load is not None else f"rate {self.rate}"
        return f"{arrivals}, mix {self.mix}, {self.window} steps"


def _spread(text: str) -> list[str]:
    """The numbers in "0.4", "0.4,0.7" or "0.1:1.84"; a range gives ten numbers."""
    if ":" not in text:
        return text.split(",")
    words = text.split(":")
    # In "10:184%" the sign belongs to both numbers.
    sign = "%" if words[-1].endswith("%") else ""
    try:
        low, high = (float(word.removesuffix(sign)) for word in words)
    except ValueError:
        raise ConfigError(f"{text!r} is not a range: write 0.1:1.84 or 10:184%") from None
    return [f"{value:.6g}{sign}" for value in np.linspace(low, high, _NUM_RATES)]


def _cost(objective: str | None, is_log: bool) -> Cost:
    """The objective that the option names; by default slowdown, for logs bounded slowdown."""
    return parse_cost(objective or ("bounded-slowdown" if is_log else "slowdown"), is_of_run=True)


class PieceOptions(Options):
    """Pieces of logs, on which policies learn."""

    also_swf: list[Path] | None = option(
        None,
        "A further log; pieces are drawn from all logs in turn. Can be repeated.",
        "--also-log",
        "--also-swf",
        check="read",
    )
    piece_jobs: int | None = option(
        None,
        "Number of jobs in each piece of a log. (default: 1000, or a quarter of a short log)",
        ge=1,
        le=MOST,
    )
    speeds: str = option("1", "Factors by which arrivals are sped up: 1,1.5,2. Each piece has one.")

    def source(self, drawn: DrawnOptions, reading: LogOptions) -> PackingSource:
        """The source of job sequences: drawn ones, or pieces of the first halves of logs.

        The second halves are reserved for comparisons.
        """
        if reading.swf is None:
            return drawn.source()
        # All logs are read with the same options.
        logs = [reading.swf, *(self.also_swf or [])]
        halves = [reading.read_noting(path).jobs.halves()[0] for path in logs]
        # Without the memory of any job, a log has processors only.
        pairs = zip(logs, halves, strict=True)
        lacking = [str(path) for path, half in pairs if len(half.resources) == 1]
        if reading.memory is not None and 0 < len(lacking) < len(logs):
            raise ConfigError(
                f"--memory makes memory a resource of every log, but {', '.join(lacking)} "
                "contains no job's memory: leave out --memory, or this log"
            )
        speeds = numbers("--speeds", self.speeds)
        sources = [replace(self._pieces(half), speeds=speeds) for half in halves]
        return sources[0] if len(sources) == 1 else MixedSource(tuple(sources))

    def _pieces(self, half: RigidJobs) -> RigidLogSource:
        if self.piece_jobs is None:
            return tuning_pieces(half)
        return RigidLogSource(half, self.piece_jobs)


_OF_DRAWN = "to jobs that are drawn, not to those of a log or a job set"
ONE_SOURCE = (
    Only(
        (*SpedLogOptions.model_fields, *PieceOptions.model_fields, "part"),
        lambda given: given["swf"] is not None,
        "to logs (--swf)",
    ),
    Only(
        (*DrawnOptions.model_fields, "seeds", "seed_start"),
        lambda given: given["swf"] is None and given.get("job_set") is None,
        _OF_DRAWN,
    ),
)


@command(
    *ONE_SOURCE,
    Only(("set_id",), lambda given: given["job_set"] is not None, "with --job-set"),
    Only(("seed",), lambda given: given["swf"] is None and given["job_set"] is None, _OF_DRAWN),
)
def simulate(
    drawn: DrawnOptions,
    reading: SpedLogOptions,
    shown: ShowOptions,
    policy: str | None = option(
        None, f"{POLICY_HELP} (default: sjf; logs: easy)", check="policies"
    ),
    job_set: Path | None = JOB_SET,
    set_id: str = SET,
    seed: int = option(1_000, "Seed of the drawn job sequence.", ge=0),
) -> None:
    """Run a sequence of rigid jobs: drawn, from a log, or from a file of sequences.

    Example: parcae simulate --world rigid --load 1.3 --policy sjf,packer
    """
    default = "sjf" if reading.swf is None else "easy"
    names = policy_names(policy or default, CONFORMANCE_POLICIES)
    if job_set is None:
        sequences = [_sequence(drawn, reading, seed)]
    elif reading.swf is not None:
        raise ConfigError("--job-set runs the sequences in a file: leave out --swf")
    else:
        sequences = [
            _Sequence(one.jobs, one.config, PackingSetting(rate=len(one.jobs) / one.config.window))
            for one in read_packing_sets(job_set, set_id)
        ]
    # Only the first sequence is drawn.
    first = sequences[0].jobs
    if shown.gantt is not None and not can_be_drawn(first):
        raise ConfigError(
            f"--gantt: a chart of more than {MAX_JOBS} jobs or {MAX_UNITS} units cannot be read, "
            f"and there are {len(first):,} jobs and up to {int(first.capacity.max()):,} units: "
            "leave it out, or draw a smaller run"
        )
    shown.show(
        _played(sequences, names),
        _print_runs,
        lambda run: packing_chart(run.result["policy"], run.run[0]),
        first.name,
    )


class _Sequence(NamedTuple):
    """A sequence to run, and the setting for which policies that were trained are chosen."""

    jobs: RigidJobs
    config: PackingConfig
    setting: PackingSetting


def _sequence(drawn: DrawnOptions, reading: SpedLogOptions, seed: int) -> _Sequence:
    """The jobs of a log, or drawn ones."""
    if reading.swf is not None:
        log = reading.read_noting(reading.swf).jobs
        setting = PackingSetting(is_exact=True, log=log.name)
        return _Sequence(log, PackingConfig.for_log(log), setting)
    source = drawn.source()
    mean_rate = sum(source.rates) / len(source.rates)
    return _Sequence(source.draw([seed])[0], source.config, PackingSetting(rate=mean_rate))


def _played(sequences: Sequence[_Sequence], names: Sequence[str]) -> Iterator[PlayedRun]:
    """Run every sequence under each policy."""
    for position, (jobs, config, setting) in enumerate(sequences):
        for name, policy in resolve_packing(names, None, setting=setting).policies.items():
            outcome = run_policy(policy, [jobs], config)[0]
            result = _run_json(name, outcome, _as_coded(policy, jobs, config))
            yield PlayedRun(position, result, (outcome, config))


def _as_coded(policy: PackingPolicy, jobs: RigidJobs, config: PackingConfig) -> RigidOutcome | None:
    """The run with the quirks of DeepRM's released code.

    None if that code cannot run it: with exact times, or with a job as long as the horizon.
    """
    if config.mode is TimeMode.EXACT or (len(jobs) and int(jobs.duration.max()) >= config.horizon):
        return None
    return run_policy(policy, [jobs], config.model_copy(update={"as_coded": True}))[0]


def _run_json(name: str, outcome: RigidOutcome, as_coded: RigidOutcome | None) -> dict[str, Any]:
    """One run as JSON. `reward` is minus the sum of the slowdowns of jobs that were not lost."""

    def times(values: Any) -> list[int | None]:
        return [None if value == NOT_YET else value for value in values.tolist()]

    def reward(run: RigidOutcome) -> float:
        # Minus 0 would be another text.
        return 0.0 - float(run.costs[Cost.SLOWDOWN])

    # Decisions are those of the released code, where it has such a run.
    counted = outcome if as_coded is None else as_coded
    result: dict[str, Any] = plain(
        {
            "sequence": outcome.jobs.name,
            "policy": name,
            "start": times(outcome.start),
            "finish": times(outcome.finish),
            "slowdown": mean_of_started(slowdown(outcome)),
            "reward": reward(outcome),
            "reward_as_coded": None if as_coded is None else reward(as_coded),
            "decisions": counted.num_decisions,
        }
    )
    return result


def _print_runs(runs: Iterator[PlayedRun]) -> None:
    every = list(runs)
    jobs = every[0].run[0].jobs
    # Logs have times in seconds, all other sequences have time steps.
    unit = jobs.step if jobs.step == "s" else "steps"
    rows = [_row(run.result, *run.run) for run in every]
    print_rows(f"{jobs.name}: {len(jobs):,} jobs, times in {unit}", _COLUMNS, rows)


def _row(result: dict[str, Any], outcome: RigidOutcome, config: PackingConfig) -> tuple[str, ...]:
    # In a log, all waiting jobs are visible; else only those in the job slots.
    visible = config.num_slots if outcome.jobs.step != "s" else None
    found = run_metrics(outcome, visible)
    return (
        result["policy"],
        *(number(found[f"mean_{name}"]) for name in MEASURES),
        f"{found['makespan']:,}",
        " ".join(f"{share:.0%}" for share in found["utilization"]),
        f"{found['unallocated'] + found['dropped']:,}",
        f"{result['decisions']:,}",
    )


class RigidRunOptions(Options):
    """The runs on which policies are compared."""

    seeds: int = option(
        100, "Number of job sequences; all policies run each of them.", ge=1, le=MOST
    )
    seed_start: int = option(1_000, "First seed.", ge=0)
    part: str = option("second", "Part of the log: second (half) | first | all")
    piece_jobs: int | None = option(
        None,
        "Split the log into pieces of this many jobs, each run from an empty cluster.",
        ge=1,
        le=MOST,
    )


def _compared(policies: str | None, is_log: bool) -> list[str]:
    """The names of the policies to compare, in order."""
    default = DEFAULT_LOG_POLICIES if is_log else DEFAULT_POLICIES
    return names_in(default if policies is None else policies)


def _tunes(given: Values, *names: str) -> bool:
    """Whether one of these policies is tuned for a comparison."""
    compared = _compared(given["policies"], given["swf"] is not None)
    return any(tuned_policy(name) in names for name in compared)


@command(
    *ONE_SOURCE,
    Only(
        ("objective",),
        lambda given: _tunes(given, "tetris", "withhold"),
        "where a policy is tuned (tetris, withhold)",
    ),
    Only(("tune_budget",), lambda given: _tunes(given, "withhold"), "to the policy withhold"),
)
def compare(
    drawn: DrawnOptions,
    reading: SpedLogOptions,
    runs: RigidRunOptions,
    output: OutputOptions,
    policies: str | None = option(
        None,
        "Policies or checkpoints, separated by commas. Ratios are relative to the first. "
        "(default: sjf,packer,tetris,random; logs: easy,fcfs,conservative,sjf,tetris)",
        check="policies",
    ),
    objective: str | None = OBJECTIVE,
    tune_budget: float = option(2.0, "Maximum minutes for tuning the policy `withhold`.", ge=0.01),
) -> None:
    """Compare policies on the same job sequences, or on a log, with 95% confidence intervals.

    `tetris` and `withhold` are tuned first, on other sequences of the same
    setting. With a log, they are tuned on pieces of its first half.

    Example: parcae compare --world rigid --load 1.3 --policies sjf,packer,tetris
    """
    is_log = reading.swf is not None
    names = _compared(policies, is_log)
    tuning: Any = {"tune_budget_s": 60 * tune_budget, "cost": _cost(objective, is_log)}
    with telling("reading") as say:
        if reading.swf is not None:
            log = reading.read_noting(reading.swf)
            comparison = compare_log(
                log.jobs, names, part=runs.part, piece_jobs=runs.piece_jobs, say=say, **tuning
            )
            comparison.settings.update(reading.settings(), speed=reading.speed)
            comparison.settings["read"] = _log_json(log)["read"]
        else:
            comparison = compare_packing(
                drawn.source(),
                names,
                num_seeds=runs.seeds,
                seed_start=runs.seed_start,
                label=drawn.label(),
                say=say,
                **tuning,
            )
    output.write(comparison)
    output.write_report(comparison)
    for name, text in comparison.settings["tuned"].items():
        typer.echo(f"{name}: {text}")


@command()
def describe(
    reading: ReadingOptions,
    log: Path = argument("A log of a batch cluster.", "LOG", "read"),
    as_json: bool = JSON,
) -> None:
    """Describe a log, and list what the reader left out or changed, with the first line concerned.

    Example: parcae workload describe --world rigid lublin_256.swf
    """
    found = reading.read(log)
    described = _log_json(found)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    _print_description(described)
    print_reading(found.report, err=False)
    for key, value in found.header.entries:
        typer.echo(f"; {key}: {value}")


def _log_json(log: BatchLog) -> dict[str, Any]:
    """A description of a log, and what the reader left out or changed, as JSON."""
    jobs = log.jobs
    names = jobs.resources
    report = log.report
    return {
        "log": jobs.name,
        "jobs": len(jobs),
        "span_s": jobs.span,
        "start_unix_s": log.start_unix_s,
        "capacity": dict(zip(names, jobs.capacity.tolist(), strict=True)),
        "load": jobs.load_by_resource,
        "duration_s": _spread_of(jobs.duration),
        "told_s": _spread_of(jobs.estimate),
        "waited_s": _spread_of(jobs.waits) if len(jobs.waits) else None,
        "partitions": _jobs_by_partition(log),
        "demand": {name: _spread_of(jobs.demand[:, row]) for row, name in enumerate(names)},
        "read": {
            "lines": report.num_rows,
            "bad": report.num_bad_rows,
            "bad_samples": list(report.bad_samples),
            "notes": list(report.notes),
            "findings": [
                {"what": f.what, "jobs": f.count, "first": f.first, "dropped": f.is_dropped}
                for f in log.findings
            ],
        },
        "header": dict(log.header.entries),
    }


def _jobs_by_partition(log: BatchLog) -> dict[str, int]:
    """The number of jobs of every partition, by its name, if there are several."""
    counts = zip(*np.unique(log.jobs.partitions, return_counts=True), strict=True)
    return {log.partitions.get(int(one), str(one)): int(count) for one, count in counts}


def _spread_of(values: Any) -> dict[str, float]:
    """Percentiles and the mean of an array."""
    percentiles = {"p50": 50, "p95": 95, "max": 100}
    spread = {key: float(np.percentile(values, rank)) for key, rank in percentiles.items()}
    return {**spread, "mean": float(np.mean(values))}


def _print_description(described: dict[str, Any]) -> None:
    """Print the tables of a description."""
    capacity, loads = described["capacity"].items(), described["load"].items()
    facts = [
        ("jobs", f"{described['jobs']:,} of {described['read']['lines']:,} lines"),
        ("bad lines", f"{described['read']['bad']:,}"),
        ("days", f"{described['span_s'] / 86_400:,.1f}"),
        *((f"{name} of the cluster", f"{units:,}") for name, units in capacity),
        *((f"load of {name}", "batch" if one is None else f"{one:.1%}") for name, one in loads),
    ]
    by_partition = described["partitions"].items()
    facts += [(f"jobs of partition {name}", f"{jobs:,}") for name, jobs in by_partition]
    print_rows(f"Log {described['log']}", ("", ""), facts)
    waited = described["waited_s"]
    spreads = {
        "duration (s)": described["duration_s"],
        "estimate (s)": described["told_s"],
        **({} if waited is None else {"recorded wait (s)": waited}),
        **described["demand"],
    }
    rows = [
        (name, *(f"{spread[key]:,.1f}" for key in ("mean", "p50", "p95", "max")))
        for name, spread in spreads.items()
    ]
    print_rows("Per job", ("", "mean", "median", "p95", "largest"), rows)


@command()
def policies(as_json: bool = JSON) -> None:
    """List the policies of rigid jobs.

    A policy is written NAME, NAME:ARGUMENT, tetris-kKNOB, or as the path of a checkpoint.

    Example: parcae policies --world rigid
    """

    def summary(name: str, text: str) -> str:
        shipped = SHIPPED.variants(name) if name in LEARNED and not as_json else []
        return text + (f"; ships: {', '.join(shipped)}" if shipped else "")

    entries = (
        (usage, summary(usage.partition("[")[0], text), source)
        for usage, text, source, _ in all_policies(["rigid"])
    )
    print_catalog("Packing policies", entries, as_json)


class RigidNetworkOptions(Options):
    """How a network is trained, and from what."""

    objective: str | None = OBJECTIVE
    recipe: str | None = option(
        None,
        "deeprm: fresh | paper | fast; a2c: fast | paper; set: steps | log. (default: the first; "
        "set: log with --swf)",
    )
    settings: list[str] | None = SETTINGS
    start: Path | None = option(
        None,
        "A checkpoint to start from; for set also a tuned withholding rule.",
        check="read",
    )
    select_every: int = option(25, "Number of iterations between measurements.", ge=1)


@command(*ONE_SOURCE)
def train(
    drawn: DrawnOptions,
    reading: LogOptions,
    pieces: PieceOptions,
    net: RigidNetworkOptions,
    training: TrainingOptions,
    kind: str = argument("The kind of policy to train.", "deeprm|a2c|set"),
) -> None:
    """Train a policy of rigid jobs. Ctrl-C saves the state, and --resume continues.

    With a log, the policy is trained on its first half only.

    Example: parcae train --world rigid set --load 0.1:1.84 --budget 5 -o training
    """
    # Importing PyTorch takes seconds.
    from parcae.rigid.learner import make_learner, start_from

    source = pieces.source(drawn, reading)
    is_log = reading.swf is not None
    cost = _cost(net.objective, is_log)
    learner = make_learner(kind, source, cost, net.recipe, net.settings or [], training.seed)
    if net.start is not None:
        start_from(learner, read_checkpoint(net.start), str(net.start))
    learner.select_every = net.select_every
    # Runs of a log are longer than drawn ones, so fewer selection runs suffice.
    if is_log:
        learner.num_selection = _LOG_SELECTION
    training.run(learner, cost.objective)


class RuleSearchOptions(SearchOptions):
    """How the parameters of a rule are searched for."""

    objective: str | None = OBJECTIVE
    generations: int | None = option(
        None,
        "End each search after this many generations. Without --start there are two.",
        ge=1,
    )


@command(
    *ONE_SOURCE,
    # The knob of Tetris is swept, which neither begins somewhere nor draws.
    Only(
        ("start", "seed", "generations", "budget"),
        lambda given: given["rule"] != "tetris",
        "to withhold",
    ),
)
def tune(
    drawn: DrawnOptions,
    reading: LogOptions,
    pieces: PieceOptions,
    search: RuleSearchOptions,
    rule: str = argument("The policy to tune.", "withhold|tetris"),
) -> None:
    """Tune a hand-made policy of rigid jobs.

    The checkpoint can be used as a policy in `parcae compare --world rigid`. It always
    contains the best policy so far. Continue an interrupted search with --start.
    With a log, the policy is tuned on its first half only.

    Example: parcae tune --world rigid withhold --load 1.3 --budget 1 -o withhold.safetensors
    """
    if rule not in TUNED:
        raise ConfigError(f"{rule!r} cannot be tuned: write one of {', '.join(TUNED)}")
    source = pieces.source(drawn, reading)
    require_waiting(source)
    cost = _cost(search.objective, reading.swf is not None)
    setting = {"source": source.card(), "objective": cost.objective, "seed": search.seed}

    def found(tuned: Tuned, seconds: float, generations: int) -> Found:
        words = f"{generations} generations, {tuned.cost_words}"
        checkpoint = rule_checkpoint(tuned.policy, {**setting, **tuned.card})
        return Found(checkpoint, tuned.card, seconds, words, tuned.text)

    def tuned_best(save: Callable[[Found], None]) -> Found:
        tuned = tune_policy(
            rule,
            RigidTuning(source, cost, search.budget_s),
            # In practice no limit: the budget ends the search.
            max_generations=search.generations or 1 << 30,
            start=search.start and _parameters(Path(search.start)),
            seed=search.seed,
            progress=lambda *so_far: save(found(*so_far)),
        )
        # The whole budget counts as used, so that the progress line ends at 100%.
        return found(tuned, search.budget_s, int(tuned.card.get("generations", 0)))

    search.run(tuned_best)


def _parameters(path: Path) -> Any:
    """The parameters of a withholding rule, from which a search starts."""
    policy = policy_of_checkpoint(read_checkpoint(path), str(path), str(path))
    if not isinstance(policy, HandMadePolicy) or policy.kind is not PackingKind.WITHHOLD:
        raise FormatError(
            f"{path}: not a tuned withholding rule, so the search cannot start from it"
        )
    return policy.params


@command()
def bench(
    rate: float = option(0.7, "Mean arrivals per time step.", ge=0.01, le=1.0),
    clusters: int = option(500, "Number of clusters that run side by side.", ge=1, le=100_000),
    repetitions: int = option(7, "Number of timed repetitions.", ge=1, le=MOST),
    as_json: bool = JSON,
) -> None:
    """Measure the packing of rigid jobs on one core.

    Measured are steps per second, decisions per second of SJF and of DeepRM, and
    the time of a training iteration of DeepRM.

    Example: parcae bench rigid --json
    """
    show(
        benchmark_packing(rate, clusters, repetitions),
        as_json,
        lambda done: (
            f"{done.steps_per_second / 1e6:.1f} million steps/s; "
            f"{done.sjf_decisions_per_second / 1e6:.1f} million decisions/s of SJF, "
            f"{done.deeprm_decisions_per_second / 1e6:.2f} million of DeepRM; a training "
            "iteration takes "
            f"{done.iteration_seconds:.2f} s "
            f"({done.iteration_decisions / 1e3:,.0f} thousand decisions)"
        ),
    )
