"""`parcae/Packing-v0`: DeepRM's cluster as a Gymnasium environment.

An episode is one sequence of rigid jobs, a step is one decision: which waiting job is placed next,
or that time passes. The packing world steps all episodes in one compiled call.

Source: DeepRM, section 3.2 (states, actions, rewards).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parcae.environments.adapters import (
    Array,
    Arrays,
    BoolArray,
    EpisodeEnv,
    EpisodeVectorEnv,
    checked_actions,
    checked_num_envs,
)
from parcae.environments.layout import BOUND, PackingFeature, WaitingFeature
from parcae.environments.settings import PackingSettings, read_packing
from parcae.rigid.kernels.stepping import mask_many
from parcae.rigid.kernels.views import draw_images
from parcae.rigid.layout import VOID, Packing, View, select
from parcae.rigid.world import PackingBatch, image_shape


class PackingEpisodes:
    """Episodes of the packing world, several side by side.

    Raises:
        ConfigError: invalid rates, capacities or numbers of jobs.
        WorkloadError: a job is longer than the horizon.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __init__(self, count: int, settings: PackingSettings) -> None:
        self.count = count
        self.settings = settings
        self.source = settings.source()
        self.config = config = self.source.config
        jobs = settings.jobs if settings.jobs is not None else self.source.draw([0])[0]
        # Raises now if a job cannot be placed.
        self.batch = PackingBatch([jobs] * count, config, num_jobs=settings.most_jobs)
        self.capacity, self.num_slots = jobs.capacity, config.num_slots
        self.seeds = [0] * count
        shape = image_shape(config, self.capacity) if settings.has_image else (0, 0)
        self._images = np.zeros((count, *shape), np.float32)
        self.action_space = spaces.Discrete(self.num_slots + 1)
        self.observation_space = spaces.Dict(
            {
                name: spaces.Box(
                    0, BOUND if name in ("jobs", "cluster") else 1, array.shape[1:], array.dtype
                )
                for name, array in self.observations().items()
            }
        )

    def state(self, row: int) -> Packing:
        """Return the tables of one cluster (views)."""
        return self.batch.state(row)

    def view(self, row: int) -> View:
        """Return what a policy observes of one cluster now; the next call overwrites it."""
        view: View = select(self.batch.show(), row)
        return view

    def start(self, rows: npt.NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Begin an episode in each of the given rows, which have one seed each."""
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            self.batch.put(row, self.source.draw([seed])[0])
            self.seeds[row] = seed

    def step(
        self, actions: Array, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], BoolArray, BoolArray]:
        """Place a job, or let time pass, in each of the given rows; see `Episodes.step`.

        An action is a job slot; `num_slots` lets time pass. The reward is minus the
        increase of the objective, times `reward_scale`.
        """
        chosen = checked_actions(actions, rows, self.action_space, self.count)[rows, 0]
        slots = np.full(self.count, VOID, np.int64)
        slots[rows] = np.where(chosen == self.num_slots, VOID, chosen)
        before = self.batch.costs(self.settings.cost)
        self.batch.step(slots)
        accrued = self.batch.costs(self.settings.cost)
        clock = self.batch.states.clock[:, 0]
        is_over = self.batch.is_over & np.isin(np.arange(self.count), rows)
        num_done = clock["num_finished"] + clock["num_dropped"]
        is_done = num_done == self.batch.sequence_tables.num_jobs[:, 0]
        rewards = -self.settings.reward_scale * (accrued - before)
        return rewards, is_over & is_done, is_over & ~is_done

    def observations(self) -> Arrays:
        """Return the observation of every episode in new arrays, each [count, ...]."""
        head = self.batch.show().head[:, 0]
        masks = np.zeros((self.count, self.num_slots + 1), np.int8)
        mask_many(self.batch.clusters, masks, 0, self.count)
        cluster = np.zeros((self.count, len(PackingFeature)), np.float32)
        cluster[:, PackingFeature.BACKLOG] = head["num_backlog"] / max(1, self.config.backlog_size)
        cluster[:, PackingFeature.PAUSE] = self._log_scaled(head["since_arrival"])
        shown: Arrays = {
            "jobs": self._waiting(),
            "free": (self.batch.states.free / self.capacity).astype(np.float32),
            "cluster": cluster,
            "action_mask": masks == 1,
        }
        if self.settings.has_image:
            draw_images(self.batch.clusters, self._images, 0, self.count)
            shown["image"] = self._images.copy()
        return shown

    def _waiting(self) -> Array:
        """Return the features of every job slot, float32[count, num_slots, features].

        The rows of the view are the occupied slots. The columns are those of `WaitingFeature`, then
        one for each resource.
        """
        cluster, row = np.nonzero(np.arange(self.num_slots) < self.batch.views.head["num_jobs"])
        seen = self.batch.views.jobs[cluster, row]
        demand = self.batch.views.demand[cluster, row] / self.capacity
        num_features = len(WaitingFeature) + len(self.capacity)
        features = np.zeros((self.count, self.num_slots, num_features), np.float32)
        features[cluster, seen["slot"]] = np.column_stack(
            [
                np.ones(len(row)),
                seen["can_start"],
                seen["estimate"] / self.config.horizon,
                self._log_scaled(seen["age"]),
                demand,
            ]
        )
        return features

    def _log_scaled(self, steps: Array) -> Array:
        """Return log(1 + steps / horizon), clipped at BOUND."""
        return np.minimum(np.log1p(steps / self.config.horizon), BOUND)

    def outcome(self, row: int) -> dict[str, float]:
        """Return the metrics of an episode that is over, in steps.

        For a job that has not finished, the time up to the end of the episode is used. Lost jobs
        are left out. The makespan begins with the first arrival.
        """
        run = self.batch.outcome(row)
        jobs, now = run.jobs, run.end
        clock = self.state(row).clock
        num_arrived, num_finished = int(clock["num_arrived"][0]), int(clock["num_finished"][0])
        num_dropped = int(run.is_dropped.sum())
        counts = (np.arange(len(jobs)) < num_arrived) & ~run.is_dropped
        end = np.where(run.finish < 0, now, np.minimum(run.finish, now))
        jct = (end - jobs.arrival)[counts]
        num_unfinished = len(jobs) - num_finished - num_dropped
        first = int(jobs.arrival[0]) if num_arrived else now
        # An episode goes on to the end of its window, also without jobs.
        last = now if num_unfinished else int(end[counts].max(initial=first))
        return {
            "seed": self.seeds[row],
            "mean_slowdown": float((jct / jobs.duration[counts]).mean()) if len(jct) else 1.0,
            "average_jct": float(jct.mean()) if len(jct) else 0.0,
            "makespan": last - first,
            "num_jobs": len(jobs),
            "num_unfinished": num_unfinished,
            "num_dropped": num_dropped,
            "num_decisions": run.num_decisions,
        }


class PackingEnv(EpisodeEnv):
    """`parcae/Packing-v0`; keyword arguments are those of `PackingSettings` and `PackingConfig`.

    Example: `gymnasium.make("parcae/Packing-v0", num_slots=10, objective="slowdown")`.
    """

    episodes: PackingEpisodes

    def __init__(self, *, render_mode: None = None, **settings: Any) -> None:
        super().__init__(PackingEpisodes(1, read_packing(settings)))


class PackingVectorEnv(EpisodeVectorEnv):
    """Several `parcae/Packing-v0` side by side.

    Example: `gymnasium.make_vec("parcae/Packing-v0", num_envs=4,
    vectorization_mode="vector_entry_point")`.
    """

    episodes: PackingEpisodes

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        episodes = PackingEpisodes(checked_num_envs(num_envs), read_packing(settings))
        super().__init__(episodes, autoreset_mode)
