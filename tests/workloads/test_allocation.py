"""Spark's allocation files, as XML and as JSON, and which job goes to which pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import ConfigError, FormatError, InputError
from parcae.workloads.pools import Allocation, PoolSpec, read_allocation

# As in Spark's conf/fairscheduler.xml.template.
_XML = """<?xml version="1.0"?>
<!-- a comment -->
<allocations>
  <pool name="production">
    <schedulingMode> fair </schedulingMode>
    <weight>1</weight>
    <minShare>2</minShare>
  </pool>
  <pool name="test">
    <schedulingMode>FIFO</schedulingMode>
    <weight>2</weight>
    <minShare>3</minShare>
  </pool>
  <pool name="plain"/>
</allocations>
"""
_JSON = {
    "pools": {"etl": {"weight": 2.5, "min_share": 4, "mode": "FAIR"}, "q9": {}},
    "jobs": {"q1": "q9", "q1*": "etl", "zz": "default"},
}


def written(tmp_path: Path, name: str, content: Any) -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_sparks_own_file_is_read(tmp_path: Path) -> None:
    for name in ("pools.xml", "pools.conf"):
        allocation = read_allocation(written(tmp_path, name, _XML))
        assert allocation.pools == (
            PoolSpec("production", 1, 2, "FAIR"),
            PoolSpec("test", 2, 3, "FIFO"),
            PoolSpec("plain", 1, 0, "FIFO"),
        )
        assert allocation.job_pools == ()
        assert allocation.all_pools[3:] == (PoolSpec("default", 1, 0, "FIFO"),)


def test_json_sends_jobs_to_pools(tmp_path: Path) -> None:
    allocation = read_allocation(written(tmp_path, "pools.json", _JSON))
    assert allocation.pools == (PoolSpec("etl", 2.5, 4, "FAIR"), PoolSpec("q9"))
    assert allocation.job_pools == (("q1", "q9"), ("q1*", "etl"), ("zz", "default"))
    assert allocation.pool_of("q1") == "q9"  # the first pattern that matches
    assert allocation.pool_of("q17") == "etl"
    assert allocation.pool_of("Q17") == "default"
    assert allocation.pool_of("q9") == "q9"  # the pool that is called as the job
    assert allocation.pool_of("q17", "q9") == "etl"  # a pattern comes before the recorded pool
    assert allocation.pool_of("a", "q9") == "q9"
    made = allocation.with_pools(["unknown", "etl", "unknown"])
    assert made.pool_of("a", "unknown") == "unknown"  # Spark makes the pools that jobs name
    assert made.pools == (*allocation.pools, PoolSpec("unknown", 1, 0, "FIFO"))
    named = Allocation((PoolSpec("etl"),), (("nightly [eu]", "etl"),))
    assert named.pool_of("nightly [eu]") == "etl"  # equal, though the pattern means another name
    assert allocation.pools_of(["q1", "q2"], [None, "etl"]) == ("q9", "etl")


def test_a_pool_that_no_job_goes_to_is_refused(tmp_path: Path) -> None:
    allocation = read_allocation(written(tmp_path, "pools.json", _JSON))
    allocation.check_used(["q9", "q12"])
    allocation.check_used(["a", "b"], ["etl", "q9"])
    message = "no job is assigned to pool 'q9'; jobs and recorded pools are a, q12;"
    with pytest.raises(ConfigError, match=message):
        allocation.check_used(["q12", "a"])
    Allocation((PoolSpec("default", 3),)).check_used(["a"])
    assert Allocation((PoolSpec("default", 3),)).all_pools == (PoolSpec("default", 3),)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"weight": 0}, "pools.p.weight is 0: Input should be greater than 0; expected"),
        ({"weight": float("nan")}, "weight is NaN"),
        ({"weight": float("inf")}, "weight is Infinity"),
        ({"weight": 10**400}, "weight is 1000"),
        ({"weight": "2"}, 'weight is "2": Input should be a number'),
        ({"weight": True}, "weight is true"),
        ({"min_share": -1}, "min_share is -1: Input should be greater than or equal to 0"),
        ({"min_share": 1.5}, "min_share is 1.5"),
        ({"min_share": "2"}, 'min_share is "2"'),
        ({"min_share": True}, "min_share is true"),
        ({"mode": "NONE"}, "mode is \"NONE\": Input should be 'FIFO' or 'FAIR'"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(tmp_path: Path, values: Any, says: str) -> None:
    _assert_refused(written(tmp_path, "p.json", {"pools": {"p": values}}), says)


_TOP = "<allocations>%s</allocations>"
_POOL = _TOP % '<pool name="p">%s</pool>'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not XML"),
        ('<?xml version="1.0" encoding="nonsense"?><allocations/>', "not XML"),
        ("<queues/>", "the root is <queues>"),
        (_TOP % '<pol name="a"/>', "element 0 of <allocations> is no pool; write <pool name=...>"),
        (_TOP % "<pool/>", "element 0 of <allocations> is no pool"),
        (_TOP % '<pool nam="a"/>', "element 0 of <allocations> is no pool"),
        (_TOP % '<pool name="a" nam="a"/>', "element 0 of <allocations> is no pool"),
        (_TOP % '<pool name="p"/><pool name="p"/>', "pool 'p' is defined twice"),
        (_POOL % "<wait>1</wait>", 'pools.p.wait is "1": Extra inputs are not permitted'),
        (_POOL % '<pool name="q"/>', 'pools.p.pool is "": Extra inputs are not'),
        (_POOL % "<weight>1</weight><weight>2</weight>", "<weight> is given twice"),
        (_POOL % "<weight>1.5</weight>", "<weight> is '1.5'; Spark reads only whole numbers"),
        (_POOL % "<weight>0</weight>", "weight is 0"),
        (_POOL % "<schedulingMode>LIFO</schedulingMode>", 'mode is "LIFO"'),
    ],
)
def test_bad_files_of_spark_get_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    _assert_refused(written(tmp_path, "p.xml", text), says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "the file is []: Input should be a valid dictionary"),
        ("{}", "pools is missing"),
        ('{"pools": []}', "pools is []: Input should be a valid dictionary"),
        ('{"pools": {}, "pool": {}}', "pool is {}: Extra inputs are not permitted"),
        ('{"pools": {"p": 1}}', "pools.p is 1: Input should be a valid dictionary"),
        ('{"pools": {"p": {}, "p": {}}}', "'p' is defined twice; keep one"),
        ('{"pools": {"p": {"minShare": 1}}}', "pools.p.minShare is 1: Extra inputs"),
        (
            '{"pools": {"p": {"schedulingMode": "FIFO"}}}',
            "Extra inputs are not permitted; expected",
        ),
        ('{"pools": {"": {}}}', 'pools..[key] is "": String should have at least 1'),
        ('{"pools": {}, "jobs": {"a": 1}}', "jobs.a is 1: Input should be a valid string"),
        ('{"pools": {}, "jobs": {"": "default"}}', 'jobs..[key] is ""'),
        ('{"pools": "p\\u0000.xml"}', "it is the path of Spark's file"),
        (
            '{"pools": {"etl": {}}, "jobs": {"a*": "elt"}}',
            "'a*' are assigned to pool 'elt', which is not defined; did you mean 'etl'?",
        ),
    ],
)
def test_bad_json_gets_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    _assert_refused(written(tmp_path, "p.json", text), says)


def _assert_refused(path: Path, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_allocation(path)
    message = str(caught.value)
    assert says in message
    assert message.startswith(str(path))
    assert "\n" not in message


def test_entities_are_refused_before_they_grow(tmp_path: Path) -> None:
    laughs = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    bomb = (
        f'<!DOCTYPE x [<!ENTITY a0 "ha">{laughs}]><allocations><pool name="&a11;"/></allocations>'
    )
    outside = '<!DOCTYPE x SYSTEM "file:///etc/hostname"><allocations/>'
    for text in (bomb, outside):
        with pytest.raises(
            FormatError, match="has a DOCTYPE, which may define entities; remove it"
        ):
            read_allocation(written(tmp_path, "p.xml", text))


def test_json_may_name_the_file_of_spark_for_its_pools(tmp_path: Path) -> None:
    (tmp_path / "fairscheduler.xml").write_text(
        '<allocations><pool name="etl"><weight>3</weight></pool></allocations>'
    )
    path = tmp_path / "tenants.json"
    path.write_text('{"pools": "fairscheduler.xml", "jobs": {"q*": "etl"}}')
    allocation = read_allocation(path)
    assert allocation.pools == (PoolSpec("etl", 3),)
    assert allocation.pools_of(["q1", "other"]) == ("etl", "default")
    path.write_text('{"pools": "tenants.json"}')
    with pytest.raises(FormatError, match="it is the path of Spark's file"):
        read_allocation(path)
    path.write_text('{"pools": "nowhere.xml"}')
    with pytest.raises(FileNotFoundError):
        read_allocation(path)


def test_the_file_of_spark_may_have_pools_without_jobs_but_not_only_such(tmp_path: Path) -> None:
    pools = "".join(f'<pool name="{name}"/>' for name in ("default", "etl", "web"))
    path = tmp_path / "fairscheduler.xml"
    path.write_text(f"<allocations>{pools}</allocations>")
    read_allocation(path).check_used(["a", "b"], ["etl", None])
    with pytest.raises(ConfigError, match="no job is assigned to pool 'etl'"):
        read_allocation(path).check_used(["a", "b"], ["elt", None])
    tenants = tmp_path / "tenants.json"
    tenants.write_text('{"pools": "fairscheduler.xml", "jobs": {"a": "web"}}')
    read_allocation(tenants).check_used(["a", "b"])
