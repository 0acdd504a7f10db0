"""Figure 15b: the time of a decision, and the time between scheduling events."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.cluster.decision import Policy
from parcae.evaluation.policies import resolve_policies
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contender, labels_of, named
from parcae.papers.learners import learned_contenders
from parcae.papers.pictures import cdf_panel, save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import JobSequence

FloatArray = npt.NDArray[np.float64]
#: Number of first decisions that are not counted, because the first calls load compiled code.
_WARM_UP = 5


@dataclass(frozen=True)
class Latencies:
    """The measurements of one run."""

    decision_ms: FloatArray
    interval_ms: FloatArray


def measure_latencies(
    sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int
) -> Latencies:
    """Step one run and time the policy's decisions.

    Scheduling events are the simulated times at which the policy has to decide.
    """
    simulator = Simulator(sequence, config, seed)
    simulator.start()
    decision_ms = list[float]()
    event_ms = list[int]()
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        event_ms.append(int(observation.now.clock_ms[0]))
        began = time.perf_counter()
        decision = policy.decide(observation)
        decision_ms.append((time.perf_counter() - began) * MS_PER_S)
        simulator.step(decision)
    # Several decisions can fall on one simulated time.
    moments = np.unique(np.array(event_ms, np.int64))
    return Latencies(
        np.array(decision_ms[_WARM_UP:] or decision_ms), np.diff(moments).astype(np.float64)
    )


def fig15b(request: StudyRequest) -> StudyResult:
    """Latency of a decision, compared with the time between scheduling events.

    Source: Decima, Figure 15b and section 7.4.
    """
    num_jobs = request.jobs(100, 1_000)
    scenario = Scenario(request.workload, request.config, request.stream, num_jobs)
    learned, notes = learned_contenders(request, scenario, ("decima",))
    latencies = _measure_all(request, scenario, learned)
    return StudyResult(
        "the latency of a decision and the time between scheduling events",
        "the latency of a decision is below 15 ms, on average about 50 times smaller than the "
        "interval between scheduling events (Figure 15b, sections 6.1 and 7.4)",
        (
            "policy",
            "mean latency (ms)",
            "p99 latency (ms)",
            "mean interval (ms)",
            "median interval (ms)",
            "interval / latency",
        ),
        [[label, *_row(entry)] for label, entry in latencies.items()],
        {
            label: {
                "latency_ms": _quantiles(entry.decision_ms),
                "interval_ms": _quantiles(entry.interval_ms),
            }
            for label, entry in latencies.items()
        },
        [
            f"one run of {num_jobs} jobs, arrivals {request.stream}, seed {request.first_seed}; "
            "latency is the wall time of `decide` on this machine, which varies with its load; the "
            "interval is the simulated time between scheduling events; at one event the policy may "
            "make several decisions",
            *notes,
        ],
        partial(save, partial(_draw, latencies), (7.5, 4.0)),
    )


def _measure_all(
    request: StudyRequest, scenario: Scenario, learned: list[Contender]
) -> dict[str, Latencies]:
    """The latencies of the learned policies, and of `fair`: the time of a trivial decision."""
    labels = labels_of([*named("fair"), *learned])
    resolved = resolve_policies(
        scenario.workload, list(labels), scenario.config, scenario.arrivals, scenario.num_jobs
    )
    seed = request.first_seed
    sequence = scenario.sequence(seed)
    policies = resolved.for_sequence(sequence, seed)
    latencies = {}
    for name, label in labels.items():
        request.say(f"timing the decisions of {label}")
        policy = cast(Policy, policies[name])
        latencies[label] = measure_latencies(sequence, policy, request.config, seed)
    return latencies


def _draw(latencies: dict[str, Latencies], figure: Any) -> None:
    samples = {f"latency of {label}": entry.decision_ms for label, entry in latencies.items()}
    samples |= {
        f"interval under {label}": np.maximum(entry.interval_ms, 1e-3)
        for label, entry in latencies.items()
    }
    axis = figure.subplots()
    cdf_panel(axis, samples, ("ms", "share"))
    axis.set_xscale("log")


def _row(entry: Latencies) -> list[str]:
    latency = float(entry.decision_ms.mean())
    interval = float(entry.interval_ms.mean()) if len(entry.interval_ms) else 0.0
    median = float(np.median(entry.interval_ms)) if len(entry.interval_ms) else 0.0
    p99 = float(np.percentile(entry.decision_ms, 99))
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
