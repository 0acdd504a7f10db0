"""Sessions without sockets: replies, errors of clients, and policies that fail."""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Decision, Observation
from parcae.cluster.orders import Orders as Planned
from parcae.cluster.orders import first_come
from parcae.cluster.state import ClusterState
from parcae.policies.learned import SHIPPED
from parcae.policies.orders.kernels import OrderKind
from parcae.service import admin as board
from parcae.service import live_tables, sharing, tables
from parcae.service.mirror import MOST_RUNNING
from parcae.service.policies import LivePolicy, Planning, policies_for
from parcae.service.protocol import (
    Bye,
    Challenge,
    Error,
    Event,
    Hello,
    JobArrived,
    JobEnded,
    OrdersMessage,
    Ping,
    Pong,
    Proof,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StagesAdded,
    TasksReported,
    Welcome,
    proof_mac,
)
from parcae.service.serve import ServeSettings, make_service, warm_up
from parcae.service.session import Scope
from parcae.service.sharing import Sharing
from parcae.workloads.archive import load_workload
from tests.service.speaking import (
    NONCE,
    Speaker,
    Wire,
    began,
    code_of,
    ended,
    job_of,
    order_of,
    planner,
    service_of,
    stages_of,
)


def test_a_client_gets_the_whole_order_after_every_message() -> None:
    client = Speaker(service_of(planner(OrderKind.SRPT)))
    assert isinstance(client.welcome[0], Welcome)
    assert order_of(client.state(4)) == []
    assert order_of(client.events(0, JobArrived(job=job_of("long", (9, ()))))) == ["long"]
    reply = client.events(5, JobArrived(job=job_of("short", (2, ()))))
    assert order_of(reply) == ["short", "long"]
    assert reply.other_tier == max(job.tier for job in reply.jobs)  # type: ignore[union-attr]
    assert reply.seq == client.seq
    reply = client.events(6, began("short", 0, 2), ended("short", 0, 2, 9))
    assert order_of(reply) == ["long"]


def test_state_replaces_what_was_known_and_takes_up_work_in_progress() -> None:
    client = Speaker(service_of())
    client.state(4, job_of("a", (2, ())), job_of("b", (2, ())))
    stages = stages_of((9, ()), (4, (0,)), (1, (1,)))
    done = stages[0].model_copy(
        update={"started": 9, "finished": 9, "executed_ms": 90, "is_ended": True}
    )
    runs = stages[1].model_copy(update={"started": 3, "finished": 1, "executed_ms": 10})
    job = job_of("b", is_open=True).model_copy(update={"stages": (done, runs, stages[2])})
    assert order_of(client.state(4, job, clock_ms=100)) == ["b"]
    mirror = client.wire.session.service.mirrors["app"]
    assert mirror.num_running == 2
    assert order_of(
        client.events(101, ended("b", 1, 2, 20), began("b", 1), ended("b", 1, 1, 7), began("b", 2))
    ) == ["b"]
    assert mirror.num_running == 1


def test_ping_is_answered_and_bye_closes() -> None:
    client = Speaker(service_of())
    assert client.wire.ask(Ping(seq=4)) == [Pong(seq=4)]
    assert client.wire.ask(Bye()) == []
    assert client.wire.session.is_closed
    assert client.wire.session.service.sessions == {}
    assert client.wire.session.service.mirrors == {}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (began("z", 0), "unknown_job"),
        (began("a", 9), "unknown_stage"),
        (began("a", 0, 4), "bad_job"),
        (ended("a", 0, 1, 5), "bad_job"),
        (TasksReported(job_id="a", stage_id=0, started=2, finished=2, failed=1), "bad_job"),
        (JobArrived(job=job_of("a", (1, ()))), "duplicate_job"),
        (JobArrived(job=job_of("b", (1, (1,)), (1, (0,)))), "bad_job"),
        (JobArrived(job=job_of("b", (1, (7,)))), "bad_job"),
        (JobArrived(job=job_of("b")), "bad_job"),
        (StagesAdded(job_id="a", stages=stages_of((1, ()))), "duplicate_stage"),
        (StagesAdded(job_id="a", stages=stages_of((1, (8,)), first=7)), "bad_job"),
        (StagesAdded(job_id="z", stages=stages_of((1, ()))), "unknown_job"),
        (StageChanged(job_id="a", stage_id=5, tasks=1), "unknown_stage"),
        (StageEnded(job_id="a", stage_id=5), "unknown_stage"),
        (StageBegunAgain(job_id="a", stage_id=5, tasks=1), "unknown_stage"),
        (StageBegunAgain(job_id="a", stage_id=0, tasks=1), "bad_job"),
        (JobEnded(job_id="z"), "unknown_job"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.type,
)
def test_a_wrong_event_gets_an_error_and_state_recovers_from_it(event: Event, code: str) -> None:
    service = service_of()
    client = Speaker(service)
    other = Speaker(service, "other")
    other.state(2, job_of("a", (3, ())))
    client.state(2, job_of("a", (3, ())))
    reply = client.events(5, event)
    assert code_of(reply) == (code, "state")
    assert reply.message.startswith("event 0: ")  # type: ignore[union-attr]
    assert code_of(client.events(6)) == ("no_state", "state")
    assert order_of(other.events(6, began("a", 0))) == ["a"]  # the other client is not affected
    assert order_of(client.state(2, job_of("a", (3, ())), clock_ms=7)) == ["a"]


