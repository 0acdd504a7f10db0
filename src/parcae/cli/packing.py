"""`parcae packing`: simulates and compares policies that pack rigid jobs, drawn or from a log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from parcae.cli import packing_learning
from parcae.cli.checks import Only, Values, finite, refusing
from parcae.cli.compare import OutputOptions
from parcae.cli.groups import with_groups
from parcae.cli.options import MOST, JsonOption, SeedStartOption
from parcae.cli.packing_options import (
    ONE_SOURCE,
    DrawnOptions,
    ReadingOptions,
    SpedLogOptions,
    TunedObjectiveOption,
    cost_of,
    log_json,
    reject_both,
)
from parcae.cli.policy_names import names_in, policies_to_read
from parcae.cli.progress import print_reading, telling
from parcae.cli.runs import JobSetOptions, PlayedRun, PolicyOption, ShowOptions, policy_names
from parcae.cli.tables import print_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parcae.evaluation.gantt import Chart
    from parcae.rigid.config import PackingConfig
    from parcae.rigid.job_sets import PackingSet
    from parcae.rigid.jobs import RigidJobs
    from parcae.rigid.policies.catalog import PackingSetting
    from parcae.rigid.policies.policy import PackingPolicy
    from parcae.rigid.world import Outcome

app = typer.Typer(
    help="Schedule rigid jobs: those of DeepRM, or logs of batch clusters.", no_args_is_help=True
)
app.command("train")(packing_learning.train_command)
app.command("tune")(packing_learning.tune_command)

#: The policies of `--policy all`: those of the conformance runs.
CONFORMANCE_POLICIES = ("sjf", "packer", "tetris_k0.5", "tetris_k0.005")
DEFAULT_POLICIES = "sjf,packer,tetris,random"
DEFAULT_LOG_POLICIES = "easy,fcfs,conservative,sjf,tetris"
#: Width of the tables in characters.
_WIDTH = 140
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


@dataclass(frozen=True)
class RunOptions:
    """The runs on which policies are compared."""

    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            min=1,
            max=MOST,
            help="Number of job sequences; all policies run each of them.",
        ),
    ] = 100
    seed_start: SeedStartOption = 1_000
    part: Annotated[
        str, typer.Option("--part", help="Part of the log: second (half) | first | all")
    ] = "second"
    piece_jobs: Annotated[
        int | None,
        typer.Option(
            "--piece-jobs",
            min=1,
            max=MOST,
            help="Split the log into pieces of this many jobs, each run from an empty cluster.",
        ),
    ] = None


@app.command("simulate")
@refusing(
    *ONE_SOURCE,
    Only(("set_id",), lambda given: given["job_set"] is not None, "with --job-set"),
    Only(
        ("seed",),
        lambda given: given["swf"] is None and given["job_set"] is None,
        "to jobs that are drawn (--load, --rate)",
    ),
)
@with_groups
def simulate_command(
    *,
    drawn: DrawnOptions,
    reading: SpedLogOptions,
    sets: JobSetOptions,
    policy: PolicyOption = "sjf",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the drawn job sequence.")
    ] = 1_000,
    shown: ShowOptions,
) -> None:
    """Run a sequence of rigid jobs: drawn, from a log, or from a file of sequences.

    Example: parcae packing simulate --load 1.3 --policy sjf,packer
    """
    names = policy_names(policy, CONFORMANCE_POLICIES)
    sequences = _sequences(drawn, reading, sets, seed)
    # Only the first sequence is drawn.
    if shown.gantt is not None:
        _require_readable_chart(sequences[0].jobs)
    shown.show(_played(sequences, names), _print_runs, _chart, sequences[0].jobs.name)


class _Sequence(NamedTuple):
    """A sequence to run, and the setting for which policies that were trained are chosen."""

    jobs: RigidJobs
    config: PackingConfig
    setting: PackingSetting


def _sequences(
    drawn: DrawnOptions, reading: SpedLogOptions, sets: JobSetOptions, seed: int
) -> list[_Sequence]:
    """The sequences to run."""
    from parcae.base.errors import ConfigError
    from parcae.rigid.config import PackingConfig
    from parcae.rigid.job_sets import read_packing_sets
    from parcae.rigid.policies.catalog import PackingSetting

    reject_both(reading.swf, drawn)
    if sets.job_set is not None:
        if reading.swf is not None or drawn.is_given:
            raise ConfigError(
                "--job-set runs the sequences in a file: leave out --load, --rate and --swf"
            )
        found = read_packing_sets(sets.job_set, sets.set_id)
        return [
            _Sequence(
                one.jobs, _config(one), PackingSetting(rate=len(one.jobs) / one.arrival_window)
            )
            for one in found
        ]
    if reading.swf is not None:
        log = reading.read_noting(reading.swf).jobs
        setting = PackingSetting(is_exact=True, log=log.name)
        return [_Sequence(log, PackingConfig.for_log(log), setting)]
    source = drawn.source()
    mean_rate = sum(source.rates) / len(source.rates)
    return [_Sequence(source.draw([seed])[0], source.config, PackingSetting(rate=mean_rate))]


def _config(one: PackingSet) -> PackingConfig:
    from parcae.rigid.config import PackingConfig

    return PackingConfig(
        num_slots=one.job_slots,
        backlog_size=one.backlog_size,
        horizon=one.time_horizon,
        window=one.arrival_window,
    )


def _played(sequences: Sequence[_Sequence], names: Sequence[str]) -> Iterator[PlayedRun]:
    """Run every sequence under each policy."""
    from parcae.rigid.evaluation.policies import resolve_packing
    from parcae.rigid.evaluation.world import run_policy

    for number, (jobs, config, setting) in enumerate(sequences):
        for name, policy in resolve_packing(names, None, setting=setting).policies.items():
            outcome = run_policy(policy, [jobs], config)[0]
            result = _run_json(name, outcome, _as_coded(policy, jobs, config))
            yield PlayedRun(number, result, (outcome, config))


def _as_coded(policy: PackingPolicy, jobs: RigidJobs, config: PackingConfig) -> Outcome | None:
    """The run with the quirks of DeepRM's released code.

    None if that code cannot run it: with exact times, or with a job as long as the horizon.
    """
    from parcae.rigid.config import TimeMode
    from parcae.rigid.evaluation.world import run_policy

    if config.mode is TimeMode.EXACT or (len(jobs) and int(jobs.duration.max()) >= config.horizon):
        return None
    return run_policy(policy, [jobs], config.model_copy(update={"as_coded": True}))[0]


def _run_json(name: str, outcome: Outcome, as_coded: Outcome | None) -> dict[str, Any]:
    """One run as JSON. `reward` is minus the sum of the slowdowns of jobs that were not lost."""
    from parcae.base.texts import plain
    from parcae.rigid.layout import NOT_YET, Cost
    from parcae.rigid.metrics import mean_of_started, slowdown

    def times(values: Any) -> list[int | None]:
        return [None if value == NOT_YET else value for value in values.tolist()]

    def reward(run: Outcome) -> float:
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
    print_rows(f"{jobs.name}: {len(jobs):,} jobs, times in {unit}", _COLUMNS, rows, _WIDTH)


def _row(result: dict[str, Any], outcome: Outcome, config: PackingConfig) -> tuple[str, ...]:
    from parcae.rigid.evaluation.world import number
    from parcae.rigid.metrics import summarize_packing

    # In a log, all waiting jobs are visible; else only those in the job slots.
    s = summarize_packing(
        outcome, num_visible=config.num_slots if outcome.jobs.step != "s" else None
    )
    busy = " ".join(f"{share:.0%}" for share in s.utilization.values())
    means = (s.mean_slowdown, s.mean_bounded_slowdown, s.mean_completion, s.mean_waiting)
    return (
        result["policy"],
        *map(number, means),
        f"{s.makespan:,}",
        busy,
        f"{s.unallocated + s.dropped:,}",
        f"{result['decisions']:,}",
    )


def _chart(run: PlayedRun) -> Chart:
    from parcae.rigid.evaluation.gantt import packing_chart

    return packing_chart(run.result["policy"], run.run[0])


def _require_readable_chart(jobs: RigidJobs) -> None:
    """Raise an error if a chart of these jobs could not be read."""
    from parcae.base.errors import ConfigError
    from parcae.rigid.evaluation.gantt import MAX_JOBS, MAX_UNITS, can_be_drawn

    if not can_be_drawn(jobs):
        raise ConfigError(
            f"--gantt: a chart of more than {MAX_JOBS} jobs or {MAX_UNITS} units cannot be read, "
            f"and there are {len(jobs):,} jobs and up to {int(jobs.capacity.max()):,} units: leave "
            "it out, or draw a smaller run"
        )


def _compared_policies(policies: str | None, is_log: bool) -> list[str]:
    """The names of the policies to compare, in order."""
    default = DEFAULT_LOG_POLICIES if is_log else DEFAULT_POLICIES
    return names_in(default if policies is None else policies)


def _tunes(given: Values, *names: str) -> bool:
    """Whether one of these policies is tuned for a comparison."""
    from parcae.rigid.evaluation.policies import tuned_policy

    compared = _compared_policies(given["policies"], given["swf"] is not None)
    return any(tuned_policy(name) in names for name in compared)


@app.command("compare")
@refusing(
    *ONE_SOURCE,
    Only(
        ("objective",),
        lambda given: _tunes(given, "tetris", "withhold"),
        "where a policy is tuned (tetris, withhold)",
    ),
    Only(("tune_budget",), lambda given: _tunes(given, "withhold"), "to the policy withhold"),
)
@with_groups
def compare_command(
    *,
    drawn: DrawnOptions,
    reading: SpedLogOptions,
    runs: RunOptions,
    output: OutputOptions,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies or checkpoints, separated by commas. Ratios are relative to the first. "
            "(default: sjf,packer,tetris,random; logs: easy,fcfs,conservative,sjf,tetris)",
            callback=policies_to_read,
        ),
    ] = None,
    objective: TunedObjectiveOption = None,
    tune_budget: Annotated[
        float,
        typer.Option(
            "--tune-budget",
            min=0.01,
            help="Maximum minutes for tuning the policy `withhold`.",
            callback=finite,
        ),
    ] = 2.0,
) -> None:
    """Compare policies on the same job sequences, or on a log, with 95% confidence intervals.

    `tetris` and `withhold` are tuned first, on other sequences of the same
    setting. With a log, they are tuned on pieces of its first half.

    Example: parcae packing compare --load 1.3 --policies sjf,packer,tetris --report report.html
    """
    from parcae.rigid.evaluation.compare import compare_log, compare_packing

    reject_both(reading.swf, drawn)
    is_log = reading.swf is not None
    names = _compared_policies(policies, is_log)
    cost = cost_of(objective, is_log)
    with telling("reading") as say:
        if reading.swf is not None:
            log = reading.read_noting(reading.swf)
            comparison = compare_log(
                log.jobs,
                names,
                part=runs.part,
                piece_jobs=runs.piece_jobs,
                tune_budget_s=60 * tune_budget,
                cost=cost,
                say=say,
            )
            comparison.settings.update(reading.settings(), speed=reading.speed)
            comparison.settings["read"] = log_json(log)["read"]
        else:
            comparison = compare_packing(
                drawn.source(),
                names,
                num_seeds=runs.seeds,
                seed_start=runs.seed_start,
                tune_budget_s=60 * tune_budget,
                cost=cost,
                label=drawn.label(),
                say=say,
            )
    output.write(comparison)
    output.write_report(comparison)
    for name, text in comparison.settings["tuned"].items():
        typer.echo(f"{name}: {text}")


@app.command("describe")
@with_groups
def describe_command(
    swf: Annotated[Path, typer.Option("--swf", help="A log of a batch cluster (*.swf[.gz]).")],
    *,
    reading: ReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Describe a log, and list what the reader left out or changed, with the first line concerned.

    Example: parcae packing describe --swf lublin_256.swf
    """
    log = reading.read(swf)
    described = log_json(log)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    _print_description(described)
    print_reading(log.report, err=False)
    for key, value in log.header.entries:
        typer.echo(f"; {key}: {value}")


