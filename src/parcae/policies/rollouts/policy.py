"""`RolloutPolicy`: tries decisions in rollouts of a base policy and makes the best."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parcae.cluster.decision import Decision
from parcae.cluster.kernels.tables import may_idle
from parcae.cluster.observation import Observation
from parcae.cluster.state import World, allocate
from parcae.policies.rollouts.candidates import candidates, mean_costs
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status, allocate_future
from parcae.simulation.kernels.rollouts import Rollouts
from parcae.simulation.tables import workload_tables
from parcae.workloads.job import Workload

_MOST_ARRIVALS = 64


@dataclass
class RolloutPolicy:
    name: str
    base: Any
    workload: Workload
    config: SimulationConfig
    mean_gap_ms: float = 0.0
    rounds: tuple[int, ...] = (4, 4, 8, 16)
    keep: float = 1.5
    accept: float = 1.0
    num_threads: int = 1
    most_candidates: int = 16
    end_share: float = 0.0
    least_s: float = 0.0
    decay: float = 0.0
    seed: int = 1
    _rows: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.tables = workload_tables(
            self.workload, self.config.durations, self.config.interpolation, World.EXECUTORS
        )
        weights = np.ones(len(self.workload.jobs)) if self.workload.weights is None else np.array(self.workload.weights)
        self.share = np.cumsum(weights / weights.sum())
        self.stats = {"decisions": 0, "asked": 0, "changed": 0, "rollouts": 0, "seconds": 0.0}

    def _allocate(self, observation: Observation) -> Rollouts:
        count = self.most_candidates * max(self.rounds)
        jobs = len(observation.jobs) + _MOST_ARRIVALS * (self.mean_gap_ms > 0)
        per_job = max(len(job.stages) for job in self.workload.jobs)
        edges = max(sum(len(s.parents) for s in job.stages) for job in self.workload.jobs)
        stages = len(observation.stages) + per_job * (jobs - len(observation.jobs))
        num_edges = len(observation.children) + edges * (jobs - len(observation.jobs))
        states = allocate(count, self.config.classes, jobs, stages, max(1, num_edges))
        futures = allocate_future(count, self.config.total_executors, jobs, stages, 0, 0)
        futures.events.moving_delay_ms[:] = self.config.moving_delay_ms
        futures.events.warmup_delay_ms[:] = self.config.warmup_delay_ms
        return Rollouts(
            states, futures, self.tables,
            np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64),
            np.zeros(count, np.uint64), np.zeros(count), np.zeros(count, np.int64),
            np.full(1, self.mean_gap_ms), np.zeros(1), np.zeros(1), np.zeros(1), self.share,
        )

    def decide(self, observation: Observation) -> Decision:
        base = self.base.decide(observation)
        self.stats["decisions"] += 1
        options = candidates(observation, base, may_idle=bool(may_idle(observation)))[: self.most_candidates]
        if len(options) == 1:
            return base
        start = time.thread_time()
        if self._rows is None or len(self._rows.states.jobs[0]) < len(observation.jobs):
            self._rows = self._allocate(observation)
        active = observation.active_jobs
        work = float(observation.jobs.remaining_ms[active].sum())
        self._rows.horizon_ms[0] = work / self.config.total_executors
        self._rows.end_after_ms[0] = max(self.least_s*1000*(self.end_share>0), self.end_share * self._rows.horizon_ms[0])
        self._rows.decay_ms[0] = self.decay * self._rows.horizon_ms[0]
        chosen = self._race(observation, options)
        self.stats["asked"] += 1
        self.stats["changed"] += chosen != 0
        self.stats["seconds"] += time.thread_time() - start
        return options[chosen]

    def _race(self, observation: Observation, options: list[Decision]) -> int:
        alive = list(range(len(options)))
        costs = np.zeros((len(options), 0))
        for count in self.rounds:
            new = np.full((len(options), count), np.nan)
            new[alive] = self._play(observation, [options[i] for i in alive], count)
            costs = np.concatenate([costs, new], axis=1)
            means, errors = mean_costs(costs[alive])
            best = int(np.argmin(means))
            limit = means[best] + self.keep * np.hypot(errors, errors[best])
            alive = [one for row, one in enumerate(alive) if row == 0 or means[row] <= limit[row]]
            if len(alive) == 1:
                return 0
        means, errors = mean_costs(costs[alive])
        best = int(np.argmin(means))
        if means[best] < -self.accept * errors[best]:
            return alive[best]
        return 0

    def _play(self, observation: Observation, options: list[Decision], count: int) -> np.ndarray:
        rows = self._rows
        seeds = []
        for _ in range(count):
            self.seed = (self.seed * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            seeds.append(self.seed)
        total = len(options) * count
        rows.stage[:total] = np.repeat([d.stage for d in options], count)
        rows.limit[:total] = np.repeat([d.limit for d in options], count)
        rows.executor_class[:total] = np.repeat([d.executor_class for d in options], count)
        rows.seed[:total] = np.tile(np.array(seeds, np.uint64), len(options))
        kernel = self.base.roll_out
        arguments = self.base.arguments_for(observation)
        kernel(rows, observation, *arguments, 0, total)
        self.stats["rollouts"] += total
        status = rows.status[:total]
        cost = rows.cost_ms[:total].copy()
        cost[(status != Status.COMPLETE) & (status != Status.ENDED)] = math.inf
        cost[status == Status.BAD_DECISION] = 1e30
        return np.nan_to_num(cost, posinf=1e30).reshape(len(options), count)