def _nonsense(draw: random.Random) -> Event:
    """An event that may well contradict all others."""
    job_id = draw.choice("abcd")
    stage_id = draw.randrange(4)
    counts = [draw.choice((0, 1, 1, 2, 9)) for _ in range(3)]
    parents = tuple(draw.sample(range(5), draw.randrange(3)))
    stage = StageMessage(stage_id=draw.randrange(8), tasks=draw.randrange(1, 5), parents=parents)
    stages = [
        (draw.randrange(1, 4), tuple(draw.sample(range(i), draw.randrange(i + 1))))
        for i in range(draw.randrange(4))
    ]
    return draw.choice(
        [
            JobArrived(job=job_of(job_id, *stages, is_open=draw.random() < 0.7)),
            StagesAdded(job_id=job_id, stages=(stage,)),
            StageChanged(job_id=job_id, stage_id=stage_id, tasks=draw.randrange(1, 6)),
            began(job_id, stage_id, draw.randrange(3)),
            TasksReported(
                job_id=job_id,
                stage_id=stage_id,
                started=counts[0],
                finished=counts[1],
                failed=counts[2],
            ),
            StageEnded(job_id=job_id, stage_id=stage_id),
            StageBegunAgain(job_id=job_id, stage_id=stage_id, tasks=draw.randrange(1, 4)),
            JobEnded(job_id=job_id, is_failed=draw.random() < 0.5),
        ]
    )


@pytest.mark.parametrize("is_shared", [False, True])
def test_contradictory_events_never_break_the_service_or_disturb_another(is_shared: bool) -> None:
    draw = random.Random(7)
    service = service_of(planner(OrderKind.FSP), sharing=Sharing(4) if is_shared else None)
    client = Speaker(service)
    other = Speaker(service, "other")
    other.state(4, job_of("a", (10_000, ())))
    client.state(4)
    codes = set()
    for number in range(300):
        reply = client.events(number, *(_nonsense(draw) for _ in range(draw.randrange(1, 3))))
        if isinstance(reply, Error):
            codes.add(reply.code.value)
            assert reply.then == "state"
            client.state(4, job_of("a", (3, ()), (2, (0,)), is_open=True), clock_ms=number)
        if number % 50 == 0:
            assert order_of(other.events(number, began("a", 0), ended("a", 0, 1, 5))) == ["a"]
    assert "internal" not in codes
    assert {"unknown_job", "unknown_stage", "bad_job", "duplicate_job", "duplicate_stage"} <= codes
    assert service.counts.fallbacks == 0


def test_many_stages_must_not_be_listed_before_their_parents() -> None:
    """Their work would be summed up as often as there are stages, at every event of theirs."""
    forward = [(1, (n - 1,) if n else ()) for n in range(2_000)]
    backward = [(1, (n + 1,) if n < 1_999 else ()) for n in range(2_000)]
    client = Speaker(service_of())
    assert isinstance(client.state(4, job_of("a", *forward)), OrdersMessage)
    assert isinstance(client.state(4, job_of("a", *backward[-700:], first=1_300)), OrdersMessage)
    refusal = client.state(4, job_of("a", *backward))
    assert isinstance(refusal, Error)
    assert refusal.message == (
        "job a: along a path 1999 of its 2000 stages are listed before a parent; list parents first"
    )


def test_numbers_and_clocks_must_rise() -> None:
    client = Speaker(service_of())
    client.state(2, clock_ms=100)
    assert code_of(client.events(99)) == ("clock", "state")
    client.state(2, clock_ms=50)
    client.seq -= 1
    assert code_of(client.events(101)) == ("sequence", "state")


