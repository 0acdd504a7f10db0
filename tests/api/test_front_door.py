"""`import parcae`: the names that it offers, and the usual way through them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest

import parcae
from parcae.base.errors import ConfigError, PolicyError
from parcae.evaluation import comparison as paired
from parcae.simulation.objectives import FinishedJobs
from parcae.workloads.workload import ArrivalProcess

NAMES = """
Cluster Comparison Decision JobSequence JobView ModelPolicy Observation Orders ParcaeError Run
SchedulerView StageView Workload __version__ compare first_come learn list_policies
read_event_logs report serve simulate train workload
"""


def shortest_first(view: parcae.SchedulerView) -> list[parcae.JobView]:
    """A policy as a plain function: least remaining work first."""
    return sorted(view.jobs, key=lambda job: job.remaining_s)


@pytest.fixture
def cluster() -> parcae.Cluster:
    return parcae.Cluster(cores=4)


@pytest.fixture
def jobs(cluster: parcae.Cluster) -> parcae.JobSequence:
    return parcae.workload("toy").draw(6, "load:0.9", cluster, seed=3)


def test_the_names_of_the_front_door_are_these_and_all_of_them_load() -> None:
    assert sorted(parcae.__all__) == NAMES.split()
    for name in NAMES.split():
        assert getattr(parcae, name) is not None
    assert set(NAMES.split()) <= set(dir(parcae))
    with pytest.raises(AttributeError, match="has no attribute 'simulte'"):
        _ = parcae.simulte  # type: ignore[attr-defined]


def test_importing_parcae_loads_no_library() -> None:
    libraries = {"numba", "polars", "torch", "pydantic"}
    code = f"import sys, parcae; print(sorted({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_cluster_has_cores_or_executors_and_refuses_both() -> None:
    assert parcae.Cluster().world == "cores"
    assert parcae.Cluster(cores=7).total_executors == 7
    assert parcae.Cluster(executors=5, moving_delay_ms=0).world == "executors"
    assert parcae.Cluster(executor_classes="2x1x0.5,3x1x1").total_executors == 5
    with pytest.raises(ConfigError, match="not both"):
        parcae.Cluster(cores=1, executors=1)
    for size in ({"cores": 1}, {"executors": 1}):
        with pytest.raises(ConfigError, match="num_executors is another name of the size"):
            parcae.Cluster(**size, num_executors=7)


@pytest.mark.parametrize(
    "setting",
    [
        {"moving_delay_ms": 500},
        {"warmup_delay_ms": 0},
        {"interpolation": "inverted"},
        {"executor_classes": "2x1x0.5,3x1x1"},
    ],
)
def test_a_setting_of_decimas_world_implies_that_world_or_is_refused(
    setting: dict[str, Any],
) -> None:
    assert parcae.Cluster(**setting).world == "executors"
    assert parcae.Cluster(executors=5, **setting).world == "executors"
    assert parcae.Cluster(cores=5, world="executors", **setting).world == "executors"
    expected = f"{next(iter(setting))} exists in the world of executors only: leave it out, or "
    with pytest.raises(ConfigError, match=f"^{expected}give executors=5 in place of cores$"):
        parcae.Cluster(cores=5, **setting)
    with pytest.raises(ConfigError, match=f"^{expected}give world='executors'$"):
        parcae.Cluster(world="cores", **setting)
    whole = parcae.Cluster(cores=5).model_dump() | setting
    with pytest.raises(ConfigError, match=f"^{expected}give world='executors'$"):
        parcae.Cluster(**whole)
    assert parcae.Cluster(cores=5, executor_classes=()).world == "cores"


@pytest.mark.parametrize(
    "cluster", [parcae.Cluster(cores=7), parcae.Cluster(executors=7, moving_delay_ms=500)]
)
@pytest.mark.parametrize("mode", ["python", "json"])
def test_a_cluster_comes_back_from_its_description(
    cluster: parcae.Cluster, mode: Literal["python", "json"]
) -> None:
    assert parcae.Cluster(**cluster.model_dump(mode=mode)) == cluster


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cors": 4}, "setting 'cors' does not exist; did you mean 'cores'?"),
        ({"cores": 1, "speed": 2}, "setting 'speed' does not exist; known are cores, executors, "),
        ({"cores": 0}, "setting cores = 0: Input should be greater than or equal to 1"),
        ({"executors": 0}, "setting executors = 0: Input should be greater than or equal to 1"),
        ({"num_executors": 0}, "setting num_executors = 0: Input should be greater than or equal"),
        ({"estimate_error": "lgo"}, "estimate error 'lgo': write log .* or a sigma from 0 to 10"),
        ({"estimate_error": -1.0}, "estimate error '-1.0': write log .* or a sigma from 0 to 10"),
        ({"unknown_share": 2}, "setting unknown_share = 2: Input should be less than or equal to"),
        ({"durations": "men"}, "setting durations = 'men': Input should be 'sampled', 'first'"),
        ({"world": "core"}, "setting world = 'core': Input should be 'cores' or 'executors'"),
        ({"end_ms": 5, "mean_episode_ms": 5.0}, "give end_ms or mean_episode_ms, not both"),
    ],
)
def test_wrong_settings_of_a_cluster_are_refused_in_one_line(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        parcae.Cluster(**settings)


def test_a_workload_or_a_number_is_not_taken_for_drawn_jobs_or_a_cluster(
    jobs: parcae.JobSequence, cluster: parcae.Cluster, tmp_path: Path
) -> None:
    drawn = r"^jobs is the workload 'toy': draw a run first, as in jobs = .*\.draw\(20, "
    sized = r"^cluster is 4: describe one first, as in cluster = parcae\.Cluster\(cores=50\)$"
    calls: tuple[Callable[[Any, Any], object], ...] = (
        lambda jobs, cluster: parcae.simulate(jobs, "fair", cluster),
        lambda jobs, cluster: parcae.compare(jobs, ["fair"], cluster),
        lambda jobs, cluster: parcae.learn(jobs, cluster, tmp_path / "learned"),
    )
    for call in calls:
        with pytest.raises(ConfigError, match=drawn):
            call(jobs.workload, cluster)
        with pytest.raises(ConfigError, match=r"^jobs is 'toy': draw a run first"):
            call("toy", cluster)
        with pytest.raises(ConfigError, match=sized):
            call(jobs, 4)
    with pytest.raises(ConfigError, match=sized):
        jobs.workload.draw(3, "batch", 4, seed=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=sized):
        parcae.serve("fair", jobs.workload, 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^workload is the jobs of one run: .* jobs\.workload$"):
        parcae.serve("fair", jobs, cluster)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^workload is 'toy': load one first, as in "):
        parcae.serve("fair", "toy", cluster)  # type: ignore[arg-type]
    for seeds in ([1, 2], 0, 2.5):
        with pytest.raises(ConfigError, match=r"^seeds is .*: give 1 or more, the number of seeds"):
            parcae.compare(jobs, ["fair"], cluster, seeds=seeds)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"^seeds is .*: give 1 or more, the number of seeds"):
            parcae.learn(jobs, cluster, tmp_path / "learned", seeds=seeds)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint64])
def test_numbers_of_numpy_are_seeds_as_others(
    kind: type[np.integer[Any]], jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    seeds: tuple[Any, ...] = (kind(3), 3)
    of_numpy, plain = (
        parcae.simulate(jobs, "fair", cluster, seed=seed).to_frame() for seed in seeds
    )
    assert of_numpy.equals(plain)


def test_arguments_of_another_type_are_refused(
    jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    with pytest.raises(ConfigError, match=r"^seed is 1\.5: give 0 or more, as a whole number"):
        parcae.compare(jobs, ["fair"], cluster, seed_start=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^processes is 1\.5: give 1 or more, or None"):
        parcae.compare(jobs, ["fair"], cluster, processes=1.5)  # type: ignore[arg-type]
    # Further jobs are drawn by the text.
    for arrivals in (None, ArrivalProcess("poisson", 2_000.0)):
        with pytest.raises(ConfigError, match=r"^arrivals .* are not understood: write batch, "):
            jobs.workload.draw(3, arrivals, cluster, seed=1)  # type: ignore[arg-type]


def test_a_run_has_its_figures_and_frames(
    jobs: parcae.JobSequence, cluster: parcae.Cluster, tmp_path: Path
) -> None:
    run = parcae.simulate(jobs, "fair", cluster, seed=1)
    frame = run.to_frame()
    assert frame.height == 6
    assert run.average_jct_s == pytest.approx(frame["jct_ms"].mean() / 1000)  # type: ignore[operator]
    assert run.makespan_s * 1000 == frame["completion_ms"].max() - frame["arrival_ms"].min()  # type: ignore[operator]
    tasks = run.tasks()
    assert tasks.height == jobs.num_tasks
    busy_ms = (tasks["finish_ms"] - tasks["start_ms"]).sum()
    assert busy_ms == frame["executed_ms"].sum()
    with pytest.raises(ConfigError, match="policies plan orders"):
        run.decisions()
    assert run.gantt(tmp_path / "run.html").read_text().startswith("<")
    assert run.gantt(tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_decisions_of_decimas_world_are_a_frame() -> None:
    cluster = parcae.Cluster(executors=4)
    jobs = parcae.workload("toy").draw(4, "batch", cluster, seed=1)
    run = parcae.simulate(jobs, "fair", cluster)
    assert run.decisions().height == run.summary.decisions > 0


def test_a_plain_function_is_a_policy_and_equals_the_library_s_order(
    jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    by_function = parcae.simulate(jobs, shortest_first, cluster)
    by_name = parcae.simulate(jobs, "srpt", cluster)
    assert by_function.policy == "shortest_first"
    assert (
        by_function.to_frame()["completion_ms"].to_list()
        == by_name.to_frame()["completion_ms"].to_list()
    )


def test_a_plain_function_decides_in_decimas_world_too() -> None:
    cluster = parcae.Cluster(executors=4)
    jobs = parcae.workload("toy").draw(4, "batch", cluster, seed=1)
    run = parcae.simulate(jobs, shortest_first, cluster)
    assert run.to_frame()["completion_ms"].null_count() == 0


def test_a_view_shows_jobs_and_stages_in_seconds(
    jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    seen: list[tuple[str, float, int]] = []

    def look(view: parcae.SchedulerView) -> list[parcae.JobView]:
        assert view.num_cores == 4
        for job in view.jobs:
            assert job.age_s == pytest.approx(view.time_s - job.arrival_s)
            assert job.num_waiting == sum(stage.num_waiting for stage in job.stages)
            assert job.remaining_s <= job.total_s * 10
            seen.append((job.name, job.total_s, len(job.stages)))
        return list(view.jobs)

    run = parcae.simulate(jobs, look, cluster)
    fifo = parcae.simulate(jobs, "fifo", cluster)
    assert run.to_frame()["completion_ms"].to_list() == fifo.to_frame()["completion_ms"].to_list()
    by_name = {job.name: job for job in jobs.jobs}
    for name, _total_s, num_stages in seen:
        assert num_stages == len(by_name[name].stages)


def test_a_view_counts_what_runs_where_tasks_fail_and_get_copies() -> None:
    faults = "failures=0.2,stragglers=0.3,factor=30,speculation=on,quantile=0.5,multiplier=1.5"
    cluster = parcae.Cluster(cores=4, faults=faults)
    seen = set()

    def look(view: parcae.SchedulerView) -> list[parcae.JobView]:
        num_running = sum(job.num_running for job in view.jobs)
        assert num_running == view.num_cores - view.num_idle
        seen.add(num_running)
        return list(view.jobs)

    jobs = parcae.workload("toy").draw(6, "batch", cluster, seed=1)
    happened = parcae.simulate(jobs, look, cluster, seed=2).trace.faults
    assert happened is not None
    assert happened.failed > 0
    assert happened.copies > 0
    assert len(seen) > 1


@pytest.mark.parametrize("answer", [None, "fifo", 3, [1, 2]])
def test_a_function_that_returns_something_else_is_refused_by_name(
    answer: object, jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    def wrong(view: parcae.SchedulerView) -> object:
        return answer

    with pytest.raises(PolicyError, match="'wrong': return the view's jobs in order of priority"):
        parcae.simulate(jobs, wrong, cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [None, 3, (0, 1)])
def test_an_object_that_answers_something_else_is_refused(
    answer: Any, jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    class Decider:
        name = "decider"

        def decide(self, observation: parcae.Observation) -> parcae.Decision:
            return answer  # type: ignore[no-any-return]

    class Planner:
        name = "planner"

        def plan(self, observation: parcae.Observation) -> parcae.Orders:
            return answer  # type: ignore[no-any-return]

    for policy, where, expected in (
        (Decider(), parcae.Cluster(executors=4), r"decide\(\) returned .*; return a Decision"),
        (Decider(), cluster, r"decide\(\) returned .*; return a Decision"),
        (Planner(), cluster, r"plan\(\) returned .*; return Orders"),
    ):
        with pytest.raises(PolicyError, match=expected):
            parcae.simulate(jobs, policy, where)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (parcae.Decision(0.5, 2), "make its stage a whole number"),  # type: ignore[arg-type]
        (parcae.Decision(0, None), "make its limit a whole number"),  # type: ignore[arg-type]
        (parcae.Decision(0, 10**30), "make its limit a whole number of 64 bits"),
        (parcae.Decision(True, 1), "make its stage a whole number"),
        (parcae.Decision(0, 1, hold_ms=float("nan")), "make its hold_ms"),  # type: ignore[arg-type]
        (parcae.Decision(7, 1), "stage 7 does not exist"),
    ],
)
@pytest.mark.parametrize("where", [parcae.Cluster(cores=4), parcae.Cluster(executors=4)])
def test_a_wrong_decision_is_refused_with_its_policy_and_time(
    decision: parcae.Decision, expected: str, where: parcae.Cluster, jobs: parcae.JobSequence
) -> None:
    class Decider:
        name = "decider"

        def decide(self, observation: parcae.Observation) -> parcae.Decision:
            return decision

    with pytest.raises(PolicyError, match=rf"^policy 'decider' at \d+ ms: .*{expected}"):
        parcae.simulate(jobs, Decider(), where)


def test_what_is_no_policy_is_refused(jobs: parcae.JobSequence, cluster: parcae.Cluster) -> None:
    class Nameless:
        def decide(self, observation: parcae.Observation) -> parcae.Decision:
            return parcae.Decision()

    class Planner:
        name = "planner"

        def plan(self, observation: parcae.Observation) -> parcae.Orders:
            return parcae.first_come(observation)

    parcae.simulate(jobs, Planner(), cluster)
    for wrong in (3, Nameless(), Planner, Nameless):
        with pytest.raises(PolicyError, match=r"is no policy: .* \(not a class\) with a name"):
            parcae.simulate(jobs, wrong, cluster)  # type: ignore[arg-type]


def test_names_objects_and_functions_are_compared_in_one_table(
    jobs: parcae.JobSequence, cluster: parcae.Cluster, tmp_path: Path
) -> None:
    comparison = parcae.compare(
        jobs, ["fair", "srpt", shortest_first], cluster, seeds=3, processes=1
    )
    frame = comparison.to_frame()
    assert frame["policy"].to_list() == ["fair", "srpt", "shortest_first"]
    ratios = frame["ratio_to_first"].to_list()
    assert ratios[0] == 1.0
    assert ratios[1] == pytest.approx(ratios[2])
    per_job = comparison.jobs_frame()
    assert per_job.height == 3 * 3 * 6
    page = parcae.report(comparison, tmp_path / "report.html").read_text()
    assert "shortest_first" in page


def test_a_function_that_no_process_can_be_sent_runs_in_this_one(
    jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    comparison = parcae.compare(
        jobs, ["fifo", lambda view: view.jobs], cluster, seeds=2, processes=2
    )
    assert comparison.to_frame()["ratio_to_first"].to_list() == [1.0, 1.0]


def test_a_function_of_a_prompt_is_not_sent_to_workers() -> None:
    script = """
