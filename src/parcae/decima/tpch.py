"""Reads TPC-H profiles in the Decima authors' layout: a folder of npy files, or the data as JSON.

Source: Decima, section 6.2; hongzimao/decima-sim, spark_env/tpch and its preprocessing of task
durations.
"""

from __future__ import annotations

import io
import pickle
import re
import tokenize
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from parcae.base.errors import FormatError, WorkloadError, problem
from parcae.base.files import check_regular
from parcae.base.loader import members, parsed_json, read_file, read_member
from parcae.base.texts import BYTES_PER_MIB
from parcae.workloads.durations import LARGEST_DURATION_MS, MOST_TASKS, TaskDurations
from parcae.workloads.import_report import ImportReport
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload


class _Array:
    """A numpy object array; the last entry of its state is the list of its items."""

    items: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.items = state[-1]


class _DType:
    """A type of numbers, such as "i8"."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        """The byte order, which is that of all machines that wrote such files."""


def _scalar(dtype: _DType, content: bytes) -> Any:
    """A number of numpy."""
    if dtype.name[:1] not in "iuf" or len(content) > 8:
        raise pickle.UnpicklingError(f"refused: a number of type {dtype.name!r}")
    return np.frombuffer(content, np.dtype(dtype.name))[0].item()


def _encoded(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin1")


#: What stands for a global; none of them is imported. The second kind of names is that of numpy 2.
_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encoded,
}


# The reader in Python has a dict for what is to be referred to again; that in C allocates as many
# places as a file says.
class _PlainUnpickler(pickle._Unpickler):
    """Reads plain data, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global."""
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(
                f"refused: the pickle contains the global '{module} {name}'; expected only dicts, "
                "lists and numbers"
            )
        stand_in = _STAND_INS[module, name]
        # A new function, which the file may change as it likes.
        return lambda *arguments: stand_in(*arguments)


def read_plain_pickle(data: bytes, where: str) -> Any:
    """Read the dicts, lists and numbers in a pickle. `where` is for error messages. Returns the
    data; a numpy object array becomes the list of its items.
    """
    try:
        result = _PlainUnpickler(io.BytesIO(data), fix_imports=False, encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise FormatError(f"{where}: {error}") from None
    except Exception as error:  # a damaged file can do anything
        raise FormatError(
            f"{where}: a truncated or invalid pickle ({type(error).__name__}: {error})"
        ) from None
    return result.items if isinstance(result, _Array) else result


def read_object_array(data: bytes, where: str) -> Any:
    """Read a `.npy` file: numbers with numpy, a pickled object with `read_plain_pickle`.

    `where` is for error messages.
    """
    try:
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        reader = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        _, _, dtype = reader(stream)
    except (ValueError, EOFError, tokenize.TokenError) as error:
        raise FormatError(f"{where}: not a npy file ({error})") from None
    if dtype.hasobject:
        items = read_plain_pickle(data[stream.tell() :], where)
        return items[0] if isinstance(items, list) and len(items) == 1 else items
    try:
        return cast(Any, np.load(io.BytesIO(data), allow_pickle=False))
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise FormatError(f"{where}: truncated ({error})") from None


QUERIES = range(1, 23)
SIZES = ("2g", "5g", "10g", "20g", "50g", "80g", "100g")
#: Degrees of parallelism between which the released simulator interpolates. The profiles also have
#: samples at 2, which are used only to count tasks.
LEVELS = (5, 10, 20, 40, 50, 60, 80, 100)

_DECIMA = "TPC-H profiles in the Decima authors' layout"
_ERDOS = "TPC-H profiles of the ERDOS simulator (CloudLab)"
#: Entries named in a note.
_MOST_NAMES = 6

_Ms = Annotated[int, Field(ge=0, le=LARGEST_DURATION_MS)]
#: Samples by degree of parallelism.
_Lists = dict[int, list[_Ms]]
Edges = list[tuple[int, int]]
_Checked = TypeVar("_Checked")


class _Waves(BaseModel):
    """The durations of a stage's tasks by wave."""

    fresh_durations: _Lists
    first_wave: _Lists
    rest_wave: _Lists


class _Profile(BaseModel):
    """A job in the authors' layout."""

    num_stages: int
    edges: Edges
    task_durations_ms: dict[int, _Waves]


