"""`parcae spark fidelity --cores 8,16,24`: holds what `parcae size` says against a real Spark.

A profile of the jobs as this cluster runs them is written: their durations, with the overhead of a
task. What `parcae size` says about it at each number of cores is the prediction. Then a real Spark,
which declares as many cores, runs the same jobs at the same times, with tasks that sleep for the
durations of the predicted runs.

Results of Spark are kept in the work folder as soon as an application ends. A command that was
stopped goes on there.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.evaluation.compare import Comparison
from parcae.evaluation.sizing import Question, SizeResult, play_at, results_at
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    ratio_estimate,
)
from parcae.policies.orders.catalog import make_cores_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.spark.demo import START_S, THROUGH_SERVICE, content_of, hash_of
from parcae.spark.fidelity import (
    ClusterCosts,
    FidelityConfig,
    MeasuredCluster,
    Progress,
    costly_workload,
    slept,
)
from parcae.spark.home import SparkHome
from parcae.spark.mixes import mix_json, warm_workload
from parcae.spark.tpch_plan import policy_file_name
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.arrivals import ArrivalProcess
from parcae.workloads.job import Workload

FloatArray = npt.NDArray[np.float64]
#: So many mixes run in one Spark application, and are lost if the command is stopped.
_MIXES_PER_APPLICATION = 2


@dataclass(frozen=True)
class SizeError:
    """What `parcae size` says about a policy at a size, beside what a real Spark took.

    A relative error is simulated / real - 1: negative where Spark took longer.
    """

    predicted: SizeResult
    real_average_s: Estimate
    real_p95_s: Estimate
    average_error: Estimate
    p95_error: Estimate
    job_error: Estimate

    def to_json(self) -> dict[str, Any]:
        """The fields by name; estimates as {"mean":, "ci95": [low, high]}."""
        return {name: value.to_json() for name, value in vars(self).items()}


@dataclass(frozen=True)
class SizingFidelity:
    """The errors of `parcae size` at every size and policy."""

    config: FidelityConfig
    question: Question
    profile: Path
    costs: ClusterCosts
    errors: tuple[SizeError, ...]
    spark_version: str

    @cached_property
    def size_command(self) -> str:
        """The command that prints the predictions."""
        question = self.question
        sizes = ",".join(map(str, question.cores))
        return (
            f"parcae size {shlex.quote(str(self.profile))} --cores {sizes} "
            f"--policies {shlex.quote(','.join(question.policies))} "
            f"--arrivals {question.arrivals} --jobs {question.num_jobs} "
            f"--seeds {question.num_seeds} --seed-start {question.seed_start}"
        )

    def load(self, cores: int) -> float:
        """Work that arrives / capacity of the cores; infinite for a batch."""
        process = ArrivalProcess.parse(self.question.drawn_arrivals)
        if process.kind == "batch":
            return math.inf
        work_ms = self.question.workload.expected_work_ms(runs_vary=True)
        return work_ms / (process.value * cores)

    def to_json(self) -> dict[str, Any]:
        """{"errors": [...], "costs_ms":, "settings":, "size":, "size_command":, "spark":}"""
        return {
            "errors": [error.to_json() for error in self.errors],
            "costs_ms": asdict(self.costs),
            "settings": asdict(self.config),
            "size": self.question.to_json(),
            "size_command": self.size_command,
            "spark": self.spark_version,
            "method": METHODS[DEFAULT_METHOD],
        }


def run_sizing_fidelity(
    config: FidelityConfig,
    cores: tuple[int, ...],
    spark: SparkHome,
    jar: Path,
    work: Path,
    progress: Progress = print,
) -> SizingFidelity:
    """Measure the cluster's overheads, predict by `parcae size`, run on Spark, and compare.

    Args:
        config: the settings; `cores` is not used, and `alone` neither. A load in `arrivals` is
            that of the smallest size: the same jobs arrive at all sizes.
        cores: the sizes, ascending.
        spark: which Spark.
        jar: the plugin's jar.
        work: folder for results and logs; what a stopped command left there is used.
        progress: called with a line of text at every step.

    Raises:
        SparkFailedError: Spark ended with an error.
        ConfigError: a setting is invalid.
        InputError: a policy or the workload is unknown.
    """
    work.mkdir(parents=True, exist_ok=True)
    cluster = MeasuredCluster(config, spark, jar, work)
    warm = warm_workload(load_workload(config.workload), config.time_scale)
    cluster.check_policies(warm)
    # The costs change durations, which no check looks at; they take half a minute.
    _question(config, cores, warm).check()
    costs = _costs(cluster, warm, progress)
    profile = work / "profile.parcae"
    write_workload(costly_workload(warm, costs), profile)
    question = _question(config, cores, load_workload(str(profile)))
    real = _RealRuns(cluster, question, sleeping_mixes(question, costs), progress)
    errors = tuple(error for size in cores for error in _errors_at(size, real))
    return SizingFidelity(config, question, profile, costs, errors, spark.version)


def _costs(cluster: MeasuredCluster, warm: Workload, progress: Progress) -> ClusterCosts:
    """The overheads of the cluster; measured once for a work folder, as all its runs need them."""
    file = cluster.work / f"costs-{cluster.spark.version}-{cluster.jar.stem}.json"
    if not file.exists():
        progress("measuring the overheads of the cluster: about half a minute")
        write_text(file, json.dumps(asdict(cluster.costs(warm))))
    costs = ClusterCosts(**json.loads(file.read_text()))
    progress(", ".join(f"{name} {value:.1f} ms" for name, value in asdict(costs).items()))
    return costs


def _question(config: FidelityConfig, cores: tuple[int, ...], workload: Workload) -> Question:
    """The question to `parcae size` about a workload."""
    process = ArrivalProcess.parse(config.arrivals)
    arrivals = config.arrivals
    if process.kind == "load":
        arrivals = f"poisson:{process.mean_gap_ms(workload, cores[0], runs_vary=True):.0f}ms"
    return Question(
        workload,
        cores,
        tuple(policy.removeprefix(THROUGH_SERVICE) for policy in config.policies),
        arrivals=arrivals,
        num_jobs=config.num_jobs,
        num_seeds=config.seeds,
        seed_start=config.seed_start,
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
    policy = make_cores_policy("fair", question.workload, config)
    mixes = []
    for seed in range(question.seed_start, question.seed_start + question.num_seeds):
        sequence = question.draw(seed)
        trace = simulate(sequence, policy, config, seed, record=True)
        mixes.append(mix_json(sequence, slept(trace, costs)))
    return mixes


@dataclass(frozen=True)
class _RealRuns:
    """The mixes on a real Spark."""

    cluster: MeasuredCluster
    question: Question
    mixes: list[dict[str, Any]]
    progress: Progress

    def jct_ms(self, policy: str, cores: int) -> list[FloatArray]:
        """Completion times of the jobs of every mix; runs that are not in the folder run now."""
        found = list[FloatArray]()
        for first in range(0, len(self.mixes), _MIXES_PER_APPLICATION):
            found += self._application(policy, cores, first)
        return found

    def _application(self, policy: str, cores: int, first: int) -> list[FloatArray]:
        """The mixes of one Spark application, from number `first` on."""
        mixes = self.mixes[first : first + _MIXES_PER_APPLICATION]
        seed = self.question.seed_start + first
        name = f"{policy_file_name(policy)}-{cores}-cores-{seed}"
        file = self.cluster.work / f"{name}-{_hash(policy, mixes, self.cluster)}.json"
        if not file.exists():
            self.progress(f"{name}: {len(mixes)} mixes, about {_seconds(mixes, cores):.0f} s")
            done = self.cluster.replay(name, policy, self.question.workload, mixes, cores)
            times = [(finished - submitted).tolist() for submitted, finished in done]
            write_text(file, json.dumps(times))
        return [np.array(times, np.float64) for times in json.loads(file.read_text())]


def _errors_at(cores: int, real: _RealRuns) -> Iterator[SizeError]:
    """The errors of every policy at a size."""
    predicted = play_at(real.question, cores)
    for column, result in enumerate(results_at(real.question, predicted, cores)):
        jct_ms = real.jct_ms(real.cluster.config.policies[column], cores)
        error = _error(predicted, column, result, jct_ms)
        real.progress(_line(error))
        yield error


def _hash(policy: str, mixes: Sequence[dict[str, Any]], cluster: MeasuredCluster) -> str:
    """A hash of what decides the results of an application, besides its name."""
    return hash_of(mixes, cluster.spark.version, cluster.jar.name, *content_of(policy))


def _seconds(mixes: Sequence[dict[str, Any]], cores: int) -> float:
    """How long an application takes, roughly: its start, the arrivals, the work of a few jobs."""
    spans_ms = [mix["jobs"][-1]["arrival_ms"] for mix in mixes]
    work_ms = [
        sum(sum(stage["sleep_ms"]) for job in mix["jobs"] for stage in job["stages"])
        for mix in mixes
    ]
    tails_ms = [
        2 * work / (len(mix["jobs"]) * cores) for work, mix in zip(work_ms, mixes, strict=True)
    ]
    return START_S + float(sum(spans_ms) + sum(tails_ms)) / MS_PER_S


def _error(
    predicted: Comparison, column: int, result: SizeResult, real_ms: Sequence[FloatArray]
) -> SizeError:
    """The errors of a policy at a size."""
    simulated_ms = [run.jct_ms[column].astype(np.float64) for run in predicted.runs]
    average_ms = _means(simulated_ms), _means(real_ms)
    p95_ms = _p95s(simulated_ms), _p95s(real_ms)
    pairs = zip(simulated_ms, real_ms, strict=True)
    of_jobs = [float(np.abs(simulated / real - 1).mean()) for simulated, real in pairs]
    return SizeError(
        result,
        mean_estimate(average_ms[1] / MS_PER_S),
        mean_estimate(p95_ms[1] / MS_PER_S),
        _relative(*average_ms),
        _relative(*p95_ms),
        mean_estimate(of_jobs),
    )


def _means(runs_ms: Sequence[FloatArray]) -> FloatArray:
    return np.array([run_ms.mean() for run_ms in runs_ms])


def _p95s(runs_ms: Sequence[FloatArray]) -> FloatArray:
    return np.array([np.percentile(run_ms, 95) for run_ms in runs_ms])


def _relative(simulated: FloatArray, real: FloatArray) -> Estimate:
    """Relative error of a mean over mixes: simulated / real - 1."""
    found = ratio_estimate(simulated, real)
    return Estimate(found.mean - 1, found.low - 1, found.high - 1)


def _line(error: SizeError) -> str:
    result = error.predicted
    return (
        f"{result.policy}, {result.cores} cores: average {result.average_s.mean:.1f} s simulated, "
        f"{error.real_average_s.mean:.1f} s on Spark ({error.average_error.mean:+.1%})"
    )
