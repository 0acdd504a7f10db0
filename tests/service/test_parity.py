"""Policies see the same observations in the service as in the simulator, bit by bit.

The jobs and task durations of a simulated run go to the service as encoded messages. The client
starts tasks by the orders that it receives, in simulated time. If one order or one field of a table
differed, the two runs would diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from parcae.cluster.state import ClusterState
from parcae.service.jobs import DurationModel
from parcae.service.live_tables import LiveSettings
from parcae.service.mirror import Mirror
from parcae.service.policies import LivePolicy, policies_for
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.service.tables import FIRST_ROOM, Room
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.cluster.invariants import check_invariants
from tests.conftest import made_up
from tests.service.speaking import Wire, service_of

_TPCH = load_workload("tpch")
_SYNTHETIC = made_up(20, 8.0)
#: What is kept of a cluster's tables at a plan: all that policies read, and the orders in force.
_NOW = (
    "clock_ms", "num_executors", "num_jobs", "num_active", "num_open", "num_schedulable",
    "num_idle", "num_revealed", "has_limits", "is_corrected", "guess_ms", "tier_unit_ms", "job_ms",
)  # fmt: skip
_JOBS_SKIPPED = {"stage_start", "num_granted", "num_moves", "account"}
#: `serial` breaks ties between task sets, which a live Spark does itself.
_STAGES_SKIPPED = {"job", "child_start", "selected_round", "serial"}


@dataclass
class Snapshot:
    """What a policy saw at a plan, by job in order of arrival, whatever the rows."""

    now: dict[str, Any]
    jobs: list[dict[str, Any]]

    @staticmethod
    def of(state: ClusterState) -> Snapshot:
        now = {name: state.now[name][0].item() for name in _NOW}
        rows = state.active[: int(state.now.num_active[0])].tolist()
        kept = _columns(state.jobs, _JOBS_SKIPPED)[rows].tolist()
        jobs = []
        for row, fields in zip(rows, kept, strict=True):
            own = _stages_of(state, row)
            own["fields"] = fields
            own["order"] = state.job_orders[row].tolist()
            if state.now.keeps_accounts[0]:
                account = state.accounts[state.jobs.account[row]]
                own["account"] = (float(account.received_ms), float(account.split_ms))
            jobs.append(own)
        return Snapshot(now, jobs)


def _columns(table: np.ndarray, skipped: set[str]) -> np.ndarray:
    """A view of a table's rows without some of their fields."""
    return table.view(np.ndarray)[[name for name in table.dtype.names if name not in skipped]]


def _stages_of(state: ClusterState, row: int) -> dict[str, Any]:
    """The stages of a job, their orders, and their children by number within the job."""
    job = state.jobs.view(np.ndarray)[["stage_start", "num_stages"]][row]
    first, count = job.item()
    own = slice(first, first + count)
    links = state.stages.view(np.ndarray)[["child_start", "num_children"]][own].tolist()
    return {
        "stages": _columns(state.stages, _STAGES_SKIPPED)[own].tolist(),
        "stage_orders": state.stage_orders[own].tolist(),
        "children": [
            [child - first for child in state.children[start : start + number].tolist()]
            for start, number in links
        ],
    }


@dataclass
class Watched(Mirror):
    """A mirror that follows the simulator and keeps what its policy sees."""

    seen: list[Snapshot] = field(default_factory=list)

    def make_plan(self) -> None:
        self.seen.append(Snapshot.of(self.state))
        super().make_plan()


def simulated(
    sequence: JobSequence, live: LivePolicy, config: SimulationConfig, seed: int
) -> tuple[Simulator, list[Snapshot]]:
    """A run, and what the policy saw at every plan."""
    simulator = Simulator(sequence, config, seed, record=True)
    if live.accounts is not None:
        live.accounts.keep(simulator.state.now)
    seen = []
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        if simulator.state.now.num_planned[0] == 0:
            seen.append(Snapshot.of(simulator.state))
        if hasattr(live.policy, "plan"):
            simulator.follow(live.policy.plan(simulator.observe()))
        else:
            simulator.step(live.policy.decide(simulator.observe()))
    return simulator, seen


def served(
    simulator: Simulator,
    live: LivePolicy,
    duration_model: DurationModel,
    *,
    room: Room = FIRST_ROOM,
    checks: bool = False,
) -> tuple[SimulatedClient, Mirror, list[Snapshot]]:
    """The same run through the service: the client tells of it, and follows the orders."""
    names = [
        f"unknown {row}" if simulator.future.knowledge[row] == 0.0 else job.name
        for row, job in enumerate(simulator.sequence.jobs)
    ]
    client = SimulatedClient(
        simulator.sequence,
        task_times(simulator.trace("simulated")),
        simulator.config.num_executors,
        names=names,
        follows_simulator=True,
    )
    service = service_of(lambda _: live, duration_model=duration_model)
    mirror = Watched.__new__(Watched)
    mirror.seen = []
    settings = LiveSettings(follows_simulator=True, room=room)
    Mirror.__init__(mirror, lambda _: live, duration_model, settings)
    service.mirrors[client.application_id] = mirror
    wire = Wire(service)
    wire.ask(client.hello())
    client.apply_orders(wire.orders(client.state()))
    while (message := client.next_message()) is not None:
        client.apply_orders(wire.orders(message))
        if checks:
            check_invariants(mirror.state)
    return client, mirror, mirror.seen


