"""Figure 15b: how long a decision takes, and how long the cluster waits for the next one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Policy
from parcae.evaluation.tuning import resolve_policies
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.studies.reproduce.learners import learned_contenders
from parcae.studies.reproduce.pictures import cdf_panel, save
from parcae.studies.reproduce.study import StudyRequest, StudyResult
from parcae.units import MS_PER_S
from parcae.workloads.arrivals import JobSequence

FloatArray = npt.NDArray[np.float64]
#: Decisions that are not counted: the first calls load compiled code.
_WARM_UP = 5


@dataclass(frozen=True)
class Latencies:
    """What one run measured.

    Args:
        decision_ms: wall time of every decision. interval_ms: simulated time between scheduling events.
    """

    decision_ms: FloatArray
    interval_ms: FloatArray


def measure_latencies(
    sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int
) -> Latencies:
    """Step a run and time the policy; scheduling events are the moments at which it is asked."""
    simulator = Simulator(sequence, config, seed)
    simulator.start()
    took = list[float]()
    asked = list[int]()
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        asked.append(int(observation.now.clock_ms[0]))
        began = time.perf_counter()
        decision = policy.decide(observation)
        took.append((time.perf_counter() - began) * MS_PER_S)
        simulator.step(decision)
    moments = np.unique(np.array(asked, np.int64))
    return Latencies(np.array(took[_WARM_UP:] or took), np.diff(moments).astype(np.float64))


def fig15b(request: StudyRequest) -> StudyResult:
    """Latency of a decision against the time between scheduling events.

    Source: Decima, Figure 15b and section 7.4.
    """
    num_jobs = request.jobs(100, 1_000)
    scenario = Scenario(request.workload, request.config, request.stream, num_jobs)
    learned, notes = learned_contenders(request, scenario, ("decima",))
    names = ["fair", *(contender.name for contender in learned)]
    policies = resolve_policies(
        request.workload, names, request.config, request.stream, num_jobs
    ).policies
    found: dict[str, Latencies] = {}
    for label, name in (
        ("fair", "fair"),
        *((contender.label, contender.name) for contender in learned),
    ):
        request.say(f"timing the decisions of {label}")
        found[label] = measure_latencies(
            scenario.sequence(request.first_seed),
            cast(Policy, policies[name]),
            request.config,
            request.first_seed,
        )
    rows = [[label, *_row(own)] for label, own in found.items()]
    return StudyResult(
        "decisions take far less time than passes between scheduling events",
        "the latency of a decision is below 15 ms, on average some 50 times smaller than the interval between scheduling events "
        "(Figure 15b, sections 6.1 and 7.4)",
        (
            "policy",
            "mean latency (ms)",
            "p99 latency (ms)",
            "mean interval (ms)",
            "median interval (ms)",
            "interval / latency",
        ),
        rows,
        {
            label: {
                "latency_ms": _quantiles(own.decision_ms),
                "interval_ms": _quantiles(own.interval_ms),
            }
            for label, own in found.items()
        },
        [
            f"one run of {num_jobs} jobs, arrivals {request.stream}, seed {request.first_seed}; latency is the wall time of "
            f"`decide` on this machine (it varies with its load), the interval is simulated time between moments at which the "
            f"policy is asked; a moment may hold several decisions",
            *notes,
        ],
        partial(save, partial(_draw, found), (7.5, 4.0)),
    )


def _draw(found: dict[str, Latencies], figure: Any) -> None:
    samples = {f"latency of {label}": own.decision_ms for label, own in found.items()}
    samples |= {
        f"interval under {label}": np.maximum(own.interval_ms, 1e-3) for label, own in found.items()
    }
    axis = figure.subplots()
    cdf_panel(axis, samples, ("ms", "share"))
    axis.set_xscale("log")


def _row(own: Latencies) -> list[str]:
    latency = float(own.decision_ms.mean())
    interval = float(own.interval_ms.mean()) if len(own.interval_ms) else 0.0
    median = float(np.median(own.interval_ms)) if len(own.interval_ms) else 0.0
    p99 = float(np.percentile(own.decision_ms, 99))
    return [
        f"{latency:.3f}",
        f"{p99:.3f}",
        f"{interval:,.0f}",
        f"{median:,.0f}",
        f"{interval / max(latency, 1e-9):,.0f}",
    ]


def _quantiles(values: FloatArray) -> dict[str, float]:
    if not len(values):
        return {}
    points = {f"p{p}": float(np.percentile(values, p)) for p in (5, 25, 50, 75, 95, 99)}
    return {"mean": float(values.mean()), **points}