class _MeanStage(BaseModel):
    """A stage in the layout of the ERDOS simulator."""

    num_tasks: int = Field(ge=1, le=MOST_TASKS)
    average_runtime_ms: float = Field(ge=0, le=LARGEST_DURATION_MS)


class _Found(NamedTuple):
    """What a path contains."""

    jobs: list[JobSpec]
    num_files: int = 1
    source: str = _DECIMA
    notes: tuple[str, ...] = ()


def read_tpch_profiles(
    path: Path, *, name: str = "tpch-decima", progress: Callable[[int, int], None] | None = None
) -> tuple[Workload, ImportReport]:
    """Read the profiles of up to 22 queries x 7 input sizes; jobs are called "q9-100g"."""
    found = _found_in(path)
    jobs = found.jobs
    if not jobs:
        raise FormatError(
            f"{path}: no profiles; expected folders 2g..100g "
            "with adj_mat_Q.npy and task_duration_Q.npy"
        )
    provenance = {"source": found.source}
    if found.source == _DECIMA:
        provenance["measured"] = "Spark 2.2, by the Decima authors"
    workload = Workload(name, tuple(jobs), provenance=provenance)
    if progress is not None:
        progress(len(jobs), len(jobs))
    counts = (found.num_files, workload.num_stages, 0)
    return workload, ImportReport(str(path), *counts, (), found.notes, len(jobs))


def _found_in(path: Path) -> _Found:
    check_regular(path)
    if path.is_dir():
        patterns = ("*tpch_profiles.json", "cloudlab/*profiles.json")
        of_erdos = [file for pattern in patterns for file in sorted(path.glob(pattern))]
        if not of_erdos:
            return _jobs_from_npy(path)
        path = of_erdos[0]
    elif zipfile.is_zipfile(path):
        return _jobs_from_npy(path)
    data = parsed_json(path, read_file(path), "(gzipped) JSON of TPC-H profiles")
    is_erdos = isinstance(data, dict) and data and all(_ERDOS_KEY.match(key) for key in data)
    return _jobs_of_erdos(path, data) if is_erdos else _jobs_from_json(path, data)


