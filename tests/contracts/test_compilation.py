"""How kernels are compiled: parts, deferred kernels, and what a command says about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import parcae
from parcae.base.compiled import kernels
from parcae.base.compiled.compilation import ANNOUNCE
from parcae.base.compiled.kernels import INTEGER, PLAIN, deferred, kernel, row_of
from parcae.base.errors import ConfigError
from parcae.cluster.kernels.policies import plan
from parcae.cluster.orders import Orders


@kernel
def _turned(orders):  # type: ignore[no-untyped-def]
    return Orders(orders.stages, orders.jobs, orders.pools, orders.wake_ms), 1


@kernel
def _sum_by_turn(many):  # type: ignore[no-untyped-def]
    total = 0
    for row in range(len(many.jobs)):
        (jobs, _, pools, _), one = _turned(row_of(many, row))
        jobs[0] += row * one
        total = 10 * total + jobs[0] + pools[1]
    return total


_SORT = """
import numpy as np
from parcae.base.compiled.kernels import sort_rows
rows = np.arange(3)
sort_rows(rows, np.array([2.0, 0.0, 1.0]), 3)
print(rows.tolist())
"""
_SAYS = {ANNOUNCE: "1"}


def _run(
    program: str | Path, cache: Path | None = None, *flags: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, as text or a file, with a cache of its own."""
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    source = [str(program)] if isinstance(program, Path) else ["-c", program]
    return subprocess.run(
        [sys.executable, *flags, *source],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@kernel
def _twice(number):  # type: ignore[no-untyped-def]
    return 2 * number


@deferred(INTEGER)
def _smaller_than_two(number):  # type: ignore[no-untyped-def]
    return 1 if _twice(number) < 4 else 0


@deferred(INTEGER)
def _broken(number):  # type: ignore[no-untyped-def]
    return number.no_such_field


@kernel
def _count(numbers, reaches_broken):  # type: ignore[no-untyped-def]
    count = 0
    for number in numbers:
        count += _smaller_than_two(number)
    if reaches_broken:
        count += _broken(count)
    return count


def test_a_deferred_kernel_is_compiled_only_where_a_run_reaches_it() -> None:
    assert _count(np.array([1, 2, 3, 0]), False) == 2
    assert _smaller_than_two(1) == 1  # Python may call it, too
    assert not _broken.overloads


def test_tables_go_to_kernels_and_back_and_their_arrays_stay_those_of_python() -> None:
    stages = np.ones((3, 1), np.int64)
    many = Orders(np.zeros((3, 2)), stages, np.array([[0, 1], [0, 2], [0, 3]]), np.zeros((3, 1)))
    assert _sum_by_turn(many) == 246
    assert stages.tolist() == [[1], [2], [3]]


_TABLE = """
import numpy as np
from parcae.base.compiled.kernels import kernel
from parcae.cluster.orders import Orders

@kernel
def first(orders):
    return orders.jobs[0]

for tier in range(3):
    assert first(Orders(*np.full((4, 1), tier))) == tier
print(len(first.overloads), sum(first.stats.cache_hits.values()))
"""


def test_a_kernel_of_a_table_comes_from_the_cache_once_and_not_at_every_call(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_TABLE)
    for hits in (0, 1):
        assert _run(program, tmp_path).stdout == f"1 {hits}\n"


def test_a_deferred_kernel_that_cannot_be_compiled_ends_the_call_with_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match="_broken could not be compiled"):
        _count(np.array([1]), True)
    assert "no_such_field" in capfd.readouterr().err


@deferred(INTEGER)
def _never_compiled(number):  # type: ignore[no-untyped-def]
    return number


@kernel
def _reach_interrupted(number):  # type: ignore[no-untyped-def]
    return _never_compiled(number)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_compilation_of_a_deferred_kernel_interrupts_the_call(
    interruption: BaseException, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: object) -> int:
        raise interruption

    monkeypatch.setattr(_never_compiled, "address", interrupted)
    with pytest.raises(type(interruption)) as caught:
        _reach_interrupted(1)
    assert caught.value is interruption
    assert capfd.readouterr().err == ""