def _print_description(described: dict[str, Any]) -> None:
    """Print the tables of `parcae packing describe`."""
    facts = [
        ("jobs", f"{described['jobs']:,} of {described['read']['lines']:,} lines"),
        ("bad lines", f"{described['read']['bad']:,}"),
        ("days", f"{described['span_s'] / 86_400:,.1f}"),
    ]
    for name, units in described["capacity"].items():
        facts.append((f"{name} of the cluster", f"{units:,}"))
    for name, load in described["load"].items():
        facts.append((f"load of {name}", "batch" if load is None else f"{load:.1%}"))
    print_rows(f"Log {described['log']}", ("", ""), facts)
    spreads = {
        "duration (s)": described["duration_s"],
        "estimate (s)": described["told_s"],
        **described["demand"],
    }
    rows = [
        (name, *(f"{spread[key]:,.1f}" for key in ("mean", "p50", "p95", "max")))
        for name, spread in spreads.items()
    ]
    print_rows("Per job", ("", "mean", "median", "p95", "largest"), rows)


@app.command("policies")
def policies_command(as_json: JsonOption = False) -> None:
    """List the packing policies.

    A policy is written NAME, NAME:ARGUMENT, tetris-kKNOB, or as the path of a checkpoint.

    Example: parcae packing policies
    """
    from parcae.cli.tables import print_catalog
    from parcae.policies.registry import all_policies
    from parcae.rigid.policies.catalog import LEARNED, variants

    def summary(name: str, text: str) -> str:
        shipped = variants(name) if name in LEARNED and not as_json else []
        return text + (f"; ships: {', '.join(shipped)}" if shipped else "")

    entries = (
        (usage, summary(usage.partition("[")[0], text), source)
        for usage, text, source, _ in all_policies(["rigid"])
    )
    print_catalog("Packing policies", entries, as_json)
