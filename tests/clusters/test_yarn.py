"""The plugin on a real YARN, started by `parcae spark submit`."""

from __future__ import annotations

import json
import shlex
import shutil
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parcae.base.texts import __version__
from parcae.cli.main import app
from parcae.policies.policy_file import export_policy, write_policy
from parcae.workloads.recorded_run import JobOutcome
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.synthetic import toy_workload
from tests.clusters.run import COME_AND_GO, NAMES, ON, hold, is_short_first
from tests.clusters.yarn import Yarn
from tests.spark.test_maven import deployed

pytestmark = pytest.mark.clusters


def test_client_mode_with_a_policy_of_its_own_logs(yarn: Yarn, tmp_path: Path) -> None:
    with yarn.submit(tmp_path / "first") as run:
        run.finish()
    assert ON in run.drivers()[0]
    run.check("etl")
    assert is_short_first(run.logged("etl", "default"))
    workload, _ = read_spark_event_logs([run.events])
    policy = tmp_path / "policy.json"
    write_policy(export_policy("srpt", workload), policy)
    with yarn.submit(tmp_path / "second", policy=policy) as run:
        run.finish()
    assert f"parcae: on, srpt by {policy}, which knows {len(NAMES)} jobs" in run.drivers()[0]
    run.check("etl")
    assert is_short_first(run.logged("etl", "default"))
    # The driver in a container reads the same policy, and knows the jobs by the same names.
    trace = tmp_path / "trace"
    with yarn.submit(
        tmp_path / "third", cluster=True, policy=policy, spark_parcae_trace=trace
    ) as run:
        run.finish()
    assert "parcae: on, srpt by parcae-policy.json, which knows 4 jobs" in run.drivers()[0]
    run.check("etl")
    assert is_short_first(run.logged("etl", "default"))
    known = [job for line in trace.read_text().splitlines() for job in json.loads(line)["jobs"]]
    assert {job["name"] for job in known if job["known"] == "policy"} == NAMES


