"""One verdict for a policy of anybody's: held-back seeds, shifts, users, time, determinism.

The seeds are drawn after the policy has been named, so that nothing can have been fitted to them.
A policy of one's own runs in a process of its own (`parcae.evaluation.apart`). All others contain
no code: a formula is data for a kernel of Parcae, a checkpoint is its weights.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from parcae.base.errors import InputError, PolicyError
from parcae.base.extensions import is_importable, is_reference
from parcae.base.texts import plain
from parcae.cluster.orders import Planner
from parcae.cluster.trace import NOT_COMPLETED
from parcae.evaluation.apart import Allowance, PolicyApart
from parcae.evaluation.benchmark import answer_ms, begin_run
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.policies import check_seeds
from parcae.evaluation.statistics import UNKNOWN, Estimate, with_interval
from parcae.evaluation.who_pays import MUCH_LATER, by_group
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.names import parse_name
from parcae.policies.own import AnyPolicy
from parcae.policies.registry import find
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.workload import TUNING_SEED_START

#: What every policy is held against.
BASELINE = "fair"
#: A shift is played on a quarter of the seeds, but on at least so many.
_FEWEST_SEEDS = 2
#: A decision that takes longer would hold up a live cluster.
_SLOW_MS = 20.0
#: The load of a shift, and the one where the load is that already.
_HIGH_LOAD, _LOW_LOAD = "load:0.95", "load:0.6"


@dataclass(frozen=True)
class Judgement:
    """What is found of one policy.

    Args:
        policy: its name.
        refused: why it was not judged; "" if it was.
        ratio: the mean completion time / that under `BASELINE`, on held-back seeds.
        later_share: share of the jobs that end more than 5% later than under it.
        shifts: the same ratio, by what is different.
        worst_user: the `user` who is worst off, and the `ratio` of the mean time to that under
            `user-fair`; None without users.
        open_mean, open_most: jobs in the system, the mean over time and the most at once.
        decision_ms: the `median` time of a plan or decision, and the `longest` after the first;
            None for a policy that only plays whole runs.
        is_deterministic: whether the same seed gave the same run again.
    """

    policy: str
    refused: str = ""
    ratio: Estimate = UNKNOWN
    later_share: float = 0.0
    shifts: Mapping[str, Estimate] = field(default_factory=dict)
    worst_user: Mapping[str, Any] | None = None
    open_mean: float = 0.0
    open_most: float = 0.0
    decision_ms: Mapping[str, float] | None = None
    is_deterministic: bool = True

    @property
    def objections(self) -> list[str]:
        """What speaks against the policy, in sentences."""
        if self.refused:
            return [self.refused]
        said = []
        if not self.is_deterministic:
            said.append("the same seed gives another run the second time")
        if not self.ratio.high < 1:
            said.append(f"not surely better than {BASELINE}: {with_interval(self.ratio)}")
        for shift, ratio in self.shifts.items():
            if ratio.mean > 1:
                said.append(f"worse than {BASELINE} with {shift}: {with_interval(ratio)}")
        user = self.worst_user
        if user is not None and user["ratio"] > MUCH_LATER:
            said.append(f"{user['user']} waits {user['ratio']:.2f} times as long as in user-fair")
        if self.decision_ms is not None and self.decision_ms["median"] > _SLOW_MS:
            said.append(f"a decision takes {self.decision_ms['median']:.0f} ms")
        return said

    @property
    def word(self) -> str:
        """It is "refused", has "doubts", or is "good"."""
        return "refused" if self.refused else "doubts" if self.objections else "good"

    def to_json(self) -> dict[str, Any]:
        """The fields with the verdict and the objections, as plain JSON."""
        said = {"verdict": self.word, "objections": self.objections}
        return plain({**vars(self), **said})  # type: ignore[no-any-return]


def judge(
    world: ClusterWorld,
    policies: Sequence[str],
    *,
    num_seeds: int,
    seed_start: int | None,
    allowance: Allowance,
    progress: Callable[[int, int], None],
) -> tuple[int, list[Judgement]]:
    """Judge policies of the world of cores, each against `BASELINE`.

    A policy that is none, or fails, is refused. Without `seed_start` the first seed is drawn, so
    that no policy can know it. Returns it, and the verdicts in the order of the policies.
    """
    first = secrets.randbelow(TUNING_SEED_START >> 1) if seed_start is None else seed_start
    check_seeds(first, num_seeds)
    found = dict[str, Judgement | None].fromkeys(policies)
    known: dict[str, AnyPolicy] = {}
    strangers = []
    for name in found:
        try:
            if _is_strangers(name):
                strangers.append(name)
            else:
                known[name] = world.resolve([name]).policies[name]
        except KeyError:
            found[name] = Judgement(name, "an oracle knows what is to come")
        except (InputError, OSError) as error:
            found[name] = Judgement(name, str(error))
    few = max(_FEWEST_SEEDS, num_seeds // 4)
    runs = {"": (world, num_seeds), **{what: (one, few) for what, one in _shifts(world).items()}}
    done = 0

    def compared(what: str, of: Sequence[AnyPolicy]) -> Comparison:
        nonlocal done
        setting, count = runs[what]
        # A policy in another process answers to this one only.
        processes = None if all(hasattr(one, "play") for one in of) else 1
        begin = {"num_seeds": count, "seed_start": first, "processes": processes}
        done += 1
        progress(done, len(runs) * (len(strangers) + bool(known)))
        return compare(setting, [BASELINE, *of], **begin)  # type: ignore[arg-type]

    def judged(some: Mapping[str, AnyPolicy]) -> None:
        others = [policy for name, policy in some.items() if name != BASELINE]
        played = {what: compared(what, others) for what in runs}
        names = [BASELINE, *(name for name in some if name != BASELINE)]
        for name, policy in some.items():
            found[name] = _judged(name, names.index(name), played, policy, first)

    if known:
        judged(known)
    for name in strangers:
        try:
            with PolicyApart(name, [job.name for job in world.workload.jobs], allowance) as apart:
                judged({name: apart})
        except InputError as error:
            found[name] = Judgement(name, str(error))
    return first, [one for one in found.values() if one is not None]


def _is_strangers(text: str) -> bool:
    """Whether a policy is code of one's own.

    Raises:
        PolicyError: it is, with additions, which need its whole runs; or a network of one's own.
    """
    name = parse_name(text)
    if name.is_checkpoint and read_checkpoint(Path(name.name)).kind == "module":
        raise PolicyError(
            f"policy {text!r} is a network of one's own, whose module would run in this process: "
            "compare it (`parcae compare`)"
        )
    is_code = find(name, "cores") is None and is_reference(name.name) and is_importable(name.word)
    if is_code and text != name.name:
        raise PolicyError(f"policy {text!r} is judged without additions: write {name.name!r}")
    return is_code


def _shifts(world: ClusterWorld) -> dict[str, ClusterWorld]:
    """The world with one thing different, by what that is; policies stay made for it as it is."""
    jobs, config = world.workload, world.config
    usual = jobs.weights or (1.0,) * len(jobs.jobs)
    larger = [often * max(1.0, job.work_ms) for often, job in zip(usual, jobs.jobs, strict=True)]
    another = _LOW_LOAD if world.arrivals == _HIGH_LOAD else _HIGH_LOAD
    errs = config.model_copy(update={"estimate_error": 1.0})
    closed = f"sessions:{max(2, config.total_executors // 4)}"
    found = {
        "another load": replace(world, arrivals=another),
        "larger jobs": replace(world, workload=replace(jobs, weights=tuple(larger))),
        "wrong estimates": replace(world, config=errs),
        "sessions": replace(world, arrivals=closed),
    }
    if world.arrivals in ("recorded", "sessions"):
        del found["larger jobs"]  # these are the log's own jobs, each once
    if world.arrivals.startswith("sessions"):
        del found["sessions"]
    return found


def _judged(
    name: str, column: int, played: Mapping[str, Comparison], policy: AnyPolicy, seed: int
) -> Judgement:
    """The verdict on a policy from comparisons, and from one run that is played again."""
    held_back = played[""]
    result = held_back.policies[column]
    is_same_run = (pl.col("seed") == seed) & (pl.col("column") == column)
    ends = held_back.jobs.filter(is_same_run).sort("position")["completion_ms"]
    again, times_ms = _play_again(held_back.world, policy, seed)
    beside_first = held_back.jobs.filter(pl.col("column").is_in([0, column]))
    users: list[dict[str, Any]] = [
        {"user": one.name, "ratio": one.to_user_fair}
        for one in by_group(beside_first, "user", [])
        if one.column == column and one.to_user_fair is not None
    ]
    times = np.array(times_ms[1:] or times_ms)
    return Judgement(
        name,
        ratio=result.ratio_to_first,
        later_share=result.estimates["later_than_first_share"].mean,
        shifts={what: one.policies[column].ratio_to_first for what, one in played.items() if what},
        worst_user=max(users, key=lambda user: user["ratio"], default=None),
        open_mean=result.numbers["open_mean"],
        open_most=result.numbers["open_most"],
        decision_ms={"median": float(np.median(times)), "longest": float(times.max())}
        if times.size
        else None,
        is_deterministic=ends.fill_null(NOT_COMPLETED).to_list() == again,
    )


def _play_again(world: ClusterWorld, policy: AnyPolicy, seed: int) -> tuple[list[int], list[float]]:
    """When the jobs of a run end, and the milliseconds of every answer where it can be asked."""
    sequence = world.draw(seed)
    times_ms: list[float] = []
    if not isinstance(policy, Planner) and not hasattr(policy, "decide"):
        return world.run(sequence, policy, seed).completion_ms.tolist(), times_ms
    simulator = Simulator(sequence, world.config, seed)
    answers = begin_run(simulator, policy)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        times_ms.append(answer_ms(simulator, answers))
    return simulator.trace(policy.name).completion_ms.tolist(), times_ms
