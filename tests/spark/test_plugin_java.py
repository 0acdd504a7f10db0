"""Tests of the plugin's names in Java and of its sources, with a JDK and Spark's jars."""

from __future__ import annotations

import json
import random
from pathlib import Path

from parcae.spark.jar import sources_folder
from parcae.workloads.spark_log.application import JobStart, SqlRecord, StageInfo
from parcae.workloads.spark_log.naming import JobGroup, job_name
from parcae.workloads.spark_log.plan import read_plan
from tests.spark.java import java_sources, run_java


def test_lines_are_as_short_as_elsewhere() -> None:
    for path in java_sources(sources_folder() / "src"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 100, f"{path}:{number}"
            assert "\t" not in line, f"{path}:{number}"


_DESCRIPTIONS = (
    "",
    "  nightly\t report,  ",
    "q" * 79,
    "q" * 80,
    "q" * 81,
    "😀" * 81,
    "Broadcast exchange (runId 0a1b)",
    "a broadcast exchange (runId 0a1b)",
    "id = 0a1b2c3d-0000\nrunId = 11-22\nbatch = 17",
    "batch = init",
    "mybatch = 12",
    "table#12L, table#7",
    "tenant #1",
    "#7",
    "sum(x)#12L + (y #3)",
    "ä#1, 😀#2, \u00a0#3, é #4",
    "orders where id = 5 and batch = 6",
    "clicks\nid = 0a1b2c3d-00\nrunId = 11-22\nbatch = init",
    "clicks<br/>id = 0a1b2c3d-00<br/>runId = 11-22<br/>batch = 3",
    'Streaming job from <a href="/streaming/batch/?id=1795674120000">[output operation 0, batch '
    "time 06:22:00.500]</a>",
    "café\u00a0crème\u2003très\x1clong\x85",
    "#٣٤ x",
    " , , ",
    "Listing leaf files and directories for 2004 paths:<br/>file:/data/t/day=2004, ...",
    "Listing leaf files and directories for 1 path:<br/>file:/data/été",
    "Listing leaf files and directories 0 paths",
    "Delta: Compute snapshot for version: 12: snapshot for version: 13",
    "sum at /data2/yarn/local/application_17_0005/container_17_0005_01_000001/app.py:15",
    "sum at C:\\jobs\\my app.py:15",
    "sum at app.py:15",
    "look at /data/x\u2028/y.csv:12 now",
    "sum at /a/été\x85/b:7",
    '/* {"app": "dbt", "target_name": "a*b", "node_id": "model.shop.orders"} */ select 1',
    '\n/*\t{"app": "dbt", "node_id" : "model.shop.orders#7"}*/\nselect 1',
    '/* {"node_id": "model.a", "node_id": "model.b"} */ /* {"node_id": "model.c"} */ select 1',
    '/* {"node_id": " , "} */ select 1',
    'select \'/* {"node_id": "model.shop.orders"} */\'',
    f'/* {{"node_id": "model.{200 * "a"}"}} */ select 1',
)
#: Long blanks need no stack, and long rows of marks no time.
_LONG = (
    f"select * from t where id = 5{20_000 * ' '}and day = 3",
    f"values (3{100_000 * ', '})",
    f'/* {{"app": "{50_000 * "a"}", "node_id": "model.a.b"}} */ select 1',
    f"/* {{{50_000 * '{'}",
)
_GROUPS = (
    "",
    "nightly",
    "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
    "0123456789abcdef0",
    "abcdef01",
    "job 6f9619ff8b86d011 of today",
    "  ",
    "batch = 3",
    "17",
    " 17 ",
    "17\n",
    "٣٤",
)


#: The last stage names a job whose properties hold no name.
_LAST_STAGE = StageInfo(0, 0, "collect at  Main.scala:7", 1, (), 0, ())


def _name_cases() -> list[dict[str, object]]:
    draw = random.Random(7)
    made = [
        "".join(draw.choices("ab# ,=id0f-batchL\t\nÄ😀\u2003", k=draw.randrange(120)))
        for _ in range(300)
    ]
    texts = [
        *((group, "", "") for group in _GROUPS),
        *((group, text, "count at x.py:3") for group in _GROUPS for text in _DESCRIPTIONS),
        ("", "", ""),
        *(("", text, "") for text in [*_DESCRIPTIONS, *_LONG, *made]),
        *((text, text, text) for text in made),
    ]
    queries = ("", "count at Main.scala:5", " , ", *_DESCRIPTIONS[-8:])
    cases = list[dict[str, object]]()
    for group, description, site in texts:
        properties = {
            "spark.jobGroup.id": group,
            "spark.job.description": description,
            "callSite.short": site,
            "my.key": site,
        }
        properties = {name: value for name, value in properties.items() if value}
        job = JobStart(0, 0, properties, (_LAST_STAGE,))
        query = description if description in _LONG else draw.choice(queries)
        sql = [SqlRecord(0, 0, query, 0, read_plan({}), None)] if query else []
        for key in ("", "my.key", "spark.jobGroup.id", "spark.job.description"):
            # The reader leaves out jobs without the key; the plugin names them as without a key.
            group = JobGroup([job], sql)
            name = job_name(group, {}, key or None) or job_name(group, {}, None)
            case = {"properties": properties, "key": key, "execution": query, "name": name}
            cases.append({**case, "stage": _LAST_STAGE.name})
    return cases


def test_names_are_those_of_the_event_logs_reader(class_path: str, tmp_path: Path) -> None:
    cases = _name_cases()
    path = tmp_path / "names.json"
    path.write_text(json.dumps(cases))
    assert f"{len(cases) + 1} checks" in run_java(class_path, "NamesTest", path)