#: LLVM hands the machine code of a kernel to Python, which a user interrupts just then.
_INTERRUPTED = """
import signal
from parcae.base.compiled.compilation import _Whole
class Interrupting:
    def __set__(self, library, code):
        if code is not None:
            signal.raise_signal(signal.SIGINT)
        library.__dict__["code"] = code
    def __get__(self, library, owner):
        return library.__dict__["code"]
_Whole._compiled_object = Interrupting()
signal.signal(signal.SIGINT, signal.default_int_handler)
from parcae.base.compiled.kernels import sort_rows
import numpy as np
try:
    sort_rows(np.arange(3), np.zeros(3), 3)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interruption_while_llvm_translates_a_kernel_is_not_lost(tmp_path: Path) -> None:
    done = _run(_INTERRUPTED, tmp_path)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_command_says_once_that_it_compiles_and_a_damaged_cache_is_compiled_again(
    tmp_path: Path,
) -> None:
    first, second = (_run(_SORT, tmp_path, **_SAYS) for _ in range(2))
    files = [path for path in tmp_path.rglob("*.nb?") if path.is_file()]
    assert files
    for path in files:  # as after a loss of power
        path.write_bytes(b"" if path.suffix == ".nbi" else path.read_bytes()[:100])
    third, fourth = (_run(_SORT, tmp_path, **_SAYS) for _ in range(2))
    for done, is_compiling in ((first, True), (second, False), (third, True), (fourth, False)):
        assert done.stdout == "[1, 2, 0]\n"
        assert len(done.stderr.splitlines()) == int(is_compiling)
        assert done.stderr.startswith("parcae: compiling kernels" if is_compiling else "")


def test_a_cache_that_is_full_is_not_needed(tmp_path: Path) -> None:
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))\n"
    done = _run(limited + _SORT, tmp_path, **_SAYS)
    assert done.stdout == "[1, 2, 0]\n"
    assert len(done.stderr.splitlines()) == 1


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _run(_SORT, tmp_path / "file", **_SAYS)
    assert done.stdout == "[1, 2, 0]\n"
    (line,) = done.stderr.splitlines()
    assert f"{tmp_path / 'file' / 'kernels'} cannot be written (Not a directory)" in line


_PLAIN_SORT = """
import sys
import parcae.base.compiled.kernels
assert "parcae.base.compiled.compilation" not in sys.modules
assert parcae.base.compiled.kernels._cache_dir().name.startswith("plain-kernels-")
"""


def test_another_version_of_numba_compiles_in_its_own_way(tmp_path: Path) -> None:
    done = _run(_PLAIN_SORT + _SORT, tmp_path, "-W", "error", **{PLAIN: "1"})
    assert (done.stdout, done.stderr) == ("[1, 2, 0]\n", "")
    # A folder in which nothing can be kept, such as another user's.
    (tmp_path / "file").touch()
    done = _run(_PLAIN_SORT + _SORT, tmp_path / "file", "-W", "error", **{PLAIN: "1"})
    assert (done.stdout, done.stderr) == ("[1, 2, 0]\n", "")


_PLACE = """
from parcae.simulation.kernels.event_loop import step
print(step._cache.cache_path)
"""


def test_the_cache_is_keyed_by_what_is_compiled_and_not_by_where_it_is(tmp_path: Path) -> None:
    def place(source: Path) -> str:
        return _run(_PLACE, PYTHONPATH=str(source)).stdout

    installed = Path(parcae.__file__).parent
    here = place(installed.parent)
    copy = tmp_path / "parcae"
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert here.strip()
    unused = copy / "policies" / "rule" / "kernels.py"
    unused.write_text(unused.read_text() + "\n# A module that the event loop does not import.\n")
    assert place(tmp_path) == here
    used = copy / "cluster" / "state.py"
    used.write_text(used.read_text() + "\n# A module that it imports through others.\n")
    assert place(tmp_path) != here


_CALLED_BY_AN_OVERLOAD = """
import numba
import numpy as np
from numba.extending import overload
from parcae.base.compiled.kernels import sort_rows, kernel

@kernel
def outer(rows, key):
    sort_rows(rows, key, len(rows))
    return rows[0]

def first(rows, key):
    raise NotImplementedError

@overload(first)
def _first(rows, key):
    return lambda rows, key: outer(rows, key)

@numba.njit
def call(rows, key):
    return first(rows, key)

print(call(np.array([0, 1, 2]), np.array([3.0, 1.0, 2.0])))
"""


def test_numbas_own_overload_can_call_a_kernel_that_calls_kernels(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_CALLED_BY_AN_OVERLOAD)
    done = _run(program, tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_an_account_without_a_home_folder_needs_a_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    name = kernels._cache_dir().name
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert kernels._cache_dir() == tmp_path / "numba" / name
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels._cache_dir() == tmp_path / "parcae" / name
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    with pytest.raises(ConfigError, match="set HOME or XDG_CACHE_HOME to a folder"):
        kernels._cache_dir()
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert kernels._cache_dir() == tmp_path / ".cache" / "parcae" / name


_CALLER = """
from parcae.base.compiled.by_type import ByType
from parcae.base.compiled.kernels import kernel

answer = ByType("answer")

@kernel
def total(numbers, policy):
    found = 0
    for number in numbers:
        found += answer(number, policy)
    return found
"""
_RULES = """
from typing import NamedTuple
from caller import answer
from parcae.base.compiled.kernels import kernel

class Times(NamedTuple):
    factor: int

class Square(NamedTuple):
    nothing: int

@answer.of(Times)
@kernel
def times(number, policy):
    return policy.factor * number

@answer.of(Square)
@kernel
def square(number, policy):
    return number * number
"""
_TOTALS = """
import numpy as np
from caller import answer, total
from rules import Square, Times
print(total(np.arange(4), Times(2)), total(np.arange(4), Square(0)), answer(7, Times(3)))
"""


@pytest.mark.parametrize("mode", [{}, {PLAIN: "1"}, {"NUMBA_DISABLE_JIT": "1"}])
def test_a_kernel_is_chosen_by_the_type_of_a_policy_and_compiled_again_when_it_changes(
    mode: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "caller.py").write_text(_CALLER)
    (tmp_path / "program.py").write_text(_TOTALS)
    found = []
    texts = [_RULES, _RULES.replace("policy.factor *", "10 + policy.factor *")]
    if not mode:
        texts.insert(1, _RULES)  # it comes from the cache
    for text in texts:
        (tmp_path / "rules.py").write_text(text)
        found.append(_run(tmp_path / "program.py", tmp_path, "-B", **mode).stdout)
    assert found == [*["12 14 21\n"] * (len(texts) - 1), "52 14 31\n"]


class _Unknown(NamedTuple):
    number: int


def test_a_type_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"_Unknown has no kernel to plan: .* @plan.of\(_Unknown\)"):
        plan(0, 0, _Unknown(1))
