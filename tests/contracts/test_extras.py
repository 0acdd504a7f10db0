"""The package alone simulates, compares and serves; what an extra brings is named when missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parcae.base.errors import MissingExtraError
from parcae.base.extensions import EXTRA_OF, naming_extras
from tests.conftest import REPOSITORY

_TOO_MUCH = ("torch", "matplotlib", "gymnasium", "tensorboard", "cma", "ray", "pyspark")


def test_a_missing_library_is_reported_with_its_extra() -> None:
    with (
        pytest.raises(
            MissingExtraError, match=r"needs torch.*'parcae-scheduler\[train\]'.*whl/cpu"
        ),
        naming_extras(),
    ):
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    with pytest.raises(ModuleNotFoundError, match="numba"), naming_extras():
        raise ModuleNotFoundError("No module named 'numba'", name="numba")


#: What the package alone does, and what the networks need to decide.
_ALONE = (
    "parcae.cli.simulate",
    "parcae.cli.compare",
    "parcae.evaluation.compare",
    "parcae.service.serve",
    "parcae.api.runs",
    "parcae.api.comparing",
    "parcae.rigid.a2c.policy",
)


def test_what_the_package_alone_does_loads_no_library_of_an_extra() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {_ALONE}:\n"
        "    importlib.import_module(name)\n"
        f"    print(name, sorted(set({_TOO_MUCH}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} []" for name in _ALONE]


def test_every_extra_that_is_named_is_one_of_the_package() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    for extra in set(EXTRA_OF.values()):
        assert f"\n{extra} = [" in text


def _environment(folder: Path, extra: str) -> Path:
    """A fresh virtual environment with the package and one extra; its `bin` folder."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    package = f"{REPOSITORY}[{extra}]" if extra else str(REPOSITORY)
    options = ["--quiet", "-c", str(REPOSITORY / "constraints.txt")]
    subprocess.run([str(folder / "bin" / "pip"), "install", *options, package], check=True)
    return folder / "bin"


def _run(program: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(program), *words], capture_output=True, text=True, cwd=cwd, env=environment
    )


@pytest.mark.slow
def test_the_package_alone_simulates_compares_and_serves(tmp_path: Path) -> None:
    parcae = _environment(tmp_path / "venv", "") / "parcae"
    for words in (
        "simulate toy --policy fair --cores 4 --jobs 4 --json",
        "compare toy --policies fair,srpt --cores 4 --jobs 4 --seeds 2",
        "serve --policy fair --workload toy --port 0 --for 2",
    ):
        done = _run(parcae, *words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for words, extra in (
        ("compare toy --policies fair --cores 4 --jobs 4 --seeds 2 --report r.html", "report"),
        ("tune toy --budget 0.01 -o t.safetensors", "learn"),
    ):
        done = _run(parcae, *words.split(), cwd=tmp_path)
        assert done.returncode == 2
        assert f"pip install 'parcae-scheduler[{extra}]'" in done.stderr


_USE = {
    "report": "import parcae; cluster = parcae.Cluster(cores=2); "
    "jobs = parcae.workload('toy').draw(2, 'batch', cluster, seed=1); "
    "parcae.simulate(jobs, 'fair', cluster).gantt('g.html')",
    "learn": "import cma, parcae.learning.tune",
    "train": "import torch, cma, parcae.decima.learning.recipes",
    "rl": "import gymnasium, sb3_contrib, parcae; parcae.ModelPolicy",
    "ray": "import ray",
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(_USE))
def test_an_extra_brings_what_it_is_for(extra: str, tmp_path: Path) -> None:
    python = _environment(tmp_path / "venv", extra) / "python"
    done = _run(python, "-c", _USE[extra], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
