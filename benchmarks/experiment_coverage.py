"""How often an experiment's interval contains the truth, in simulations.

    python -m benchmarks.experiment_coverage --repetitions 200

Three kinds of queries arrive at random on a simulated Spark. In blocks of time, chance decides
whether FAIR or the policy orders them, as the plugin does; `compare-logs --experiment` evaluates
the run. The same queries run once more under FAIR alone and under the policy alone: the truth.
Prints, by policy, load and number of pairs of blocks, the mean truth, how often the interval of the
mean, the median and the 95th percentile contains it, and how often the interval of the mean
excludes 1 (with FAIR as the policy: a false alarm).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.spark.work import Work, names, number, numbers, run_script, tell

from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, Planner
from parcae.evaluation.experiment import MEASURES, MIN_PAIRS, evaluate_experiment
from parcae.policies.additions import named_policy
from parcae.policies.compiled import CompiledPlanner
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.recorded_run import CORE_TASK, Arm, JobOutcome, RecordedJob, RecordedRun
from parcae.workloads.workload import (
    ArrivalProcess,
    JobSequence,
    RandomStreams,
    Workload,
    draw_sequence,
)

#: The three kinds of queries: tasks, ms of each, and how often of 100.
KINDS = {"short": (4, 250, 70), "medium": (16, 500, 25), "etl": (80, 1_000, 5)}
STOCK = "fair"
#: Mean and spread of the logarithm of what the policy expects a query to take.
_CORES, _SIGMA = 8, 0.5


class Case(NamedTuple):
    """The settings of a row of the table."""

    policy: str
    load: float
    num_pairs: int
    block_s: int


def workload() -> Workload:
    """The kinds of queries, by how often they come."""
    jobs = tuple(
        JobSpec(
            name, (StageSpec(tasks, TaskDurations.of(np.array([ms // 2, ms, ms, 2 * ms])), ()),)
        )
        for name, (tasks, ms, _) in KINDS.items()
    )
    return Workload("three kinds", jobs, tuple(float(share) for *_, share in KINDS.values()))


class Blocks:
    """A policy that applies in some blocks of time; in the others the stock order does."""

    name = "blocks"

    def __init__(self, planners: Sequence[Planner], block_ms: int, arms: Sequence[bool]) -> None:
        self._planners, self._block_ms, self._arms = planners, block_ms, arms

    def block_of(self, time_ms: int) -> int:
        """The block of a time; the last one goes on."""
        return min(time_ms // self._block_ms, len(self._arms) - 1)

    def restart(self) -> None:
        """Forget the last run."""
        for planner in self._planners:
            if isinstance(planner, CompiledPlanner):
                planner.restart()

    def plan(self, observation: Observation) -> Orders:
        """The orders of the present block's arm."""
        block = self.block_of(int(observation.now.clock_ms[0]))
        orders = self._planners[self._arms[block]].plan(observation)
        orders.wake_ms[0] = min(orders.wake_ms[0], (block + 1) * self._block_ms)
        return orders


def played(case: Case, seed: int) -> dict[str, Any]:
    """One experiment: by measure the truth, the estimate and the ends of its interval."""
    jobs = workload()
    config = SimulationConfig(world=WorldName.CORES, num_executors=_CORES, estimate_error=_SIGMA)
    streams = RandomStreams(seed)
    block_ms = case.block_s * MS_PER_S
    horizon_ms = 2 * case.num_pairs * block_ms
    process = f"load:{case.load}"
    gap_ms = ArrivalProcess.parse(process).mean_gap_ms(jobs, _CORES)
    num_jobs = round(1.3 * horizon_ms / gap_ms) + 20  # more than arrive in that time
    drawn = draw_sequence(jobs, process, num_jobs, _CORES, streams)
    arrival_ms = drawn.arrival_ms[drawn.arrival_ms < horizon_ms]
    sequence = JobSequence(jobs, drawn.job_index[: len(arrival_ms)], arrival_ms)
    first = streams.actions.integers(0, 2, case.num_pairs).astype(bool)
    arms = np.column_stack([first, ~first]).ravel().tolist()
    planners = [named_policy(name, jobs, config) for name in (STOCK, case.policy)]
    jct_ms = []
    for policy in (*planners, Blocks(planners, block_ms, arms)):
        trace = simulate(sequence, policy, config, seed)
        jct_ms.append(trace.completion_ms - trace.arrival_ms)
    result = evaluate_experiment(recorded(sequence, jct_ms[-1], arms, block_ms))
    found = {}
    for name, quantile in MEASURES.items():
        stock, policy = (
            one.mean() if quantile is None else np.quantile(one, quantile) for one in jct_ms[:2]
        )
        ratio = result.effects[name].ratio
        found[name] = [float(policy / stock), ratio.mean, ratio.low, ratio.high]
    return found