import parcae
cluster = parcae.Cluster(cores=4)
jobs = parcae.workload("toy").draw(4, "load:0.8", cluster, seed=1)
def shortest_first(view):
    return sorted(view.jobs, key=lambda job: job.remaining_s)
found = parcae.compare(jobs, ["fifo", shortest_first], cluster, seeds=2, processes=2)
print(found.to_frame()["policy"].to_list())
"""
    # As in a notebook, the functions of `python -c` are in no file.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "['fifo', 'shortest_first']\n", done.stderr


def test_a_text_is_no_list_of_policies_and_no_process_plays_nothing(
    jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    with pytest.raises(ConfigError, match=r"give a list, \['fair'\]"):
        parcae.compare(jobs, "fair", cluster)
    with pytest.raises(ConfigError, match="give a list of policies"):
        parcae.compare(jobs, shortest_first, cluster)  # type: ignore[arg-type]
    for processes in (0, -1):
        with pytest.raises(ConfigError, match="give 1 or more"):
            parcae.compare(jobs, ["fair"], cluster, processes=processes)


def test_two_policies_of_one_name_are_refused(
    jobs: parcae.JobSequence, cluster: parcae.Cluster
) -> None:
    with pytest.raises(ConfigError, match="two policies are called 'shortest_first'"):
        parcae.compare(jobs, [shortest_first, shortest_first], cluster, seeds=2)


def test_jobs_that_were_not_drawn_are_simulated_but_not_compared(cluster: parcae.Cluster) -> None:
    drawn = parcae.workload("toy").draw(2, "batch", cluster, seed=1)
    given = parcae.JobSequence(drawn.workload, drawn.job_index, drawn.arrival_ms)
    assert parcae.simulate(given, "tuned", cluster).average_jct_s > 0
    with pytest.raises(ConfigError, match="were not drawn"):
        parcae.compare(given, ["fair"], cluster, seeds=2)


def test_all_policies_are_listed_with_their_world() -> None:
    frame = parcae.list_policies()
    assert set(frame["world"]) == {"cores", "executors", "both"}
    assert "srpt" in frame["policy"].to_list()
    assert isinstance(frame, pl.DataFrame)


def test_event_logs_become_a_workload() -> None:
    log = Path(parcae.__file__).parent / "workloads" / "bundled" / "example-event-log.zstd"
    workload = parcae.read_event_logs(log, key="spark.jobGroup.id")
    assert len(workload.jobs) == 6
    with pytest.raises(parcae.ParcaeError, match="no event log was given: name a log"):
        parcae.read_event_logs([])


def median_jct(finished: FinishedJobs) -> np.ndarray:
    """An objective of one's own: the median completion time."""
    return np.median(finished.jct_ms, axis=1)


