"""Compares completion times on a real Spark and in the simulator.

    python -m benchmarks.spark.fidelity --json
    python -m benchmarks.spark.fidelity --cores 8,16,24

It repeats an experiment of Decima (Appendix D and Figure 18). The simulator's cores world runs
jobs and records how long every task takes. A real Spark then runs the same jobs, with tasks that
sleep for exactly that long. The overheads of the cluster (of every task, every stage and every
job) are measured first, and the simulator takes them into account.

With several numbers of cores, what `parcae size` says about the jobs is compared with a Spark that
declares as many cores.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from benchmarks.spark.demo import interval, mix_parser
from benchmarks.spark.replaying import RealSpark, Sleeps, mix_json, parents_first, warm_workload
from benchmarks.spark.work import THROUGH_SERVICE, Work, number, run_script, tell

from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.cluster.trace import Trace
from parcae.evaluation.pictures import new_picture, write_picture
from parcae.evaluation.plots import policy_color
from parcae.evaluation.policies import ResolvedPolicies, resolve_policies
from parcae.evaluation.sizing import Question, parse_cores, play_at, results_at
from parcae.evaluation.statistics import DEFAULT_METHOD, METHODS, mean_estimate, ratio_estimate
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import (
    ArrivalProcess,
    JobSequence,
    RandomStreams,
    Workload,
    draw_sequence,
)

FloatArray = npt.NDArray[np.float64]
#: How long tasks of the calibration sleep, the length of its chains and waves, and its rounds.
_SLEEP_MS = 100
_LENGTH = 20
_REPETITIONS = 5
#: Number of mixes in one Spark application, which are lost if the script is stopped.
_MIXES_PER_APPLICATION = 2


@dataclass(frozen=True)
class ClusterCosts:
    """The overheads of the cluster, in ms."""

    task: float
    stage: float
    job: float


def measured_costs(real: RealSpark, workload: Workload) -> ClusterCosts:
    """The overheads on one core, from single tasks, waves of tasks and chains of stages.

    With d the sleep, j, t and s the overheads of a job, a task and a stage: w tasks of one stage
    take j + w (d + t), and a chain of n stages takes j + n (d + t) + (n - 1) s. The differences of
    these times give the overheads.
    """
    kinds = ([[_SLEEP_MS]], [[_SLEEP_MS] * _LENGTH], [[_SLEEP_MS]] * _LENGTH)
    rounds = [{"jobs": [_chain(stages)]} for stages in kinds] * _REPETITIONS
    replayed = real.replay("calibration", "fifo", workload, rounds, 1)
    span_ms = [float(mix.jct_ms[0]) for mix in replayed]
    # The kinds of jobs take turns, so that every third span is of the same kind.
    one, wave, chain = (float(np.median(span_ms[kind::3])) for kind in range(3))
    task = max(0.0, (wave - one) / (_LENGTH - 1) - _SLEEP_MS)
    stage = max(0.0, (chain - one) / (_LENGTH - 1) - _SLEEP_MS - task)
    costs = ClusterCosts(task, stage, max(0.0, one - _SLEEP_MS - task))
    tell(", ".join(f"{name} {value:.1f} ms" for name, value in asdict(costs).items()))
    return costs


def _chain(stages: list[list[int]]) -> dict[str, Any]:
    """A job for the calibration: a chain of stages, with how long each task sleeps, in ms."""
    chain = [
        {"parents": [row - 1] if row else [], "sleep_ms": sleeps}
        for row, sleeps in enumerate(stages)
    ]
    return {"name": "calibration", "arrival_ms": 0, "stages": chain}


def hand_over_ms(job: JobSpec, costs: ClusterCosts) -> float:
    """The overhead of a job and of its longest chain of stages, without that of tasks, in ms."""
    # The number of steps on the longest chain of stages that ends at each stage.
    depth = dict[int, int]()
    for stage in parents_first(job):
        depth[stage] = 1 + max((depth[parent] for parent in job.stages[stage].parents), default=-1)
    return costs.job + costs.stage * max(depth.values())


def costly_workload(workload: Workload, costs: ClusterCosts) -> Workload:
    """The workload as the cluster runs it: with the overhead of a task added to every duration."""

    def stage_of(stage: StageSpec) -> StageSpec:
        durations = TaskDurations.of(stage.durations.rest[-1] + round(costs.task))
        return replace(stage, durations=durations, mean_task_ms=-1.0)

    return workload.with_stages(stage_of)


def slept(trace: Trace, costs: ClusterCosts) -> Sleeps:
    """How long the tasks of a recorded run worked, without the overhead of a task."""
    assert trace.tasks is not None
    task = round(costs.task)
    sleeps = Sleeps()
    for row in trace.tasks:
        key = (int(row["job"]), int(row["stage"]), int(row["task"]))
        sleeps[key] = max(0, int(row["finish_ms"] - row["start_ms"]) - task)
    return sleeps


# One number of cores: the simulator against Spark, job by job.


def compare_runs(args: argparse.Namespace, real: RealSpark) -> dict[str, Any]:
    """Run jobs alone and together, on Spark and in the simulator, and compare their times."""
    warm = warm_workload(load_workload(args.workload), args.time_scale)
    _check(args, real, warm)
    costs = measured_costs(real, warm)
    # Policies estimate durations from this workload, so it includes the overheads.
    workload = costly_workload(warm, costs)
    chosen = np.linspace(0, len(workload.jobs) - 1, min(args.alone or 10**9, len(workload.jobs)))
    single = [
        JobSequence(workload, np.array([job]), np.zeros(1, np.int64))
        for job in np.unique(chosen.astype(np.int64))
    ]
    seeds = range(args.seed_start, args.seed_start + args.seeds)
    cores = args.cores[0]
    mixes = [
        draw_sequence(workload, args.arrivals, args.jobs, cores, RandomStreams(seed))
        for seed in seeds
    ]
    parts = {"alone": _compare(args, real, args.policies[0], single, costs)}
    for policy in args.policies:
        parts[f"shared, {policy}"] = _compare(args, real, policy, mixes, costs)
    _scatter_of_pairs(
        {
            name: ([job[2] for job in part["jobs"]], [job[1] for job in part["jobs"]])
            for name, part in parts.items()
        },
        args.work / "fidelity.png",
        ("real Spark: completion time [s]", "simulator: completion time [s]"),
        scale=1 / MS_PER_S,
    )
    return {"parts": parts, "costs_ms": asdict(costs), **_settings(args, real)}


def _check(args: argparse.Namespace, real: RealSpark, workload: Workload) -> None:
    """Refuse what Spark or the simulator would refuse after minutes of runs."""
    ArrivalProcess.parse(args.arrivals)
    real.check(args.policies, workload)
    for policy in args.policies:
        _resolved(args, policy, workload)


def _settings(args: argparse.Namespace, real: RealSpark) -> dict[str, Any]:
    given = {name: str(value) for name, value in vars(args).items()}
    return {"settings": given, "spark": real.spark.version, "method": METHODS[DEFAULT_METHOD]}


def _resolved(args: argparse.Namespace, policy: str, workload: Workload) -> ResolvedPolicies:
    """The policy in the simulator's world of cores."""
    cluster = SimulationConfig(
        world=WorldName.CORES, num_executors=args.cores[0], moving_delay_ms=0, warmup_delay_ms=0
    )
    name = policy.removeprefix(THROUGH_SERVICE)
    return resolve_policies(workload, [name], cluster, args.arrivals, args.jobs)


