"""What is learned of recurring jobs, and the file in which it outlives the service."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.service import learned as learned_module
from parcae.service import serve as serving
from parcae.service.client import Client
from parcae.service.jobs import DurationModel
from parcae.service.learned import (
    LearnedDurations,
    LearnedFile,
    LearnedValues,
    OwnDurations,
    read_learned,
    write_learned,
)
from parcae.service.protocol import Events, Hello, JobArrived, StateMessage
from parcae.service.serve import ServeSettings, serve
from parcae.workloads.archive import load_workload
from tests.service.running import stopped_when
from tests.service.speaking import began, ended, job_of, stages_of


def test_the_mean_of_tasks_and_of_the_last_five_runs_is_kept() -> None:
    learned = LearnedDurations()
    for count, executed_ms, mean in ((1, 100, 100.0), (1, 200, 150.0), (2, 900, 300.0)):
        learned.add_tasks("nightly", 0, count, executed_ms)
        assert learned.task_ms("nightly", 0) == mean
    assert (learned.task_ms("nightly", 0), learned.task_ms("nightly", 1)) == (300.0, 0.0)
    for total_ms in (1, 10, 20, 30, 40, 50):
        learned.add_run("nightly", total_ms)
    assert (learned.run_ms("nightly"), learned.run_ms("hourly")) == (30.0, 0.0)


def test_a_mean_follows_what_is_new() -> None:
    learned = LearnedDurations()
    for _ in range(5_000):
        learned.add_tasks("a", 0, 1, 100)
    for _ in range(5_000):
        learned.add_tasks("a", 0, 1, 200)
    assert learned.task_ms("a", 0) == pytest.approx(200.0, abs=1.0)


def test_what_was_not_heard_of_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnedDurations, "most", 2)
    learned = LearnedDurations()
    for name in ("a", "b", "a", "c"):
        learned.add_tasks(name, 0, 1, 5)
        learned.add_run(name, 5)
    assert [learned.task_ms(name, 0) for name in "abc"] == [5.0, 0.0, 5.0]
    assert [learned.run_ms(name) for name in "abc"] == [5.0, 0.0, 5.0]


def test_a_file_holds_it_all(tmp_path: Path) -> None:
    learned = LearnedDurations()
    path = tmp_path / "learned.json"
    learned.add_tasks("näme", 3, 1, 7)
    learned.add_run("näme", 70)
    write_learned(path, learned)
    assert read_learned(path).dump() == learned.dump()
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text())["parcae_learned"] == 1


def test_the_mean_of_all_tasks_is_kept_too() -> None:
    learned = LearnedDurations()
    learned.add_tasks("a", 0, 1, 1_000)
    learned.add_any_tasks(40, 4_000)
    assert learned.any_task_ms == 0.0
    learned.add_any_tasks(10, 1_000)
    restored = LearnedDurations()
    restored.restore(LearnedValues(**learned.dump()))
    assert restored.any_task_ms == 100.0


_ABSURD_MS = 10**10


def _taught(model: DurationModel, application: str, task_ms: int, num_stages: int = 1) -> None:
    """Let an application learn from a run of a job, and from a hundred other tasks."""
    recurring = model.look_up(application, ("nightly",), stages_of((1, ())))
    for position in range(num_stages):
        model.tasks_finished(recurring, position, 1, task_ms)
    model.job_finished(recurring, task_ms)
    own = model.own(application)
    own.add_any_tasks(100, 100 * task_ms)


def _guesses(model: DurationModel, application: str) -> tuple[float, float, float]:
    """What an application is told of a known stage, of a known run and of an unknown job."""
    stages = stages_of((1, ()))
    known = model.look_up(application, ("nightly",), stages)
    unknown = model.look_up(application, ("never seen",), stages)
    (task_ms,) = model.durations(known, stages)
    tasks, hidden_ms = model.hidden_stage(known, 0.0)
    return task_ms, tasks * hidden_ms, unknown.guess_ms


def test_what_one_application_learned_is_used_for_itself_alone() -> None:
    model = DurationModel(None)
    before = _guesses(model, "other")
    _taught(model, "absurd", _ABSURD_MS)
    assert _guesses(model, "other") == before
    assert _guesses(model, "absurd") == (_ABSURD_MS, _ABSURD_MS, _ABSURD_MS)


def test_what_two_applications_learned_alike_is_known_to_all_whatever_a_third_says() -> None:
    model = DurationModel(None)
    _taught(model, "one", 100)
    _taught(model, "absurd", _ABSURD_MS)
    _taught(model, "two", 140)
    assert _guesses(model, "other") == (120.0, 120.0, 120.0)
    for number in range(5):
        model.forget("absurd")
        _taught(model, "absurd", _ABSURD_MS + number)
    assert _guesses(model, "other") == (120.0, 120.0, 120.0)
    assert _guesses(model, "two") == (140.0, 140.0, 140.0)


def test_many_stages_of_one_application_displace_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LearnedDurations, "most", 50)
    monkeypatch.setattr(OwnDurations, "most", 10)
    model = DurationModel(None)
    _taught(model, "one", 100)
    _taught(model, "two", 100)
    _taught(model, "absurd", _ABSURD_MS, num_stages=500)
    assert _guesses(model, "other") == (100.0, 100.0, 100.0)
    assert model.own("absurd").num_bytes <= 20 * learned_module._VALUE_BYTES


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("garbage", "Invalid JSON"),
        ("[]", "should be an object"),
        ("{}", "parcae_learned: Field required"),
        ('{"parcae_learned": 9}', "parcae_learned: Input should be 1"),
        ('{"parcae_learned": 1, "tasks": [[1]]}', "tasks.0.0: "),
        ('{"parcae_learned": 1, "tasks": [["a", 0, 0, 5.0]]}', "tasks.0.2: .* greater than"),
        ('{"parcae_learned": 1, "tasks": [["a", 0, 1, -5.0]]}', "tasks.0.3: .* greater than"),
        ('{"parcae_learned": 1, "runs": [["a", [-5]]]}', "runs.0.1.0: .* greater than"),
        ('{"parcae_learned": 1, "any_task": [1, NaN]}', "any_task.1: .* finite number"),
        ('{"parcae_learned": 1, "more": []}', "more: "),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "learned.json"
    path.write_text(text)
    with pytest.raises(
        FormatError, match=f"not a file of `parcae serve --learned`.*{why}"
    ) as refused:
        LearnedFile(path)
    assert "move it away to learn afresh, or name another file" in str(refused.value)
    assert path.read_text() == text
    with pytest.raises(ConfigError, match="make it first"):
        LearnedFile(tmp_path / "nowhere" / "learned.json")


def test_a_second_service_cannot_have_the_file(tmp_path: Path) -> None:
    first = LearnedFile(tmp_path / "learned.json")
    with pytest.raises(ConfigError, match=r"learned\.json: another process writes what it learns"):
        LearnedFile(tmp_path / "learned.json")
    LearnedFile(tmp_path / "other.json")
    del first
    LearnedFile(tmp_path / "learned.json")


def _full_disk(*_: object) -> None:
    raise OSError("no space left")


def test_a_file_is_written_where_something_changed_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = LearnedFile(tmp_path / "learned.json")
    assert kept.snapshot() is None
    kept.learned.add_run("a", 5)
    kept.save(kept.snapshot())
    assert kept.snapshot() is None
    kept.learned.add_run("a", 7)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "replace", _full_disk)
        kept.save(kept.snapshot())
    assert "are not written to" in caplog.text
    assert read_learned(kept.path).run_ms("a") == 5.0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"learned.json", "learned.json.lock"}
    kept.save(kept.snapshot())
    assert read_learned(kept.path).run_ms("a") == 6.0


def test_a_service_remembers_what_another_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learned.json"
    monkeypatch.setattr(serving, "_SAVE_EVERY_S", 0.05)
    for all_ms in ((40, 50), (900,)):
        settings = ServeSettings(
            policy="fair", port=0, admin_port=None, num_cores=2, learned=path, for_s=60.0
        )
        talks: list[threading.Thread] = []

        def on_ready(
            port: int,
            admin_port: int | None,
            all_ms: tuple[int, ...] = all_ms,
            talks: list[threading.Thread] = talks,
        ) -> None:
            talk = threading.Thread(target=_run_tasks, args=(port, all_ms))
            talk.start()
            talks.append(talk)

        def has_talked(talks: list[threading.Thread] = talks) -> bool:
            return bool(talks) and not talks[0].is_alive()

        with stopped_when(has_talked):
            serve(settings, load_workload("toy"), on_ready)
        assert read_learned(path).task_ms("nightly", 0) == 45.0


def _run_tasks(port: int, all_ms: tuple[int, ...]) -> None:
    """Let applications tell the service of a job whose only finished task took so long."""
    for number, task_ms in enumerate(all_ms):
        with Client("127.0.0.1", port) as client:
            client.greet(Hello(protocol=2, application_id=f"app {number}"))
            client.orders(StateMessage(seq=1, clock_ms=0, cores=2, jobs=()))
            arrived = JobArrived(job=job_of("a", (2, ()), name="nightly"))
            done = ended("a", 0, 1, task_ms)
            client.orders(Events(seq=2, clock_ms=50, events=(arrived, began("a", 0), done)))