def test_a_policy_is_learned_for_an_objective_of_one_s_own(
    jobs: parcae.JobSequence,
    cluster: parcae.Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A worker process would run a script that calls `learn` once more, from its beginning.
    monkeypatch.setattr(paired, "_WORTH_WORKERS_S", 0.0)
    monkeypatch.setattr(paired, "_play_in_workers", lambda *_: pytest.fail("a worker starts"))
    # Numbers of NumPy are numbers, too.
    given: dict[str, Any] = {"minutes": np.float32(0.02), "seeds": np.int8(2), "seed": np.uint8(3)}
    learned = parcae.learn(jobs, cluster, tmp_path / "learned", objective=median_jct, **given)
    assert learned.training.checkpoint.card["seed"] == 3
    assert "the learned policy's median job completion time is" in learned.paragraph
    again = parcae.compare(jobs, ["fair", learned.policy], cluster, seeds=2, processes=1)
    assert again.to_frame()["policy"].to_list() == ["fair", str(learned.policy)]
    with pytest.raises(ConfigError, match="does not exist"):
        parcae.learn(jobs, cluster, tmp_path / "other", objective="median")
    for minutes in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="minutes is"):
            parcae.learn(jobs, cluster, tmp_path / "other", minutes=minutes)
    # Before the learning, whose result could not be compared.
    with pytest.raises(ConfigError, match="seeds is 0: give 1 or more"):
        parcae.learn(jobs, cluster, tmp_path / "other", minutes=0.05, seeds=0)
    for seed in (-1, 256, 0.5):
        with pytest.raises(ConfigError, match=f"seed is {seed}: give 0 to 255"):
            parcae.learn(jobs, cluster, tmp_path / "other", minutes=0.05, seed=seed)  # type: ignore[arg-type]
    arrived = tuple(job.at(1_000 * row) for row, job in enumerate(jobs.workload.jobs))
    recorded = parcae.Workload("recorded", arrived).draw(2, "recorded", cluster, seed=1)
    with pytest.raises(ConfigError, match="cannot be learned on recorded arrivals"):
        parcae.learn(recorded, cluster, tmp_path / "other", minutes=0.05)
    assert not (tmp_path / "other").exists()
