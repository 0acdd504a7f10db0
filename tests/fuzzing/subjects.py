"""What is fuzzed: every reader of files and the service's messages, with small valid inputs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import zstandard

from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.policy_file import export_policy, read_policy, write_policy
from parcae.policies.registry import PolicySetting, bind
from parcae.rigid.job_sets import read_packing_sets
from parcae.rigid.logs import read_log
from parcae.rigid.policies.catalog import policy_of_checkpoint
from parcae.service.learned import read_learned
from parcae.service.protocol import (
    Bye,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    OrdersMessage,
    Ping,
    StagesAdded,
    StateMessage,
    encode,
)
from parcae.service.replay import replay_recording
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import BUNDLED, load_workload, read_workload, write_workload
from parcae.workloads.job_sets import holds_spark_world_sets, read_job_sets, read_spark_world_sets
from parcae.workloads.pools import read_allocation
from parcae.workloads.readers import read_workload as import_workload
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.tables import read_deadlines, read_priorities
from parcae.workloads.workload import Workload
from tests.fuzzing import mutations as by
from tests.fuzzing.mutations import BYTES, JSON, JSON_LINES, TEXT, Damage
from tests.service.speaking import NONCE, Wire, began, ended, job_of, service_of, stages_of
from tests.service.test_record_and_replay import _recorded
from tests.workloads.spark_log_builder import small_log
from tests.workloads.test_batch_logs import LSF, PBS, SACCT, TABLE
from tests.workloads.test_query_table import BENDSET
from tests.workloads.test_stage_table import ROWS

SHIPPED = Path(read_checkpoint.__code__.co_filename).parent / "shipped"
RIGID_SHIPPED = SHIPPED.parents[1] / "rigid" / "shipped"


@dataclass(frozen=True)
class Subject:
    """A reader and what it is given.

    Args:
        name: its name in results.
        seeds: valid inputs.
        damages: the ways to damage them.
        load: reads the file.
        file_name: the name of the file.
        containers: what the damaged content is packed in.
        share: how often it is chosen; the slowest readers less often.
    """

    name: str
    seeds: Callable[[], tuple[bytes, ...]]
    damages: tuple[Damage, ...]
    load: Callable[[Path], object]
    file_name: str
    containers: tuple[Damage, ...] = (by.plain,)
    share: float = 1.0

    def damaged(self, random: Random) -> bytes:
        """A damaged input; some are damaged once more in their container."""
        content = random.choice(self._seeds())
        content = random.choice(self.damages)(content, random)
        packed = random.choice(self.containers)(content, random)
        if random.random() < 0.1 and packed:
            packed = by.damaged_bytes(packed, random)
        return packed

    def _seeds(self) -> tuple[bytes, ...]:
        return _seeds_of(self.seeds)


@cache
def _seeds_of(seeds: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...]:
    return seeds()


def _json(*values: Any) -> Callable[[], tuple[bytes, ...]]:
    return lambda: tuple(json.dumps(value).encode() for value in values)


def _importing(format_name: str, **options: Any) -> Callable[[Path], object]:
    def load(path: Path) -> object:
        return import_workload(format_name, [path], **options)

    return load


_TPCH_STAGE = {
    "fresh_durations": {"2": [30, 40], "5": [30]},
    "first_wave": {"2": [30, 40, 10], "5": [30, 9]},
    "rest_wave": {"2": [5, 6, 7], "5": [5]},
}
_TPCH = {
    "2g/q1": {
        "num_stages": 2,
        "edges": [[0, 1]],
        "task_durations_ms": {"0": _TPCH_STAGE, "1": _TPCH_STAGE},
    }
}


def _npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=True)
    return stream.getvalue()


def _tpch_zip() -> tuple[bytes, ...]:
    import zipfile

    durations = np.empty((), object)
    durations[()] = {
        stage: {wave: {int(k): v for k, v in lists.items()} for wave, lists in _TPCH_STAGE.items()}
        for stage in (0, 1)
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tpch/2g/adj_mat_1.npy", _npy(np.array([[0, 1], [0, 0]])))
        archive.writestr("tpch/2g/task_duration_1.npy", _npy(durations))
    return (packed.getvalue(),)


_ALIBABA_CSV = (
    b"M1,10,j_1,1,Terminated,100,110,100,0.5\nR2_1,5,j_1,1,Terminated,110,130,50,0.3\n"
    b"task_Nzg3,1,j_2,1,Terminated,105,106,,\nJ3_1_2,2,j_1,1,Failed,130,150,100,0.5\n"
)
_ALIBABA_TASK = {"instance_num": 3, "start_time": 10, "end_time": 20, "plan_cpu": 100}
_ALIBABA_JOB = {
    "job_name": "j_1",
    "tasks": [
        {"task_name": "M1", **_ALIBABA_TASK, "plan_mem": 0.4, "duration_s": 4.5},
        {"task_name": "R2_1", **_ALIBABA_TASK, "plan_mem": 0.1, "duration_s": 4.5},
    ],
}
_SWF = (
    b"; Version: 2.2\n; MaxProcs: 64\n"
    b"1 0 5 100 4 -1 -1 4 200 -1 1 1 1 1 1 1 -1 -1\n"
    b"2 10 5 50 8 -1 1024 8 60 2048 1 2 1 1 1 1 -1 -1\n"
    b"3 20 0 0 1 -1 -1 1 10 -1 5 2 1 1 1 1 -1 -1\n4 30 1 7.5 2 -1 -1 2 10 -1 0 2 1 1 1 1 -1 -1\n"
)
_JOB_SETS = {"sets": {"a": {"exec": 5, "jobs": [[1, "2g", 0], [1, "2g", 500]], "moving_delay": 9}}}
_SPARK_WORLD = {
    "format": "parcae spark world conformance 1",
    "sets": [
        {
            "name": "a",
            "cores": 8,
            "pools": {"p": {"weight": 1, "min_share": 0}},
            "jobs": [
                {"arrival_ms": 0, "edges": [[0, 1]], "task_ms": [[5, 6], [7]], "pool": "p"}
                | {"tier": 0, "limits": [2, 2]},
                {"arrival_ms": 9, "task_ms": [[5, 6]]},
            ],
            "expected": {"fifo": {"completion_ms": [5, 6]}},
        }
    ],
}
_PARAMS = {"job_slots": 3, "backlog_size": 4, "time_horizon": 9, "capacity": [5, 5]}
_PACKING = {
    "sequences": [
        {"name": "a", "arrival_window": 9, "params": _PARAMS}
        | {"jobs": [[0, 2, 1, 1], [3, 4, 5, 2]], "expected": {}}
    ]
}
_POOLS_XML = (
    b'<?xml version="1.0"?>\n<allocations>\n<pool name="etl"><schedulingMode>FAIR</schedulingMode>'
    b"<weight>2</weight><minShare>4</minShare></pool>\n"
    b'<pool name="adhoc"><weight>1</weight></pool>\n</allocations>\n'
)
_POOLS_JSON = {
    "pools": {"etl": {"weight": 2, "min_share": 4, "mode": "FAIR"}, "b": {}},
    "jobs": {"q1*": "etl"},
}
_LEARNED = {
    "parcae_learned": 1,
    "tasks": [["nightly", 0, 12, 250.5], ["daily", 1, 3, 20.0]],
    "runs": [["nightly", [100, 200]]],
}
_CLOUDLAB = {"tpch_q1_2g_maxCores_50": [{"num_tasks": 3, "average_runtime_ms": 9}] * 2}


_DAGS = {"query_number": {"1": "[(0, 1)]", "2": "[(0, 1), (0, 2)]"}}
_DAGS_YAML = b"""graphs:
  - name: Q1
    graph:
    - name: 0
      children: [1]
    - name: 1