@pytest.mark.parametrize("says", ["state", "events"])
def test_a_clock_of_the_far_future_leaves_other_applications_alone(says: str) -> None:
    service = service_of(sharing=Sharing(num_cores=4))
    other, wrong = Speaker(service, "other"), Speaker(service, "wrong")
    now_ms = round(time.time() * 1_000)
    assert order_of(other.state(2, job_of("a", (3, ())), clock_ms=now_ms)) == ["a"]
    wrong.state(2, clock_ms=now_ms)
    far_ms = 2**53 - 1
    reply = wrong.state(2, clock_ms=far_ms) if says == "state" else wrong.events(far_ms)
    assert code_of(reply) == ("clock", "state")
    later = other.events(now_ms + 5, JobArrived(job=job_of("b", (1, ()))))
    assert set(order_of(later)) == {"a", "b"}
    # An hour is no reason: clocks of machines differ.
    assert isinstance(wrong.state(2, clock_ms=now_ms + 3_600_000), OrdersMessage)


def test_an_old_number_drops_the_jobs_of_the_application_alone() -> None:
    service = service_of(sharing=Sharing(num_cores=4))
    client, other = Speaker(service), Speaker(service, "other")
    client.state(2, job_of("a", (3, ())))
    other.state(2, job_of("b", (3, ())))
    client.seq -= 1
    assert code_of(client.events(5)) == ("sequence", "state")
    (mirror,) = service.mirrors.values()
    assert mirror.stages_of("app") == {}
    assert list(mirror.stages_of("other")) == ["b"]
    assert code_of(client.events(6)) == ("no_state", "state")


def test_a_client_of_version_1_gets_one_clear_line() -> None:
    wire = Wire(service_of())
    replies = wire.session.receive(
        b'{"type":"hello","protocol":1,"application_id":"app","application_name":"n",'
        b'"client":"parcae-spark 0.1","nonce":"0123456789abcdef"}'
    )
    (reply,) = replies
    assert isinstance(reply, Error)
    assert (reply.code, reply.then) == ("bad_protocol", "close")
    assert (
        reply.message
        == "this service supports protocol 2, not 1: use plugin and service from the same version "
        "of Parcae"
    )
    assert wire.session.is_closed


def test_the_secret_is_proved_by_both_and_needs_a_nonce() -> None:
    service = service_of(secret=b"0123456789abcdef")
    wire = Wire(service)
    (challenge,) = wire.ask(Hello(protocol=2, application_id="app", nonce=NONCE))
    assert isinstance(challenge, Challenge)
    names = (NONCE, challenge.nonce, "app")
    (welcome,) = wire.ask(Proof(mac=proof_mac(b"0123456789abcdef", "client", *names)))
    assert isinstance(welcome, Welcome)
    assert welcome.mac == proof_mac(b"0123456789abcdef", "service", *names)
    (refused,) = Wire(service).ask(Hello(protocol=2, application_id="app"))
    assert isinstance(refused, Error)
    assert (refused.code, refused.then) == ("denied", "close")


def test_hello_is_the_first_message_and_a_proof_the_answer_to_a_challenge() -> None:
    service = service_of(secret=b"0123456789abcdef")
    proof = Proof(mac=proof_mac(b"0123456789abcdef", "client", "", "", ""))
    greeted = Wire(service)
    greeted.ask(Hello(protocol=2, application_id="app", nonce=NONCE))
    for wire, message, code in (
        (Wire(service), proof, "unexpected"),
        (Wire(service), Ping(seq=1), "unexpected"),
        (greeted, proof, "denied"),
    ):
        (refused,) = wire.ask(message)
        assert isinstance(refused, Error)
        assert (refused.code, refused.then) == (code, "close")
        assert wire.session.is_closed
    assert service.sessions == {}
    for late in (proof, Hello(protocol=2, application_id="app")):
        assert code_of(Speaker(service_of()).wire.ask(late)[0]) == ("unexpected", "close")


class _Broken:
    """Raises, plans nonsense, and holds everything back, in turns."""

    name = "broken"

    def __init__(self) -> None:
        self.asked = 0

    def plan(self, observation: Observation) -> Planned:
        self.asked += 1
        orders = first_come(observation)
        if self.asked % 3 == 0:
            raise RuntimeError("boom")
        if self.asked % 3 == 1:
            orders.jobs.tier[:] = np.nan
        else:
            orders.jobs.limit[:] = 0
        return orders