def test_cluster_mode_beside_the_users_own_jars_and_files(yarn: Yarn, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("mine")
    jar = tmp_path / "own.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.write(own, "own.txt")
    own_options = ("--jars", str(jar), "--files", str(own))
    with yarn.submit(tmp_path / "run", *own_options, cluster=True) as run:
        run.finish()
    assert ON in run.drivers()[0]
    run.check("etl")
    assert (run.result["own file"], run.result["own jar"]) == ("mine", True)
    assert is_short_first(run.logged("etl", "default"))


def test_stock_commands_with_the_printed_settings(yarn: Yarn, tmp_path: Path) -> None:
    policy = tmp_path / "my policy.json"
    write_policy(export_policy("srpt", toy_workload()), policy)
    words = ["spark", "conf", "--where", "yarn-cluster", "--policy", str(policy)]
    printed = CliRunner().invoke(app, words)
    assert printed.exit_code == 0, printed.output
    pasted = shlex.split(printed.output)
    with yarn.submit(tmp_path / "pasted", *pasted, cluster=True, is_stock=True) as run:
        run.finish()
    assert "parcae: on, srpt by parcae-policy.json" in run.drivers()[0]
    run.check("etl")


def test_a_stranger_needs_two_settings(yarn: Yarn, tmp_path: Path) -> None:
    """Spark's own command and what Maven deployed, with nothing of Parcae on the machine."""
    deployed(tmp_path, yarn.spark.scala, "-DskipTests")
    options = (
        *("--repositories", (tmp_path / "repository").as_uri()),
        *("--packages", f"io.github.OWNER:parcae-spark_{yarn.spark.scala}:{__version__}"),
        *("--conf", "spark.plugins=parcae.spark.ParcaePlugin"),
        *("--conf", f"spark.jars.ivy={tmp_path}/ivy"),
    )
    for is_cluster in (True, False):
        began_s = time.monotonic()
        folder = tmp_path / f"in-{'cluster' if is_cluster else 'client'}"
        with yarn.submit(folder, *options, cluster=is_cluster, is_stock=True) as run:
            run.wait_for(ON)
            print(f"{shlex.join(map(str, run.process.args))}\nparcae: on", end=" ")
            print(f"after {time.monotonic() - began_s:.1f} s")
            run.finish()
        run.check("etl")


def test_an_executor_that_is_killed(yarn: Yarn, tmp_path: Path) -> None:
    goes_on = hold(tmp_path)
    with yarn.submit(tmp_path) as run:
        run.wait_for_start()
        run.kill("YarnCoarseGrainedExecutorBackend")
        run.wait_for(" with ID 3,")  # the one that takes its place
        goes_on.unlink()
        run.finish()
    run.check("etl")
    logged = run.logged("etl", "default")
    assert (logged.num_cores, logged.cores_at_once) == (6, 4)
    workload, report = read_spark_event_logs([run.events])
    assert workload.faults.num_lost_executors == 1
    levels = {n for job in workload.jobs for stage in job.stages for n in stage.durations.levels}
    assert max(levels) <= 4, report.notes


def test_a_second_attempt_of_the_application_master_is_on_again(yarn: Yarn, tmp_path: Path) -> None:
    with yarn.submit(tmp_path, cluster=True) as run:
        run.wait_for_start()
        time.sleep(1.5)  # both jobs run
        run.kill("deploy.yarn.ApplicationMaster")
        run.wait_for(ON, attempt=1)
        run.finish()
    first, second = run.drivers()
    assert ON in first
    assert ON in second
    run.check("etl")
    logged = run.logged("etl", "default")
    assert len(logged.applications) == 2
    assert logged.cores_at_once == 4
    assert any(job.outcome is JobOutcome.UNFINISHED for job in logged.jobs)
    _, report = read_spark_event_logs([run.events])
    assert any(f"(attempt 1 of {run.application})" in note for note in report.notes)


def test_two_people_in_two_queues_at_once(yarn: Yarn, tmp_path: Path) -> None:
    people = {"ann": "default", "etl": "etl"}
    held = [hold(tmp_path / user) for user in people]
    with ExitStack() as stack:
        runs = {
            user: stack.enter_context(
                yarn.submit(
                    tmp_path / user,
                    cluster=True,
                    user=user,
                    spark_yarn_queue=queue,
                    spark_executor_instances=1,
                )
            )
            for user, queue in people.items()
        }
        for run in runs.values():
            run.wait_for_start()
        for goes_on in held:
            goes_on.unlink()
        for run in runs.values():
            run.finish()
    shared = tmp_path / "shared"
    shared.mkdir()
    for user, run in runs.items():
        assert ON in run.drivers()[0]
        run.check(user)
        assert is_short_first(run.logged(user, people[user]))
        shutil.copytree(run.events, shared / user)
    workload, report = read_spark_event_logs([shared], recorded=True)
    assert {job.user for job in workload.jobs} == set(people)
    assert any(note.startswith("Task time by queue: ") for note in report.notes)
    for chosen in ({"user": "ann"}, {"queue": "default"}):
        run = read_spark_run([shared], **chosen)
        assert {job.user for job in run.jobs} == {"ann"}


def test_executors_that_come_and_go(yarn: Yarn, tmp_path: Path) -> None:
    with yarn.submit(tmp_path, cluster=True, pause_s=5.0, **COME_AND_GO) as run:
        run.finish()
    run.check("etl")
    logged = run.logged("etl", "default")
    assert logged.num_cores > logged.cores_at_once == 4


def test_the_control_file_switches_a_running_application(yarn: Yarn, tmp_path: Path) -> None:
    control = tmp_path / "control.json"
    goes_on = hold(tmp_path)
    settings = {"spark_parcae_control": control.as_uri(), "spark_parcae_controlMs": 500}
    with yarn.submit(tmp_path, cluster=True, **settings) as run:
        run.wait_for(ON)
        run.wait_for_start()
        for mode in ("off", "observe", "on"):
            control.write_text(json.dumps({"mode": mode}))
            run.wait_for(f"parcae: the mode is {mode} by {control.as_uri()}")
        goes_on.unlink()
        run.finish()
    run.check("etl")
    assert run.result["rounds"] >= 1
