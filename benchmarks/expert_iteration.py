"""Expert iteration: a network that learns from what the rollouts of `plan` say, against the base.

    python -m benchmarks.expert_iteration tpch-decima.parcae -o judged

At some decisions of training runs, rollouts judge every candidate of `plan`: how much more time
jobs spend in the system than after the base's decision. A network of the candidates' features
learns the expected difference. The policy `student` takes the candidate with the least expectation,
if it is below that of the base's decision by a margin. Each further round is gathered under the
student of all rounds before. Margins are chosen on seeds from 5000, the student is compared with
its base on seeds from 1000. The folder keeps what was judged: a second call of the same kind goes
on from there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from parcae.base.errors import ConfigError
from parcae.base.files import replacing
from parcae.base.texts import MS_PER_S
from parcae.cluster.observation import Decision, Observation
from parcae.cluster.state import NO_STAGE
from parcae.decima.rollouts.playing import Clock, mean_differences
from parcae.decima.rollouts.policy import RolloutPolicy, RolloutRuns, Sampler
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.workload import TRAINING_SEED_START

Rows = npt.NDArray[np.float32]

_FIRST_SEED = 1_000
_FIRST_SELECTION_SEED = 5_000
#: Samples of every candidate of a judged decision.
_SAMPLES = 8
#: Share of the decisions that are judged: those next to each other look alike.
_JUDGED = 0.25
#: Rows of a judged decision; `plan` has no more candidates.
_MOST = 16
#: Differences are cut here. How bad a bad candidate is does not matter, but without a bound it is
#: all that the networks learn.
_LARGEST_S = 2.0
_LEAST_S = -10.0
#: Standard error in seconds above which a judgement counts for less.
_USUAL_ERROR_S = 1.0
#: Features are cut at this many standard deviations.
_LARGEST_FEATURE = 5.0
#: Share of the judged decisions, the last ones, that say when to stop learning.
_HELD_OUT = 0.1
_EPOCHS = 30
_BATCH = 256
_WIDTH = 256
_LEARNING_RATE = 3e-3
_WEIGHT_DECAY = 1e-2
#: Networks whose mean is the student's expectation.
_NETWORKS = 3
#: Margins in seconds that are compared on the selection runs.
_MARGINS_S = (0.1, 0.25, 0.5, 1.0)
#: The margin of the students under which further rounds are gathered.
_MARGIN_S = 0.25
_SELECTION_RUNS = 20


def describe(observation: Observation, options: Sequence[Decision]) -> Rows:
    """Features of every candidate: its own, and how they differ from those of the base's decision.

    Args:
        observation: the present observation.
        options: the candidates, the base's decision first.

    Returns:
        float32[options, features].
    """
    now = observation.now
    executors = int(now.num_executors[0])
    remaining_s = observation.jobs.remaining_ms[observation.active_jobs] / MS_PER_S
    common = [
        int(now.num_source[0]) / executors,
        int(now.num_idle[0]) / executors,
        len(remaining_s) / 10.0,
        np.log1p(remaining_s.sum() / executors),
        np.log1p(np.median(remaining_s)),
        int(now.num_open[0]) / 10.0,
    ]
    siblings = _schedulable_by_job(observation)
    own = np.array(
        [_own(observation, option, remaining_s, siblings) for option in options], np.float32
    )
    base = options[0]
    jobs = observation.stages.job
    relation = [
        [
            option.stage == base.stage,
            NO_STAGE not in (option.stage, base.stage) and jobs[option.stage] == jobs[base.stage],
        ]
        for option in options
    ]
    shared = np.tile(np.array(common, np.float32), (len(options), 1))
    return np.concatenate([shared, own, own - own[0], np.array(relation, np.float32)], axis=1)


def _schedulable_by_job(observation: Observation) -> dict[int, list[int]]:
    """The schedulable stages of every job that has some."""
    found: dict[int, list[int]] = {}
    for stage in observation.schedulable_stages():
        found.setdefault(int(observation.stages.job[stage]), []).append(stage)
    return found


def _own(
    observation: Observation, option: Decision, remaining_s: Any, siblings: dict[int, list[int]]
) -> list[float]:
    """Features of one candidate, those of idling being 0."""
    if option.stage == NO_STAGE:
        return [1.0] + [0.0] * 19
    now, stages = observation.now, observation.stages
    executors = int(now.num_executors[0])
    offered = int(now.num_source[0])
    stage = option.stage
    job = int(stages.job[stage])
    demand = observation.demand(stage)
    taken = min(option.limit, demand, offered)
    waiting = int(stages.num_tasks[stage] - stages.num_started[stage])
    waves = waiting / max(1, int(stages.num_bound[stage]) + taken)
    task_s = float(stages.task_ms[stage]) / MS_PER_S
    downstream_s = float(stages.downstream_ms[stage]) / MS_PER_S
    heaviest_s = max(float(stages.downstream_ms[s]) for s in siblings[job]) / MS_PER_S
    is_local = int(now.source_job[0]) == job
    supplied = int(observation.jobs.num_supplied[job]) + (0 if is_local else taken)
    job_s = float(observation.jobs.remaining_ms[job]) / MS_PER_S
    return [
        0.0,
        float(is_local),
        taken / executors,
        taken / offered,
        taken / max(1, demand),
        np.log1p(waiting),
        min(waves, 10.0),
        float(np.ceil(waves) - waves),
        np.log1p(task_s),
        np.log1p(np.ceil(waves) * task_s),
        np.log1p(downstream_s),
        downstream_s / max(heaviest_s, 1e-3),
        np.log1p(job_s),
        float(np.mean(remaining_s < job_s)),
        supplied / executors,
        np.log1p(job_s / max(1, supplied)),
        len(siblings[job]) / 5.0,
        int(observation.jobs.num_unstarted[job]) / 10.0,
        waiting * task_s / max(job_s, 1e-3),
        int(stages.num_tasks[stage] - stages.num_finished[stage] - waiting) / executors,
    ]


class Student:
    """What networks expect of candidates, in seconds of all jobs' time; below 0 is better."""

    def __init__(self, networks: Sequence[nn.Module], mean: Rows, scale: Rows) -> None:
        self.networks = networks
        self.mean = mean
        self.scale = scale

    def scaled(self, features: Rows) -> Rows:
        """What the networks see of the features."""
        deviations = (features - self.mean) / self.scale
        cut: Rows = np.clip(deviations, -_LARGEST_FEATURE, _LARGEST_FEATURE).astype(np.float32)
        return cut

    def expected_s(self, features: Rows) -> npt.NDArray[np.float64]:
        """The expected difference from the base's decision, float64[options]."""
        scaled = torch.from_numpy(self.scaled(features))
        with torch.inference_mode():
            scores = sum(network(scaled)[:, 0] for network in self.networks)
        values: npt.NDArray[np.float64] = scores.numpy().astype(np.float64) / len(self.networks)
        differences: npt.NDArray[np.float64] = values - values[0]
        return differences