def recorded(
    sequence: JobSequence, jct_ms: npt.NDArray[np.int64], arms: Sequence[bool], block_ms: int
) -> RecordedRun:
    """A simulated experiment as the reader of event logs gives it."""
    jobs = []
    for index, arrival, took in zip(sequence.job_index, sequence.arrival_ms, jct_ms, strict=True):
        block = int(arrival) // block_ms
        since = int(arrival) % block_ms
        left = block_ms - since
        arm = Arm(block, bool(arms[block]), since, left, block_ms, block_ms // 10)
        name = sequence.workload.jobs[index].name
        end = int(arrival + took)
        jobs.append(RecordedJob(name, 1, int(arrival), end, JobOutcome.COMPLETED, "", arm))
    tasks = np.zeros(0, CORE_TASK)
    return RecordedRun("simulated", ("simulated",), tuple(jobs), tasks, _CORES, None)


def row(case: Case, found: Sequence[dict[str, Any]]) -> list[str]:
    """A case in the table."""
    columns = {name: np.array([one[name] for one in found]).T for name in MEASURES}
    truth, estimate, low, high = columns["mean"]
    covers = (np.mean((low <= truth) & (truth <= high)) for truth, _, low, high in columns.values())
    return [
        case.policy,
        f"{case.load:g}",
        f"{case.num_pairs} x 2 x {case.block_s} s",
        f"{truth.mean():.3f}",
        f"{np.exp(np.log(estimate / truth).mean()) - 1:+.1%}",
        f"±{np.log(high / low).mean() / 2:.1%}",
        *(f"{share:.1%}" for share in covers),
        f"{np.mean((low > 1) | (high < 1)):.1%}",
    ]


def main(args: argparse.Namespace) -> None:
    """Play the experiments, and print a row for every case."""
    work = Work(args.work, {"kinds": KINDS, "cores": _CORES, "sigma": _SIGMA})
    seeds = range(args.seed_start, args.seed_start + args.repetitions)
    rows = []
    for case in starmap(Case, product(args.policies, args.loads, args.pairs, args.blocks)):
        found = []
        for seed in seeds:
            name = "-".join(map(str, (*case, seed)))
            found.append(work.kept(name, partial(played, case, seed)))
        rows.append(row(case, found))
        tell(" | ".join(rows[-1]))
    headings = ("policy", "load", "blocks", "truth", "bias", "width", *MEASURES, "not 1")
    caption = f"{len(seeds)} experiments a row; the intervals of the measures contain the truth"
    print_rows(f"Experiments against {STOCK}", headings, rows, caption)


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    loads = partial(numbers, read=number(0.01, 0.99, float))
    add("--policies", type=names, default=("fair", "srpt"), help="those of the policy's blocks")
    add("--loads", type=loads, default=(0.4, 0.55, 0.65), help="such as 0.5,0.8")
    add("--pairs", type=partial(numbers, read=number(MIN_PAIRS)), default=(10,), help="of blocks")
    add("--blocks", type=partial(numbers, read=number(10)), default=(240,), help="seconds")
    add("--repetitions", type=number(2), default=200, help="experiments of each case")
    add("--seed-start", type=number(0), default=1000)
    add("--work", type=Path, default=Path("experiments"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