def _scatter_of_pairs(
    groups: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path,
    axes: tuple[str, str],
    *,
    scale: float = 1.0,
) -> None:
    """Write a PNG with one scatter plot per group, and in each the line x = y."""
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 9}):
        figure = new_picture(4.6 * len(groups), 4.2)
        for row, (title, pair) in enumerate(groups.items()):
            x, y = (scale * np.asarray(values, np.float64) for values in pair)
            plot = figure.add_subplot(1, len(groups), row + 1)
            _draw_pairs(plot, x, y, policy_color(row))
            plot.set(xlabel=axes[0], ylabel=axes[1], title=title)
        write_picture(figure, path)


def _draw_pairs(axis: Any, x: FloatArray, y: FloatArray, color: str) -> None:
    """Draw the pairs as dots, and the line x = y."""
    end = 1.05 * max(float(x.max(initial=0)), float(y.max(initial=0)))
    axis.plot([0, end], [0, end], color="#999999", linewidth=1, zorder=1)
    axis.scatter(x, y, s=14, color=color, alpha=0.75, linewidths=0, zorder=2)
    axis.set(xlim=(0, end), ylim=(0, end), aspect="equal")


def _compare(
    args: argparse.Namespace,
    real: RealSpark,
    policy: str,
    sequences: Sequence[JobSequence],
    costs: ClusterCosts,
) -> dict[str, Any]:
    """Simulate job sequences, run them on Spark, and compare the times of their jobs."""
    workload = sequences[0].workload
    resolved = _resolved(args, policy, workload)
    names = list[str]()
    simulated = list[float]()
    mixes = []
    for seed, sequence in enumerate(sequences, args.seed_start):
        (played,) = resolved.for_sequence(sequence, seed).values()
        trace = simulate(sequence, played, resolved.config, seed, record=True)
        # Spark adds the overheads by itself, so tasks sleep for their work only.
        mixes.append(mix_json(sequence, slept(trace, costs)))
        names += trace.job_names
        took_ms = (trace.completion_ms - trace.arrival_ms).tolist()
        for ms, job in zip(took_ms, sequence.jobs, strict=True):
            simulated.append(ms + hand_over_ms(job, costs))
    replayed = real.replay(policy, policy, workload, mixes, args.cores[0])
    took = np.concatenate([mix.jct_ms for mix in replayed])
    signed = np.array(simulated) / took - 1
    return {
        "mean_error": float(np.abs(signed).mean()),
        "p95_error": float(np.percentile(np.abs(signed), 95)),
        "mean_signed_error": float(signed.mean()),
        "num_jobs": len(names),
        "jobs": [list(row) for row in zip(names, simulated, took.tolist(), strict=True)],
    }


