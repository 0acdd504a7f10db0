"""Names of recurring jobs: ids that Spark generates are cut, and what users wrote stays."""

from __future__ import annotations

import pytest

from parcae.workloads.spark_log.events import JobStart
from parcae.workloads.spark_log.naming import job_name
from parcae.workloads.spark_log.plan import NAME_PROPERTY

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