def test_a_policy_that_fails_is_replaced_by_fair_for_that_plan_and_asked_again() -> None:
    broken = _Broken()
    service = service_of(lambda _: LivePolicy(broken))
    client = Speaker(service)
    client.state(2)
    for number in range(6):
        reply = client.events(number, JobArrived(job=job_of(f"j{number}", (9, ()))))
        assert {job.weight for job in reply.jobs} == {1.0}  # type: ignore[union-attr]
        assert {job.limit for job in reply.jobs} == {None}  # type: ignore[union-attr]
    assert broken.asked == service.counts.fallbacks == service.counts.plans == 6


class _FailsAtSecondDecision:
    """Gives the first schedulable stage two cores; raises at the second decision of every plan."""

    name = "fails"

    def __init__(self) -> None:
        self.offered: list[list[int]] = []

    def decide(self, observation: Observation) -> Decision:
        self.offered.append(observation.schedulable_stages())
        if len(self.offered) % 2 == 0:
            raise RuntimeError("boom")
        return Decision(self.offered[-1][0], 2)


def test_a_policy_that_fails_amid_its_decisions_is_offered_all_stages_at_the_next_plan() -> None:
    failing = _FailsAtSecondDecision()
    service = service_of(lambda _: LivePolicy(failing))
    client = Speaker(service)
    client.state(4)
    for number in range(3):
        client.events(number, JobArrived(job=job_of(f"j{number}", (2, ()), (2, ()))))
    assert failing.offered[::2] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert service.counts.fallbacks == service.counts.plans == 3


class _Limits:
    """Jobs in the order of their arrival, late in the day; two tasks each, stages in reverse."""

    name = "limits"

    def plan(self, observation: Observation) -> Planned:
        orders = first_come(observation)
        orders.jobs.limit[:] = 2
        orders.stages.rank[:] = -np.arange(len(observation.stages))
        orders.wake_ms[0] = int(observation.now.clock_ms[0]) + 500
        return orders


def test_a_plain_python_policy_says_limits_ranks_and_when_it_wakes() -> None:
    client = Speaker(service_of(lambda _: LivePolicy(_Limits())))
    reply: Any = client.state(2, job_of("a", (3, ()), (3, ())), clock_ms=100)
    assert [(job.job_id, job.limit) for job in reply.jobs] == [("a", 2)]
    assert [(stage.stage_id, stage.rank, stage.limit) for stage in reply.stages] == [
        (1, -1.0, None)
    ]
    assert reply.wake_ms == 600
    service = client.wire.session.service
    before = service.counts.plans
    client.events(599)
    assert service.counts.plans == before
    client.events(600)
    assert service.counts.plans == before + 1


class _LargeLimits:
    """Jobs in the order of their arrival; the limits are the largest that a cluster can reach."""

    name = "large limits"

    def plan(self, observation: Observation) -> Planned:
        orders = first_come(observation)
        orders.jobs.limit[:2] = MOST_RUNNING - 1, MOST_RUNNING
        orders.stages.limit[:2] = 1 << 31, MOST_RUNNING - 1
        return orders


def test_limits_that_no_cluster_reaches_are_no_limits() -> None:
    client = Speaker(service_of(lambda _: LivePolicy(_LargeLimits())))
    reply: Any = client.state(2, job_of("a", (3, ())), job_of("b", (3, ())))
    assert [job.limit for job in reply.jobs] == [MOST_RUNNING - 1, None]
    assert [stage.limit for stage in reply.stages] == [None, MOST_RUNNING - 1]


@pytest.mark.parametrize(
    "name", ["decima", "sjf-cp", "weighted-fair:-1", "corrector:stream", "random"]
)
def test_policies_that_decide_plan_through_their_adapter(name: str) -> None:
    workload = load_workload("toy")
    service = service_of(policies_for(name, workload))
    client = Speaker(service)
    client.state(4)
    client.events(
        0, JobArrived(job=job_of("a", (9, ()), (2, (0,)))), JobArrived(job=job_of("b", (2, ())))
    )
    reply: Any = client.events(5, began("a", 0, 4))
    assert {job.job_id for job in reply.jobs} == {"a", "b"}
    assert reply.stages
    limits = [stage.limit for stage in reply.stages if stage.tier < 1e9]
    assert limits
    assert None not in limits
    client.events(9, ended("a", 0, 4, 9), cores=8)
    assert service.counts.fallbacks == 0
    assert service.counts.plans >= 2