# Several numbers of cores: what `parcae size` says against Spark.


def compare_sizes(args: argparse.Namespace, real: RealSpark) -> dict[str, Any]:
    """Predict by `parcae size`, run the same jobs on Spark at every size, and compare.

    A load in `--arrivals` is that of the smallest size: the same jobs arrive at all sizes.
    """
    if args.alone is not None:
        raise ConfigError("--alone is for one number of cores; with several, no job runs alone")
    warm = warm_workload(load_workload(args.workload), args.time_scale)
    _check(args, real, warm)
    # The costs change durations, which no check looks at; they take half a minute.
    question_of(args, warm).check()
    costs = measured_costs(real, warm)
    profile = args.work / "profile.parcae"
    write_workload(costly_workload(warm, costs), profile)
    question = question_of(args, load_workload(str(profile)))
    mixes = sleeping_mixes(question, costs)
    errors = [
        error for cores in args.cores for error in _errors_at(args, real, question, mixes, cores)
    ]
    command = ["parcae", "size", str(profile), "--cores", ",".join(map(str, question.cores))]
    command += ["--policies", ",".join(question.policies), "--arrivals", question.arrivals]
    command += ["--jobs", str(question.num_jobs), "--seeds", str(question.num_seeds)]
    command += ["--seed-start", str(question.seed_start)]
    return {
        "errors": errors,
        "costs_ms": asdict(costs),
        "size": question.to_json(),
        "size_command": shlex.join(command),
        **_settings(args, real),
    }


def question_of(args: argparse.Namespace, workload: Workload) -> Question:
    """The question to `parcae size` about a workload."""
    process = ArrivalProcess.parse(args.arrivals)
    arrivals = args.arrivals
    if process.kind == "load":
        arrivals = f"poisson:{process.mean_gap_ms(workload, args.cores[0], runs_vary=True):.0f}ms"
    return Question(
        workload,
        args.cores,
        tuple(policy.removeprefix(THROUGH_SERVICE) for policy in args.policies),
        arrivals=arrivals,
        num_jobs=args.jobs,
        num_seeds=args.seeds,
        seed_start=args.seed_start,
        # As `parcae size` has it.
        config=SimulationConfig(world=WorldName.CORES, estimate_error="log"),
        processes=1,
    )


def sleeping_mixes(question: Question, costs: ClusterCosts) -> list[dict[str, Any]]:
    """The runs of a question as Spark replays them; Spark adds the overhead of tasks by itself.

    A task takes equally long under all policies and at all sizes, so one simulated run of a seed
    gives the durations of all.
    """
    config = question.config.model_copy(update={"num_executors": question.cores[0]})
    policy = named_policy("fair", question.workload, config)
    mixes = []
    for seed in range(question.seed_start, question.seed_start + question.num_seeds):
        sequence = question.draw(seed)
        trace = simulate(sequence, policy, config, seed, record=True)
        mixes.append(mix_json(sequence, slept(trace, costs)))
    return mixes


