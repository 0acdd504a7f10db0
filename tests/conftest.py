"""What several tests need: where the public data lies, and small workloads."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, Workload

REPOSITORY = Path(__file__).parent.parent
_PACKING = re.compile("tests/.*(packing|deeprm|a2c)")
_SPARK = "tests/spark/"
# Commands say on standard error that they compile kernels, which depends on what ran before.
os.environ.setdefault("PARCAE_ANNOUNCE_COMPILATION", "0")
# Where bytecode is not kept, each of the hundreds of processes compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Two workers share the cores: threads of PyTorch that wait for each other would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("few", max_examples=12, deadline=None)
settings.register_profile("many", max_examples=100, deadline=None)
settings.load_profile("few")
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
SHARED_CASES = REPOSITORY.parent / "shared" / "cases"


class OneJvm(LoadFileScheduling):
    """Files go to workers whole, and those with a real Spark to one worker, for one JVM."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return _SPARK if file.startswith(_SPARK) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneJvm:
    """What spreads the tests over workers."""
    return OneJvm(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests so that two workers do not begin by compiling the same kernels twice.

    One of them begins with Spark, whose tests wait for much of their time.
    """

    def place(path: str) -> int:
        if path.endswith("cli/test_commands.py"):
            return 0
        return 1 if f"/{_SPARK}" in path else 2 if _PACKING.search(path) else 3

    items.sort(key=lambda item: place(str(item.path)))


def wait_until(holds: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until the condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not come about in {timeout_s:g} s"
        time.sleep(0.02)


def playwright_api() -> Any:
    """What drives a browser; the module's tests are skipped without it."""
    reason = "playwright, which drives the browser, is not installed"
    return pytest.importorskip("playwright.sync_api", reason=reason)


def browser_path() -> str:
    """A browser of this machine; the test is skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [path for path in map(shutil.which, names) if path]
    if not found:
        pytest.skip(f"no browser here (apt-get install chromium): none of {', '.join(names)}")
    return found[0]


def shared_data(relative: str) -> Path:
    """A file of the public data beside the checkout; the test is skipped where it is absent."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"the public data file shared/data/{relative} is not beside this checkout")
    return path


def shared_case(relative: str) -> Path:
    """An input with right values beside the checkout; the test is skipped where it is absent."""
    path = SHARED_CASES / relative
    if not path.exists():
        pytest.skip(f"the input shared/cases/{relative} is not beside this checkout")
    return path


def job(name: str, *stages: tuple[int, int, tuple[int, ...]], **fields: Any) -> JobSpec:
    """A job from (number of tasks, duration in ms, parents) for each stage, and other fields."""
    specs = tuple(StageSpec(n, TaskDurations.constant(ms), parents) for n, ms, parents in stages)
    return JobSpec(name, specs, **fields)


def batch(*jobs: JobSpec) -> JobSequence:
    """All jobs arrive at 0."""
    return JobSequence(Workload("test", jobs), np.arange(len(jobs)), np.zeros(len(jobs), np.int64))


def arriving(*jobs: tuple[JobSpec, int]) -> JobSequence:
    """Jobs with their arrival times in ms."""
    specs = tuple(spec for spec, _ in jobs)
    return JobSequence(
        Workload("test", specs), np.arange(len(jobs)), np.array([at for _, at in jobs], np.int64)
    )


def made_up(num_jobs: int, mean_tasks: float) -> Workload:
    """Random DAGs, always the same."""
    shape = RandomDags(num_jobs=num_jobs, mean_tasks=mean_tasks)
    return random_dags(shape, np.random.default_rng(0), "made up")


@pytest.fixture
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers (policies, objectives, readers) is gone after it."""
    from parcae.policies import registry
    from parcae.simulation import objectives
    from parcae.workloads import readers

    for table in (registry, readers):
        monkeypatch.setattr(table, "_REGISTERED", [])
    monkeypatch.setattr(objectives, "_REGISTERED", {})