@pytest.mark.parametrize("name", ["fair", "sjf-cp", "parcae"])
def test_an_application_may_have_as_many_cores_as_the_protocol_allows(name: str) -> None:
    service = service_of(policies_for(name, load_workload("toy")))
    client = Speaker(service)
    assert client.state(131_072, job_of("a", (9, ()))).type == "orders"
    client.events(1, cores=4)
    assert client.events(2, began("a", 0, 4), cores=131_072).type == "orders"
    assert service.counts.fallbacks == 0


@pytest.mark.parametrize(
    ("checkpoint", "text"),
    [("parcae-cores", "{}"), ("parcae-cores", "{}+account"), ("tuned-cores", "{}")],
)
def test_a_policy_file_that_is_removed_does_not_change_a_service_that_runs(
    tmp_path: Path, checkpoint: str, text: str
) -> None:
    file = tmp_path / "policy.safetensors"
    shutil.copy(SHIPPED.path(*checkpoint.split("-")), file)
    policy_for = policies_for(text.format(file), load_workload("toy"))
    policy_for(4)
    file.unlink()
    client = Speaker(service_of(policy_for))
    assert client.state(8, job_of("a", (9, ()))).type == "orders"
    assert client.events(1, cores=3).type == "orders"


def test_policies_of_a_service_know_how_runs_of_a_job_differ() -> None:
    toy = load_workload("toy")
    jobs = tuple(dataclasses.replace(job, work_sigma=0.8) for job in toy.jobs)
    live: Any = policies_for("gittins", dataclasses.replace(toy, jobs=jobs))(4).policy
    assert (live.tables.sigma[: len(jobs)] == 0.8).all()


def test_policies_that_a_live_cluster_cannot_follow_are_refused(tmp_path: Any) -> None:
    workload = load_workload("toy")
    pools = tmp_path / "pools.xml"
    pools.write_text("<allocations><pool name='default'><weight>1</weight></pool></allocations>")
    with pytest.raises(PolicyError, match="Spark's pools"):
        policies_for(f"fair:{pools}", workload)(4)
    with pytest.raises(PolicyError, match="did you mean 'fair'"):
        policies_for("fiar", workload)(4)
    with pytest.raises(PolicyError, match="choose --world executors"):
        policies_for("order:1-0", workload)(4)


def test_the_warm_up_runs_every_kernel_without_a_fallback() -> None:
    workload = load_workload("toy")
    for name in ("tuned+account", "psbs"):
        service = service_of(policies_for(name, workload), sharing=Sharing(4))
        warm_up(service)
        assert service.counts.fallbacks == 0
        assert service.counts.plans > 5
        assert service.counts.finished_jobs == 1
        assert dataclasses.asdict(service.counts)["failed_jobs"] == 1


def test_the_warm_up_loads_what_plans_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    plan_fairly = Planning.plan_fairly

    def noted(self: Planning, state: ClusterState) -> None:
        plan_fairly(self, state)
        planned.append(int(state.now["is_plan_due"][0]))

    monkeypatch.setattr(Planning, "plan_fairly", noted)
    warm_up(service_of())
    assert planned == [0]


@pytest.mark.parametrize("scope", Scope)
def test_the_warm_up_loads_what_watchers_new_cores_and_full_tables_need(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = set()

    def note(module: ModuleType, name: str) -> None:
        kernel = getattr(module, name)

        def noted(*arguments: Any) -> Any:
            called.add(name)
            return kernel(*arguments)

        monkeypatch.setattr(module, name, noted)

    is_shared = scope is Scope.CLUSTER
    loaded = (
        (tables, "refresh_contenders"),
        (board, "correction"),
        (sharing, "work_at_hand") if is_shared else (live_tables, "resize"),
    )
    for module, name in loaded:
        note(module, name)
    make_service(ServeSettings(policy="fair", scope=scope, num_cores=4), load_workload("toy"))
    assert called == {name for _, name in loaded}


def test_what_binds_a_policy_is_heavy() -> None:
    """It may take a second, which must not be one of the event loop's thread."""
    planned, decided = (
        Speaker(service_of(policies_for(policy, load_workload("toy"))))
        for policy in ("fair", "sjf-cp")
    )
    for speaker in (planned, decided):
        assert speaker.wire.session.is_heavy  # the first state binds
        speaker.state(4)
    assert not planned.wire.session.is_heavy
    assert decided.wire.session.is_heavy  # every new number of cores binds
