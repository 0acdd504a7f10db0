"""Comparisons in worker processes that are interrupted or die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation import comparison as module
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.policies import ResolvedPolicies
from parcae.simulation.config import SimulationConfig
from tests.conftest import REPOSITORY, made_up, wait_until

_LONG = """
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.simulation.config import SimulationConfig
from parcae.workloads.synthetic import RandomDags, random_dags
import numpy as np
if __name__ == "__main__":
    shape = RandomDags(num_jobs=20, mean_tasks=40.0)
    workload = random_dags(shape, np.random.default_rng(0), "long")
    config = SimulationConfig(num_executors=50)
    world = ClusterWorld(workload, config, "poisson:1s", 400)
    compare(world, ["weighted-fair:oracle"], num_seeds=3_000, processes=2,
            progress=lambda done, total: print(done, flush=True))
"""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _hears_interrupts() -> None:
    """Tests that a shell runs in the background inherit that it ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def _long_comparison(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison of many runs in two worker processes, which ends with the context."""
    script = folder / "long.py"
    script.write_text(_LONG)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hears_interrupts,
    )
    try:
        yield process
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _starting_workers(pid: int) -> list[int]:
    """The worker processes of a comparison that have begun to import."""
    return [child for child in _children(pid) if "numpy" in Path(f"/proc/{child}/maps").read_text()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_an_interruption_while_workers_start_shows_no_traceback_of_theirs(tmp_path: Path) -> None:
    with _long_comparison(tmp_path) as process:
        wait_until(lambda: len(_starting_workers(process.pid)) == 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=180)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_an_interrupted_comparison_ends_soon_and_leaves_no_process_behind(tmp_path: Path) -> None:
    with _long_comparison(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "1"
        children = _children(process.pid)
        assert len(children) >= 2
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=180)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(_is_running(child) for child in children))


#: A command that starts a process, and ends it when it is itself ended.
_STARTS_ANOTHER = """
import subprocess, sys, time
from parcae.cli import main
def app():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        print(child.pid, flush=True)
        time.sleep(600)
    finally:
        child.kill()
        child.wait()
main.app = app
main.main()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_command_that_is_terminated_ends_what_it_started() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTS_ANOTHER], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert _is_running(child)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    wait_until(lambda: not _is_running(child))


class _Dies:
    """Ends the worker process that unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (9,)


def test_a_worker_that_dies_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterWorld, "__reduce__", _Dies.__reduce__)
    with pytest.raises(ConfigError, match="use fewer processes"):
        compare(_world(2), ["fair"], num_seeds=2, processes=2)


_GUARDED = """
import parcae


class TwoPartsError(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


def failing(view):
    raise TwoPartsError("no", "order")


if __name__ == "__main__":
    cluster = parcae.Cluster(cores=4)
    jobs = parcae.workload("toy").draw(4, "load:0.9", cluster, seed=1)

    def shortest_first(view):
        return sorted(view.jobs, key=lambda job: job.remaining_s)

    result = parcae.compare(jobs, ["fair", shortest_first], cluster, seeds=2, processes=2)
    print(len(result.policies), flush=True)
    parcae.compare(jobs, ["fair", failing], cluster, seeds=2, processes=2)
"""


def test_policies_under_the_main_guard_and_errors_of_any_kind_are_no_lost_workers(
    tmp_path: Path,
) -> None:
    script = tmp_path / "guarded.py"
    script.write_text(_GUARDED)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    # Workers do not find the function: its runs are played here.
    assert done.stdout == "2\n"
    # They cannot send this error: its kind and its text arrive all the same.
    assert done.stderr.rstrip().endswith("RuntimeError: TwoPartsError: no order")
    assert "AttributeError" not in done.stderr


def _world(num_jobs: int) -> ClusterWorld:
    return ClusterWorld(made_up(5, 4.0), SimulationConfig(num_executors=4), "batch", num_jobs)


def test_small_comparisons_start_no_processes_and_long_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Sequence[int]] = []

    def workers(
        world: ClusterWorld, resolved: ResolvedPolicies, seeds: Sequence[int], count: int
    ) -> list[object]:
        started.append(seeds)
        return list(zip(seeds, world.play(resolved, seeds), strict=True))

    monkeypatch.setattr(module, "_play_in_workers", workers)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    results = []
    for worth_s in (1e9, 0.0):
        monkeypatch.setattr(module, "_WORTH_WORKERS_S", worth_s)
        results.append(compare(_world(3), ["fair", "fifo"], num_seeds=5))
    assert started == [[1, 2, 3, 4]]
    assert results[0].to_json() == results[1].to_json()