def _assert_same(mine: list[Snapshot], others: list[Snapshot]) -> None:
    for number, (one, other) in enumerate(zip(mine, others, strict=False)):
        where = f"plan {number} at {one.now['clock_ms']} ms"
        assert one.now == other.now, where
        assert len(one.jobs) == len(other.jobs), where
        for own, theirs in zip(one.jobs, other.jobs, strict=True):
            assert own == theirs, where
    assert len(mine) == len(others)


#: `weighted-fair:-1` decides, and plans through the adapter.
_FEW = ("fair", "srpt", "psbs", "parcae", "tuned+account", "weighted-fair:-1")
_MORE = ("fifo", "sjf", "las", "fsp", "tuned", "srpt+account")


def _unknown(name: str) -> float:
    """The share of unknown jobs: an unknown name is that of another user for the service."""
    return 0.0 if name.endswith("+account") else 0.4


_SLOW = (
    *((name, _SYNTHETIC, "load:0.8", 40, 6, _unknown(name)) for name in _MORE),
    *((name, _TPCH, "load:0.9", 25, 20, 0.0) for name in _FEW[:-1] + _MORE),
    ("gittins", _TPCH, "load:0.9", 15, 20, 0.3),
    ("decima", _TPCH, "load:0.8", 8, 10, 0.0),
    ("tuned", _SYNTHETIC, "batch", 15, 5, 1.0),
    ("fair", _SYNTHETIC, "bursts:8s", 30, 5, 0.5),
)
_CASES = [
    *((name, _SYNTHETIC, "load:0.8", 20, 6, _unknown(name)) for name in _FEW),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in _SLOW),
]


@pytest.mark.parametrize(
    ("name", "workload", "arrivals", "num_jobs", "num_cores", "unknown"),
    _CASES,
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_the_service_shows_a_policy_the_very_observations_of_the_simulator(
    name: str, workload: Workload, arrivals: str, num_jobs: int, num_cores: int, unknown: float
) -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores, unknown_share=unknown)
    sequence = draw_sequence(workload, arrivals, num_jobs, num_cores, RandomStreams(3))
    policy_for = policies_for(name, workload, arrivals)
    simulator, in_simulator = simulated(sequence, policy_for(num_cores), config, 3)
    live = policies_for(name, workload, arrivals)(num_cores)
    client, mirror, in_service = served(simulator, live, DurationModel(workload, is_learning=False))
    assert len(in_simulator) > num_jobs
    _assert_same(in_simulator, in_service)
    trace = simulator.trace(name)
    assert trace.tasks is not None
    recorded = [
        (t["job"], t["stage"], t["task"], t["start_ms"], t["finish_ms"]) for t in trace.tasks
    ]
    assert client.tasks == [tuple(int(value) for value in task) for task in recorded]
    assert mirror.counts.fallbacks == 0
    assert not mirror.jobs


@pytest.mark.parametrize(
    "name",
    ["srpt"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("parcae", "fsp", "tuned+account")],
)
def test_tables_that_grow_and_give_rows_back_change_no_plan(name: str) -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=4, unknown_share=_unknown(name))
    sequence = draw_sequence(_SYNTHETIC, "load:0.7", 60, 4, RandomStreams(5))
    simulator, in_simulator = simulated(sequence, policies_for(name, _SYNTHETIC)(4), config, 5)
    live = policies_for(name, _SYNTHETIC)(4)
    duration_model = DurationModel(_SYNTHETIC, is_learning=False)
    _, mirror, in_service = served(simulator, live, duration_model, room=Room(4, 8, 8))
    assert len(mirror.state.jobs) < 2 * sequence.num_jobs
    for snapshot in (*in_simulator, *in_service):
        snapshot.now["num_jobs"] = 0  # rows
    _assert_same(in_simulator, in_service)


def test_the_tables_are_consistent_during_a_simulated_run() -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=3, unknown_share=0.5)
    sequence = draw_sequence(_SYNTHETIC, "load:0.8", 6, 3, RandomStreams(2))
    simulator, in_simulator = simulated(sequence, policies_for("fair", _SYNTHETIC)(3), config, 2)
    duration_model = DurationModel(_SYNTHETIC, is_learning=False)
    _, _, in_service = served(
        simulator, policies_for("fair", _SYNTHETIC)(3), duration_model, checks=True
    )
    _assert_same(in_simulator, in_service)