def _checked(where: str, kind: type[_Checked], data: Any) -> _Checked:
    """Data of a certain layout; `where` is for error messages."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        (detail, *_) = error.errors(include_url=False, include_input=False)
        place = ".".join(map(str, detail["loc"]))
        raise FormatError(f"{where}: {place}: {problem(detail)}") from None


def _jobs_from_json(path: Path, data: Any) -> _Found:
    keys = {f"{size}/q{query}": f"q{query}-{size}" for query in QUERIES for size in SIZES}
    if not isinstance(data, dict) or not data.keys() & keys.keys():
        raise FormatError(
            f'{path}: expected an object with keys such as "10g/q1", of the queries 1 to '
            f"{QUERIES[-1]} at the sizes {', '.join(SIZES)}"
        )
    # An entry without content counts as absent.
    jobs = [
        _profiled_job(f"{path}: {key}", name, data[key])
        for key, name in keys.items()
        if data.get(key) is not None
    ]
    others = sorted(data.keys() - keys.keys())
    names = ", ".join(map(repr, others[:_MOST_NAMES])) + (", ..." if others[_MOST_NAMES:] else "")
    note = f"Left out {len(others)} entries that are no such query and size: {names}."
    return _Found(jobs, notes=(note,) if others else ())


#: The folders of TPC-H profiles: one for each input size.
_SIZED_FILE = re.compile(r"(?:^|(.*)/)(\d+g/[\w-]+\.npy)$")
_DEEPEST = 6
#: The released profiles have files of less than 1 MiB.
_MAX_FILE_BYTES = 32 * BYTES_PER_MIB


def _jobs_from_npy(path: Path) -> _Found:
    """The jobs of files `2g/NAME.npy` and so on, wherever they are in a folder or a zip archive."""
    if path.is_dir():
        paths = (file for depth in range(1, _DEEPEST) for file in path.glob("*/" * depth + "*.npy"))
        names = [file.relative_to(path).as_posix() for file in paths]
    else:
        names = [info.filename for info in members(path)]
    found = [match for name in names if (match := _SIZED_FILE.search(name))]
    files = {match[2]: match[0] for match in found}
    folders = sorted({match[1] or "" for match in found})
    if len(folders) > 1:
        raise FormatError(
            f"{path}: several folders have profiles ({', '.join(folders[:3])}); give one"
        )

    def read(file: str) -> tuple[Any, str]:
        """The content of a file, and what it is called in messages."""
        if file not in files:
            raise FormatError(f"{path}: there is no {file}")
        name = files[file]
        if path.is_dir():
            content, label = read_file(path / name, _MAX_FILE_BYTES), f"{path}/{name}"
        else:
            content, label = read_member(path, name, _MAX_FILE_BYTES), f"{path}!{name}"
        return read_object_array(content, label), label

    jobs = []
    for query in QUERIES:
        for size in SIZES:
            of_job = f"{size}/adj_mat_{query}.npy", f"{size}/task_duration_{query}.npy"
            if files.keys().isdisjoint(of_job):
                continue
            (matrix, label), (durations, where) = map(read, of_job)
            # Row: parent stage, column: child stage.
            shape = np.shape(matrix)
            if len(shape) != 2 or shape[0] != shape[1]:
                raise FormatError(f"{label}: expected a square adjacency matrix, not shape {shape}")
            profile = {
                "num_stages": len(matrix),
                "edges": np.argwhere(matrix).tolist(),
                "task_durations_ms": durations,
            }
            jobs.append(_profiled_job(where, f"q{query}-{size}", profile))
    return _Found(jobs, num_files=2 * len(jobs))


def _profiled_job(where: str, name: str, data: Any) -> JobSpec:
    """A job, with the same preprocessing of the samples as in the released simulator."""
    profile = _checked(where, _Profile, data)
    durations = profile.task_durations_ms
    stages = range(len(durations))
    if (
        profile.num_stages != len(stages)
        or durations.keys() != set(stages)
        or any(child not in stages for _, child in profile.edges)
    ):
        raise FormatError(
            f"{where}: expected durations and edges of stages 0..{profile.num_stages - 1}"
        )
    parents = _parents(profile.edges, len(stages))
    specs = (_stage(f"{where}, stage {row}", durations[row], parents[row]) for row in stages)
    return _job(where, name, specs)


def _job(where: str, name: str, stages: Iterable[StageSpec]) -> JobSpec:
    try:
        return JobSpec(name, tuple(stages))
    except WorkloadError as error:
        raise FormatError(f"{where}: {error}") from None


def _parents(edges: Edges, num_stages: int) -> list[tuple[int, ...]]:
    """The parents of every stage."""
    return [tuple(a for a, b in edges if b == stage) for stage in range(num_stages)]


def _stage(where: str, waves: _Waves, parents: tuple[int, ...]) -> StageSpec:
    fresh, first, rest = waves.fresh_durations, waves.first_wave, waves.rest_wave
    if not first or first.keys() != fresh.keys() or first.keys() != rest.keys():
        raise FormatError(
            f"{where}: the three waves must have the same parallelism levels, at least one"
        )
    # Every level holds all tasks of the stage: the released simulator counts those of the first.
    count_level = next(iter(first))
    num_tasks = len(first[count_level]) + len(rest[count_level])
    first = _without_fresh(first, fresh)
    all_samples = [
        ms for lists in (first, rest, fresh) for samples in lists.values() for ms in samples
    ]
    if not all_samples:
        raise FormatError(f"{where}: no task durations")
    # A level that was not measured uses the list of the largest measured one.
    durations = TaskDurations(
        LEVELS,
        *(
            tuple(np.array(lists.get(level, lists[max(lists)]), np.int64) for level in LEVELS)
            for lists in (fresh, first, rest)
        ),
    )
    return StageSpec(num_tasks, durations, parents, mean_task_ms=float(np.mean(all_samples)))


def _without_fresh(first: _Lists, fresh: _Lists) -> _Lists:
    """First-wave samples without those of fresh executors.

    The profiles list a fresh executor's first task in both waves. An empty level uses the next
    lower level's list.
    """
    result: _Lists = {}
    below: list[int] = []
    for level in sorted(first):
        remaining = list(first[level])
        for ms in fresh[level]:
            if ms in remaining:
                remaining.remove(ms)
        below = result[level] = remaining or below
    return result


_ERDOS_KEY = re.compile(r"tpch_q(\d{1,9})_(\d{1,9})g_maxCores_(\d{1,9})$")
#: The files of DAGs, and where they are, seen from the folder of the profiles.
_DAG_FILES = ("queries.yaml", "query_dag.json")
_DAG_FOLDERS = (".", "..", "../decima", "decima")
_PAIR = re.compile(r"\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_DAG_LAYOUT = '{"query_number": {"1": "[(0, 1), (1, 2)]", ...}}'
#: The lines of queries.yaml: a query, one of its stages, the stages that follow this one.
_DAG_LINE = re.compile(
    r"\s*(?:- name: Q(?P<query>\d{1,9})|- name: (?P<stage>\d{1,9})"
    r"|children: \[(?P<children>\s*(?:\d{1,9}\s*(?:,\s*|(?=\])))*)\]|#.*|graphs?:)?\s*$"
)


def _jobs_of_erdos(path: Path, data: dict[str, Any]) -> _Found:
    """The jobs of profiles of the ERDOS simulator, called "q9-100g-75c".

    Profiles of one query that were measured with another number of cores are jobs of their own,
    since they have other task counts.
    """
    places = [path.parent / folder / name for folder in _DAG_FOLDERS for name in _DAG_FILES]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise FormatError(
            f"{path}: these profiles have no edges, and there is no {' or '.join(_DAG_FILES)} in "
            "or beside their folder; copy it there (profiles/workload/tpch of the ERDOS simulator)"
        )
    dags = _dags_of_yaml(file) if file.suffix == ".yaml" else _dags_of_json(file)
    jobs = []
    for key, stages in _checked(str(path), dict[str, list[_MeanStage]], data).items():
        match = _ERDOS_KEY.match(key)
        assert match is not None, f"{key} is no key of these profiles"
        query, size, cores = match.groups()
        where = f"{path}: {key}"
        if int(query) not in dags:
            raise FormatError(f"{where}: {file} has no query {query}")
        edges = dags[int(query)]
        # The stages are those that the edges name.
        num_stages = 1 + max((max(edge) for edge in edges), default=0)
        if num_stages != len(stages):
            raise FormatError(
                f"{where}: {len(stages)} stages, but the DAG of this query has {num_stages:,}"
            )
        specs = (
            StageSpec(one.num_tasks, TaskDurations.constant(round(one.average_runtime_ms)), parents)
            for one, parents in zip(stages, _parents(edges, num_stages), strict=True)
        )
        jobs.append(_job(where, f"q{query}-{size}g-{cores}c", specs))
    note = (
        "These profiles have the mean duration of each stage only: all of its tasks take equally "
        "long. Stages are matched to the DAG by their number, as the ERDOS simulator does."
    )
    return _Found(jobs, source=_ERDOS, notes=(note,))


def _dags_of_json(path: Path) -> dict[int, Edges]:
    data = parsed_json(path, read_file(path), _DAG_LAYOUT)
    try:
        return {
            int(query): [(int(a), int(b)) for a, b in _PAIR.findall(str(edges))]
            for query, edges in data["query_number"].items()
        }
    except (LookupError, TypeError, AttributeError, ValueError):
        raise FormatError(f"{path}: expected {_DAG_LAYOUT}") from None


def _dags_of_yaml(path: Path) -> dict[int, Edges]:
    """Read the few forms of lines that the file has; no library of YAML is needed for them."""
    dags: dict[int, Edges] = {}
    query = stage = -1
    for number, line in enumerate(read_file(path).decode(errors="replace").splitlines(), 1):
        found = _DAG_LINE.match(line)
        kind = found and found.lastgroup
        if found is None or (kind in ("stage", "children") and not dags):
            raise FormatError(
                f"{path}:{number}: {line.strip()[:40]!r}; expected '- name: Q1', '- name: 0' or "
                "'children: [1, 2]'"
            )
        if kind == "query":
            query = int(found["query"])
            dags[query] = []
        elif kind == "stage":
            stage = int(found["stage"])
        elif kind == "children":
            dags[query] += [
                (stage, int(child)) for child in found["children"].split(",") if child.strip()
            ]
    return dags