""".replace(b"    graph:\n", b"")


def _beside(name: str, content: bytes) -> Callable[[Path], object]:
    """Import profiles that have another file beside them; either is the damaged one."""

    def load(path: Path) -> object:
        (path.parent / name).write_bytes(content)
        profiles = (
            path if path.suffix == ".json" and "profiles" in path.name else path.parent / name
        )
        return import_workload("tpch-profiles", [profiles])

    return load


def _in_folder(write: Callable[[Path], Path]) -> bytes:
    with TemporaryDirectory() as folder:
        return write(Path(folder)).read_bytes()


def _parcae_files() -> tuple[bytes, ...]:
    workload, _ = _read_content(small_log(runs=3), "log", _importing("spark-events"))
    profiles, _ = _read_content(json.dumps(_TPCH).encode(), "p.json", _importing("tpch-profiles"))

    def written(one: Workload) -> bytes:
        def write(folder: Path) -> Path:
            write_workload(one, folder / "w.parcae")
            return folder / "w.parcae"

        return _in_folder(write)

    return written(workload), written(profiles)


def _read_content(content: bytes, name: str, load: Callable[[Path], Any]) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return load(path)


def _stages_csv() -> tuple[bytes, ...]:
    text = [
        {name: ";".join(map(str, c)) if isinstance(c, list) else c for name, c in row.items()}
        for row in ROWS
    ]
    return (pl.DataFrame(text, strict=False).write_csv().encode(),)


def _stages_parquet() -> tuple[bytes, ...]:
    stream = io.BytesIO()
    pl.DataFrame(ROWS).write_parquet(stream)
    return (stream.getvalue(),)


def _shipped(*names: str, folder: Path = SHIPPED) -> Callable[[], tuple[bytes, ...]]:
    return lambda: tuple((folder / name).read_bytes() for name in names)


@cache
def _toy() -> Workload:
    return load_workload("toy")


def _load_checkpoint(path: Path) -> object:
    checkpoint = read_checkpoint(path)
    world = "cores" if checkpoint.kind.startswith("order") else "executors"
    config = SimulationConfig(num_executors=5, world=world)
    return bind(checkpoint, str(path), PolicySetting(_toy(), config))


def _load_packing_checkpoint(path: Path) -> object:
    return policy_of_checkpoint(read_checkpoint(path), str(path), str(path))


def _policy_files() -> tuple[bytes, ...]:
    def write(folder: Path) -> Path:
        write_policy(export_policy("tuned:cores", _toy()), folder / "p.json")
        return folder / "p.json"

    return (_in_folder(write),)


def _recordings() -> tuple[bytes, ...]:
    def write(folder: Path) -> Path:
        _recorded(folder, "fair")
        return next(folder.iterdir())

    lines = _in_folder(write).split(b"\n")
    # The whole recording is replayed in a tenth of a second; its beginning, in a fiftieth.
    return (b"\n".join(lines[:40]),)


def _load_spark_world(path: Path) -> object:
    return holds_spark_world_sets(path) and read_spark_world_sets(path)


def _replay(path: Path) -> object:
    return replay_recording([path], "fifo", _toy())


_PACKED = (by.plain, by.plain, by.gz, by.zst)
_ARCHIVED = (by.zipped("log"), by.zipped("events_1_app"), by.tar)
_LOG_CONTAINERS = (*_PACKED, by.lz4_blocks, by.snappy, by.lzf, *_ARCHIVED)


def _logs() -> tuple[bytes, ...]:
    packed = (BUNDLED / "example-event-log.zstd").read_bytes()
    real = zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 24)
    # The start and one query of a real log.
    return small_log(runs=2), small_log(runs=1), b"".join(real.splitlines(keepends=True)[:100])


def _requests() -> list[bytes]:
    """What a client says in a session, in order."""
    jobs = tuple(job_of(f"j{n}", (3, ()), (2, (0,)), name="nightly") for n in range(2))
    events = (
        JobArrived(job=job_of("k", (2, ()), is_open=True)),
        StagesAdded(job_id="k", stages=stages_of((1, (0,)), first=1)),
        began("j0", 0, 2),
        ended("j0", 0, 1, 250),
        JobEnded(job_id="j1"),
    )
    return [
        encode(Hello(protocol=2, application_id="app", nonce=NONCE)),
        encode(StateMessage(seq=1, clock_ms=5, cores=4, jobs=jobs)),
        encode(Events(seq=2, clock_ms=6, events=events[:3])),
        encode(Events(seq=3, clock_ms=9, cores=6, events=events[3:])),
        encode(Ping(seq=4)),
        encode(Bye()),
    ]


def _session() -> tuple[bytes, ...]:
    return (b"\n".join(_requests()),)


def _serve(path: Path) -> object:
    """Send each line to a session; a bystander's session must go on."""
    service = service_of()
    bystander = Wire(service)
    said = _requests()
    bystander.session.receive(said[0].replace(b'"app"', b'"other"'))
    session = service.open()
    for line in path.read_bytes().split(b"\n"):
        for reply in session.receive(line):
            encode(reply)
    session.close()
    (orders,) = bystander.session.receive(said[1])
    assert isinstance(orders, OrdersMessage), orders
    return session