@dataclass
class StudentPolicy:
    """Takes the base's decision, or the candidate that the student expects to be better.

    Args:
        name: name in tables.
        planner: `plan`; its base and its candidates are used.
        student: what candidates are expected to cost; None: the base's decision stands.
        margin_s: how much better a candidate must be.
    """

    name: str
    planner: RolloutPolicy
    student: Student | None
    margin_s: float = 0.0

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        options = self.planner.options(observation)
        return options[self.choice(observation, options)]

    def choice(self, observation: Observation, options: Sequence[Decision]) -> int:
        """The row of the candidate to take."""
        if self.student is None or len(options) == 1:
            return 0
        expected_s = self.student.expected_s(describe(observation, options))
        best = int(np.argmin(expected_s))
        return best if expected_s[best] < -self.margin_s else 0


@dataclass
class Judged:
    """Judged decisions.

    Args:
        features: float32[decisions, 16, features], 0 beyond a decision's candidates.
        mean_s: float32[decisions, 16], difference from the base's decision in seconds.
        error_s: float32[decisions, 16], its standard error.
        count: int64[decisions], candidates.
    """

    features: Rows
    mean_s: Rows
    error_s: Rows
    count: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.count)

    def save(self, path: Path) -> None:
        """Write the decisions to a file."""
        with replacing(path) as file:
            np.savez_compressed(file, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> Judged:
        """Read the decisions of a file."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**dict(arrays))

    @classmethod
    def joined(cls, parts: Sequence[Judged]) -> Judged:
        """The decisions of all parts."""
        names = ("features", "mean_s", "error_s", "count")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass
class Gathering:
    """A policy that judges some of its decisions.

    Args:
        policy: the policy that it follows.
        seed: which decisions are judged.
    """

    policy: StudentPolicy
    seed: int
    name: str = "gathering"
    judged: list[tuple[Rows, Rows, Rows]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        runs = self.policy.planner.runs
        self._runs = RolloutRuns(runs.workload, runs.config)

    def decide(self, observation: Observation) -> Decision:
        """Return the policy's decision; judge its candidates if it is this decision's turn."""
        options = self.policy.planner.options(observation)
        if len(options) > 1 and self._rng.random() < _JUDGED:
            mean_s, error_s = self._judgement(observation, options)
            self.judged.append((describe(observation, options), mean_s, error_s))
        return options[self.policy.choice(observation, options)]

    def _judgement(self, observation: Observation, options: list[Decision]) -> tuple[Rows, Rows]:
        """Mean difference of every candidate from the base's decision in s, standard errors."""
        runs = self._runs
        sampler = Sampler(runs, observation, options, self.policy.planner.player, Clock())
        costs = sampler(runs.present, list(range(len(options))), _SAMPLES)
        assert costs is not None
        means, errors = mean_differences(costs / MS_PER_S)
        return means.astype(np.float32), errors.astype(np.float32)


def padded(judged: Sequence[tuple[Rows, Rows, Rows]]) -> Judged:
    """Judged decisions as tables with a row for each candidate that there may be."""

    def tables(column: int) -> Rows:
        shape = (len(judged), _MOST, *judged[0][column].shape[1:])
        table = np.zeros(shape, np.float32)
        for row, one in enumerate(judged):
            table[row, : len(one[column])] = one[column]
        return table

    count = np.array([len(one[1]) for one in judged], np.int64)
    return Judged(tables(0), tables(1), tables(2), count)


def gather(world: ClusterWorld, policy: StudentPolicy, number: int, first_seed: int) -> Judged:
    """Judge a number of decisions of a policy's runs.

    Args:
        world: the cluster and its jobs.
        policy: the policy that plays the runs.
        number: decisions.
        first_seed: seed of the first run; the next runs have the next seeds.
    """
    judged: list[tuple[Rows, Rows, Rows]] = []
    began_s = time.perf_counter()
    seed = first_seed
    while len(judged) < number:
        gathering = Gathering(policy, seed)
        simulate(world.draw(seed), gathering, world.config, seed)
        judged += gathering.judged
        seed += 1
        left_s = (time.perf_counter() - began_s) * (number / max(1, len(judged)) - 1)
        print(f"{len(judged)} of {number} decisions, {max(0.0, left_s):.0f} s left", flush=True)
    return padded(judged[:number])


def _loss(network: nn.Module, rows: list[torch.Tensor]) -> torch.Tensor:
    """Weighted mean square of what the network says wrong of each candidate."""
    features, mean_s, weight = rows
    scores = network(features)[..., 0]
    loss: torch.Tensor = (weight * (scores - scores[:, :1] - mean_s) ** 2).sum() / weight.sum()
    return loss


def _fitted(learned: list[torch.Tensor], held_out: list[torch.Tensor], seed: int) -> nn.Module:
    """A network, as it was when it was best on the decisions held out."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(learned[0].shape[-1], _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, 1),
    )
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS)
    best = (float("inf"), network.state_dict())
    for _ in range(_EPOCHS):
        order = torch.randperm(len(learned[0]))
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(_loss(network, [table[rows] for table in learned]))
            optimizer.step()
        schedule.step()
        with torch.inference_mode():
            loss = float(_loss(network, held_out))
        if loss < best[0]:
            best = (loss, {name: w.clone() for name, w in network.state_dict().items()})
    network.load_state_dict(best[1])
    return network


def learn(judged: Judged) -> Student:
    """Learn what candidates are expected to cost."""
    is_candidate = np.arange(_MOST) < judged.count[:, None]
    known = judged.features[is_candidate]
    student = Student([], known.mean(axis=0), known.std(axis=0) + 1e-3)
    weight = is_candidate / (judged.error_s**2 + _USUAL_ERROR_S**2)
    weight[:, 0] = 0.0
    tables = [
        torch.from_numpy(table.astype(np.float32))
        for table in (
            student.scaled(judged.features),
            np.clip(judged.mean_s, _LEAST_S, _LARGEST_S),
            weight,
        )
    ]
    first_held_out = round(len(judged) * (1 - _HELD_OUT))
    learned = [table[:first_held_out] for table in tables]
    held_out = [table[first_held_out:] for table in tables]
    student.networks = [_fitted(learned, held_out, seed) for seed in range(_NETWORKS)]
    return student


def with_best_margin(world: ClusterWorld, policy: StudentPolicy) -> StudentPolicy:
    """The policy with the margin that is best on the selection runs."""
    policies = [
        StudentPolicy(f"student, margin {margin_s:g} s", policy.planner, policy.student, margin_s)
        for margin_s in _MARGINS_S
    ]
    result = compare(
        world,
        [policy.planner.base, *policies],
        num_seeds=_SELECTION_RUNS,
        seed_start=_FIRST_SELECTION_SEED,
        processes=1,
    )
    ratios = [one.ratio_to_first for one in result.policies[1:]]
    for one, ratio in zip(policies, ratios, strict=True):
        print(f"{one.name}: {ratio.mean:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] of the base")
    return policies[int(np.argmin([ratio.mean for ratio in ratios]))]


def keep_kind(kind: dict[str, Any], folder: Path) -> None:
    """Write into the folder which decisions are judged there, or check it.

    Raises:
        ConfigError: the folder has judged decisions of another kind.
    """
    path = folder / "kind.json"
    kept = json.loads(path.read_bytes()) if path.exists() else None
    if kept is None and not any(folder.glob("round-*.npz")):
        with replacing(path) as file:
            file.write(json.dumps(kind, indent=2).encode() + b"\n")
    elif kept != kind:
        raise ConfigError(
            f"{folder}: its decisions were judged for {kept or 'an unknown base'}, not for {kind}: "
            "use the same options, or another folder"
        )


def main() -> None:
    """Judge decisions, learn from them, compare, and print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", help="name or file of a workload")
    parser.add_argument("--base", default="corrector:batch", help="the policy that is improved")
    parser.add_argument("--arrivals", default="batch", help="how jobs arrive")
    parser.add_argument("--jobs", type=int, default=20, help="number of jobs in a run")
    parser.add_argument("--decisions", type=int, default=40_000, help="decisions to judge")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of gathering and learning")
    parser.add_argument("--seeds", type=int, default=100, help="number of runs that judge")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder")
    options = parser.parse_args()
    config = SimulationConfig()
    workload = load_workload(options.workload)
    planner = named_policy(f"plan:{options.base}", workload, config, options.arrivals)
    assert isinstance(planner, RolloutPolicy)
    world = ClusterWorld(workload, config, options.arrivals, options.jobs)
    options.output.mkdir(parents=True, exist_ok=True)
    names = ("base", "arrivals", "jobs", "decisions", "rounds")
    kind = {name: getattr(options, name) for name in names}
    keep_kind({"workload": fingerprint(workload), **kind}, options.output)
    policy = StudentPolicy("base", planner, None)
    parts: list[Judged] = []
    for number in range(options.rounds):
        path = options.output / f"round-{number}.npz"
        if not path.exists():
            if parts:
                student = learn(Judged.joined(parts))
                policy = StudentPolicy("student", planner, student, _MARGIN_S)
            wanted = options.decisions // options.rounds
            first_seed = TRAINING_SEED_START + 10_000 * number
            gather(world, policy, wanted, first_seed).save(path)
        parts.append(Judged.load(path))
    student = learn(Judged.joined(parts))
    policy = with_best_margin(world, StudentPolicy("student", planner, student))
    result = compare(
        world,
        [planner.base, policy],
        num_seeds=options.seeds,
        seed_start=_FIRST_SEED,
        processes=1,
    )
    ratio = result.policies[1].ratio_to_first
    print(f"{policy.name}: {ratio.mean:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] of {options.base}")
    numbers = {
        "base": options.base,
        "arrivals": options.arrivals,
        "judged decisions": sum(map(len, parts)),
        "runs": options.seeds,
        "policy": policy.name,
        "ratio": [ratio.mean, ratio.low, ratio.high],
    }
    with replacing(options.output / "result.json") as file:
        file.write(json.dumps(numbers, indent=2).encode() + b"\n")


if __name__ == "__main__":
    main()
