"""What policies are shown, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError, WorkloadError
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import select
from parcae.rigid.sources import DrawnSource, MixedSource, RigidLogSource
from parcae.rigid.world import PackingBatch
from tests.packing.images import images_of

CONFIG = PackingConfig(num_slots=2, backlog_size=6, horizon=3)


def _batch(**settings):
    jobs = RigidJobs(
        "five", [0, 0, 0, 0, 0], [2, 1, 1, 3, 1], [[1, 2], [2, 1], [1, 1], [1, 1], [2, 2]], [2, 2]
    )
    batch = PackingBatch([jobs], CONFIG, **settings)
    batch.begin()
    return batch


def test_an_image_is_bookings_then_slots_for_each_resource_then_the_backlog():
    batch = _batch()
    batch.step(np.array([0]))  # two steps of 1 and 2 units; the third job takes its slot
    image = images_of(batch)[0]
    assert image.astype(int).tolist() == [
        # booked  slot 0  slot 1 | booked  slot 0  slot 1 | backlog of 2
        [1, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1],
        [1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]


def test_a_view_shows_what_becomes_free_as_the_scheduler_expects_it():
    jobs = RigidJobs(
        "log", [0, 0, 5], [100, 10, 5], [[3], [4], [8]], [8], estimate=[50, 20, 5], step="s"
    )
    batch = PackingBatch([jobs], PackingConfig.for_log(jobs), wants_profile=True)
    batch.begin()
    batch.step(np.array([0]))
    batch.step(np.array([0]))
    batch.step(np.array([-1]))  # to the arrival at 5
    view = select(batch.show(), 0)
    assert int(view.head["now"][0]) == 5
    assert view.points[:3].tolist() == [5, 20, 50]
    assert view.free_from[:3, 0].tolist() == [1, 5, 8]
    assert view.jobs["can_start"][0] == 0
    batch.step(np.array([-1]))  # the second job ends at 10, before it is expected to
    view = select(batch.show(), 0)
    assert view.points[:2].tolist() == [10, 50]
    assert view.free_from[:2, 0].tolist() == [5, 8]


def test_a_job_that_runs_longer_than_it_asked_is_expected_at_any_moment():
    jobs = RigidJobs("log", [0, 60], [100, 5], [[8], [8]], [8], estimate=[50, 5], step="s")
    batch = PackingBatch([jobs], PackingConfig.for_log(jobs), wants_profile=True)
    batch.begin()
    batch.step(np.array([0]))
    batch.step(np.array([-1]))
    view = select(batch.show(), 0)
    assert (int(view.head["now"][0]), view.points[:2].tolist()) == (60, [60, 61])


def test_steps_refuse_jobs_longer_than_the_horizon_and_durations_that_differ_from_their_estimates():
    with pytest.raises(
        WorkloadError, match="lasts 4 steps, longer than the horizon allows \\(3\\)"
    ):
        PackingBatch([RigidJobs("long", [0], [4], [[1, 1]], [2, 2])], CONFIG)
    with pytest.raises(WorkloadError, match="works only with exact times"):
        PackingBatch([RigidJobs("estimated", [0], [2], [[1, 1]], [2, 2], estimate=[3])], CONFIG)


def test_sources_draw_the_same_sequence_for_a_seed_and_mix_in_turn():
    drawn = DrawnSource(rates=(0.3, 0.9), window=40)
    first = drawn.draw([1000])[0]
    again = drawn.draw([1001, 1000])[1]
    assert first.arrival.tolist() == again.arrival.tolist()
    log = RigidJobs("log", range(50), [1] * 50, [[1]] * 50, [4], step="s")
    early = RigidLogSource(log.piece(0, 25), 10)
    late = RigidLogSource(log.piece(25, 50), 10)
    mixed = MixedSource((early, late))
    ids = [sequence.ids.min() for sequence in mixed.draw([1000, 1001, 1002, 1003])]
    assert [i >= 25 for i in ids] == [False, True, False, True]
    with pytest.raises(ConfigError, match="the same cluster settings"):
        MixedSource((early, drawn))
    with pytest.raises(ConfigError, match="pieces of 60 jobs cannot be taken from a log of 50"):
        RigidLogSource(log, 60)


def test_many_clusters_stepped_in_one_call_are_those_stepped_alone():
    source = DrawnSource(rates=(0.8,), window=20)
    together = PackingBatch(source.draw(range(1000, 1020)), source.config)
    alone = [PackingBatch([sequence], source.config) for sequence in together.sequences]
    rng = np.random.default_rng(0)
    for batch in (together, *alone):
        batch.begin()
    for _ in range(60):
        slots = rng.integers(-1, 10, 20)
        placed = together.step(slots)
        assert placed.tolist() == [
            int(batch.step(slots[row : row + 1])[0]) for row, batch in enumerate(alone)
        ]
    for row, batch in enumerate(alone):
        assert together.outcome(row).start.tolist() == batch.outcome(0).start.tolist()