READERS: tuple[Subject, ...] = (
    Subject("spark-events", _logs, JSON_LINES, _importing("spark-events", max_bad_share=1.0),
            "log", _LOG_CONTAINERS, 6),
    Subject("recorded jobs", _logs, JSON_LINES,
            _importing("spark-events", max_bad_share=1.0, recorded=True), "log", _LOG_CONTAINERS),
    Subject("recorded run", _logs, JSON_LINES, lambda path: read_spark_run([path]), "log",
            _LOG_CONTAINERS),
    Subject("tpch-profiles json", _json(_TPCH), JSON, _importing("tpch-profiles"), "p.json",
            (by.plain, by.gz)),
    Subject("tpch-profiles cloudlab", _json(_CLOUDLAB), JSON,
            _beside("query_dag.json", json.dumps(_DAGS).encode()), "x_tpch_profiles.json"),
    Subject("tpch dags json", _json(_DAGS), JSON,
            _beside("x_tpch_profiles.json", json.dumps(_CLOUDLAB).encode()), "query_dag.json"),
    Subject("tpch dags yaml", lambda: (_DAGS_YAML,), TEXT,
            _beside("x_tpch_profiles.json", json.dumps(_CLOUDLAB).encode()), "queries.yaml"),
    Subject("tpch-profiles zip", _tpch_zip,
            (by.members_damaged(by.damaged_bytes, by.damaged_array), by.damaged_bytes),
            _importing("tpch-profiles"), "p.zip"),
    Subject("alibaba csv", lambda: (_ALIBABA_CSV,), TEXT,
            _importing("alibaba", max_bad_share=1.0), "batch_task.csv"),
    Subject("alibaba csv.gz", lambda: (_ALIBABA_CSV,), TEXT, _importing("alibaba"),
            "batch_task.csv.gz", (by.gz,)),
    Subject("alibaba json", lambda: (b"\n".join([json.dumps(_ALIBABA_JOB).encode()] * 3),),
            JSON_LINES, _importing("alibaba", max_bad_share=1.0), "jobs.json"),
    Subject("csv", _stages_csv, TEXT, _importing("csv"), "s.csv", _PACKED),
    Subject("queries", lambda: (BENDSET.encode(),), TEXT,
            _importing("queries", max_bad_share=1.0), "q.csv"),
    Subject("json", lambda: (json.dumps(ROWS).encode(),), JSON, _importing("json"), "s.json",
            _PACKED),
    Subject("json lines", lambda: (b"\n".join(json.dumps(row).encode() for row in ROWS),),
            JSON_LINES, _importing("json"), "s.jsonl", _PACKED),
    Subject("parquet", _stages_parquet, BYTES, _importing("parquet"), "s.parquet", share=0.02),
    Subject("swf", lambda: (_SWF,), TEXT, lambda path: read_log(path, max_bad_share=1.0),
            "l.swf"),
    Subject("accounting", lambda: (SACCT.encode(), PBS.encode(), LSF.encode(), TABLE.encode()),
            TEXT, lambda path: read_log(path, max_bad_share=1.0), "jobs.txt"),
    Subject("swf.gz", lambda: (_SWF,), TEXT, read_log, "l.swf.gz", (by.gz,)),
    Subject("job sets", _json(_JOB_SETS), JSON, read_job_sets, "sets.json"),
    Subject("spark world sets", _json(_SPARK_WORLD), JSON, _load_spark_world, "sets.json"),
    Subject("packing sets", _json(_PACKING), JSON, read_packing_sets, "sets.json"),
    Subject("allocation xml", lambda: (_POOLS_XML,), TEXT, read_allocation, "fair.xml"),
    Subject("allocation json", _json(_POOLS_JSON), JSON, read_allocation, "fair.json"),
    Subject("priorities", lambda: (b"job,priority\ndash*,10\n*,-5\n",), TEXT, read_priorities,
            "priorities.csv"),
    Subject("deadlines", lambda: (b"job,deadline\netl-*,5m\nq21,90\n*,1.5h\n",), TEXT,
            read_deadlines, "deadlines.csv"),
    Subject(".parcae", _parcae_files,
            (by.members_damaged(by.damaged_bytes), *[by.members_damaged(by.damaged_array)] * 3,
             by.damaged_bytes), read_workload, "w.parcae", share=2),
    Subject("checkpoints", _shipped("tuned-batch.safetensors", "tuned-cores.safetensors",
            "parcae-cores.safetensors", "corrector-batch.safetensors", "decima-batch.safetensors"),
            (by.damaged_tensors,), _load_checkpoint, "c.safetensors"),
    Subject("packing checkpoints", _shipped("set-steps.safetensors",
            "deeprm-0.1.safetensors", "a2c-rates.safetensors", folder=RIGID_SHIPPED),
            (by.damaged_tensors,), _load_packing_checkpoint, "c.safetensors", share=0.2),
    Subject("policy files", _policy_files, JSON, read_policy, "policy.json"),
    Subject("recordings", _recordings, JSON_LINES, _replay, "r-000.jsonl", share=0.7),
    Subject("service messages", _session, JSON_LINES, _serve, "session", share=3),
    Subject("learned durations", _json(_LEARNED), JSON, read_learned, "learned.json"),
)  # fmt: skip