def _errors_at(
    args: argparse.Namespace,
    real: RealSpark,
    question: Question,
    mixes: list[dict[str, Any]],
    cores: int,
) -> list[dict[str, Any]]:
    """The errors of every policy at a size: simulated / real - 1."""
    predicted = play_at(question, cores)
    errors = []
    for column, said in enumerate(results_at(question, predicted, cores)):
        policy = args.policies[column]
        took = list[FloatArray]()
        for first in range(0, len(mixes), _MIXES_PER_APPLICATION):
            part = mixes[first : first + _MIXES_PER_APPLICATION]
            name = f"{policy}-{cores}-cores-{question.seed_start + first}"
            took += [
                mix.jct_ms for mix in real.replay(name, policy, question.workload, part, cores)
            ]
        foretold = [
            run["jct_ms"].cast(float).to_numpy()
            for run in predicted.jobs.filter(pl.col("column") == column).partition_by("seed")
        ]
        pairs = zip(foretold, took, strict=True)
        of_jobs = [float(np.abs(one / other - 1).mean()) for one, other in pairs]
        errors.append(
            {
                "predicted": said.to_json(),
                "load": _load(question, cores),
                "real_average_s": mean_estimate([v.mean() / MS_PER_S for v in took]).to_json(),
                "real_p95_s": mean_estimate([_p95(v) / MS_PER_S for v in took]).to_json(),
                "average_error": _relative([v.mean() for v in foretold], [v.mean() for v in took]),
                "p95_error": _relative([_p95(v) for v in foretold], [_p95(v) for v in took]),
                "job_error": mean_estimate(of_jobs).to_json(),
            }
        )
    return errors


def _load(question: Question, cores: int) -> float | None:
    """Work that arrives / capacity of the cores; None for a batch."""
    process = ArrivalProcess.parse(question.drawn_arrivals)
    if process.kind == "batch":
        return None
    return question.workload.expected_work_ms(runs_vary=True) / (process.value * cores)


def _p95(values: FloatArray) -> float:
    return float(np.percentile(values, 95))


def _relative(simulated: list[float], real: list[float]) -> dict[str, Any]:
    """Relative error of a mean over mixes: simulated / real - 1."""
    found = ratio_estimate(simulated, real)
    return replace(found, mean=found.mean - 1, low=found.low - 1, high=found.high - 1).to_json()


def main(args: argparse.Namespace) -> None:
    """Run the comparison and print its result."""
    args.cores = parse_cores(args.cores)
    spark = find_spark(args.spark_home)
    real = RealSpark(spark, find_jar(spark), Work(args.work))
    has_sizes = len(args.cores) > 1
    result = compare_sizes(args, real) if has_sizes else compare_runs(args, real)
    text = json.dumps(result, indent=2)
    write_text(args.work / "fidelity.json", text + "\n")
    if args.json:
        print(text)
    elif has_sizes:
        _print_sizes(result)
    else:
        columns = ("mean_error", "p95_error", "mean_signed_error")
        rows = [
            (name, str(part["num_jobs"]), *(f"{part[column]:.1%}" for column in columns))
            for name, part in result["parts"].items()
        ]
        title = f"Simulator against Spark {spark.version}, {args.cores[0]} cores"
        print_rows(title, ("", "jobs", *columns), rows)


def _print_sizes(result: dict[str, Any]) -> None:
    """A row for every size and policy, and the command that prints the predictions."""
    columns = ("real_average_s", "average_error", "real_p95_s", "p95_error", "job_error")
    rows = [
        (
            f"{error['predicted']['cores']}, {'batch' if load is None else f'load {load:.2f}'}",
            error["predicted"]["policy"],
            f"{error['predicted']['average_s']['mean']:.2f}",
            f"{error['predicted']['p95_s']['mean']:.2f}",
            *(interval(error[column]) for column in columns),
        )
        for error in result["errors"]
        for load in [error["load"]]
    ]
    headings = ("cores", "policy", "average_s", "p95_s", *columns)
    print_rows(f"parcae size against Spark {result['spark']}", headings, rows)
    print(f"The predictions: {result['size_command']}")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = mix_parser(
        __doc__,
        policies=("fifo", "fair", "srpt"),
        jobs=12,
        arrivals="load:0.7",
        seeds=4,
        time_scale=4.0,
        work=Path("parcae-spark-fidelity"),
    )
    made.add_argument("--cores", default="24", help="cores that Spark declares; several: 8,16,24")
    made.add_argument("--alone", type=number(1), help="number of jobs that run alone; else all")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
