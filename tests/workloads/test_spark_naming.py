"""Names of recurring jobs: ids that Spark generates are cut, and what users wrote stays."""

from __future__ import annotations

import pytest

from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.events import JobStart
from parcae.workloads.spark_log.naming import job_name
from parcae.workloads.spark_log.plan import NAME_PROPERTY
from tests.conftest import shared_case

_BATCH = "id = 0a1b2c3d-4e5f\nrunId = 9f8e-7d6c\nbatch = "


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tenant #1", "tenant #1"),
        ("#7", "#7"),
        ("scan of price#12, sum(price)#14L, größe#3", "scan of price, sum(price), größe"),
        ("orders where id = 5 and batch = 6", "orders where id = 5 and batch = 6"),
        ("runId = 3", "runId = 3"),
        (f"clicks\n{_BATCH}7", "clicks"),
        (f"clicks\n{_BATCH}init", "clicks"),
        *(
            (
                f'Streaming job from <a href="/streaming/batch/?id={ms}">[output operation 0, '
                f"batch time {time}]</a>",
                "Streaming job from [output operation 0]",
            )
            for ms, time in ((1795674120000, "06:22:00"), (1795674120500, "06:22:00.500"))
        ),
        (f"clicks<br/>{_BATCH}7".replace("\n", "<br/>"), "clicks<br/>"),
        *(
            (f"Listing leaf files and directories{what}", "Listing leaf files and directories")
            for what in (" 0 paths", " for 1 path:<br/>file:/a", " for 2004 paths:<br/>s3:/b, ...")
        ),
        ("Delta: Compute snapshot for version: 12", "Delta: Compute snapshot for version:"),
        *(
            (f"sum at {folder}app.py:15", "sum at app.py:15")
            for folder in ("", "/home/etl/", "/data2/application_17_0005/my jobs/", "C:\\jobs\\")
        ),
        ("collect at <console>:25", "collect at <console>:25"),
        ("copied at /data/t", "copied at /data/t"),
    ],
)
@pytest.mark.parametrize("key", [None, "my.key"])
def test_only_ids_that_spark_generates_are_cut(text: str, name: str, key: str | None) -> None:
    job = JobStart(0, 0, {key or "spark.jobGroup.id": text}, ())
    assert job_name([job], (), {}, key) == name


def test_the_plugins_setting_is_not_a_name_and_other_settings_are() -> None:
    settings = {NAME_PROPERTY: "my.key", "spark.app.name": "nightly"}
    job = JobStart(0, 0, {}, ())
    assert job_name([job], (), settings, "spark.app.name") == "nightly"
    assert job_name([job], (), settings, NAME_PROPERTY) is None
    named = JobStart(1, 0, {NAME_PROPERTY: "report"}, ())
    assert job_name([named], (), settings, NAME_PROPERTY) == "report"


def test_listings_of_files_are_one_recurring_job() -> None:
    workload, _ = read_spark_event_logs([shared_case("09-names-with-counters")])
    assert [(job.name, job.num_runs) for job in workload.jobs] == [
        ("Listing leaf files and directories", 2)
    ]
    assert workload.weights == (3.0,)


def test_names_on_yarn_are_the_same_in_every_run_and_mode() -> None:
    names = {
        mode: [job.name for job in read_spark_event_logs([shared_case(f"13-yarn/{mode}")])[0].jobs]
        for mode in ("client", "cluster")
    }
    assert names["client"] == names["cluster"] == ["sum at app.py:15", "long", "short"]
    both = [shared_case(f"13-yarn/sql-{run}") for run in (1, 2)]
    workload, _ = read_spark_event_logs(both)
    assert [job.name for job in workload.jobs] == ["collect at sql.py:3"]
    assert workload.weights == (2.0,)
