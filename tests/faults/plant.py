"""Plant the faults of `table.py` one after another, and see which the tests find.

    python -m tests.faults.plant --results faults.jsonl          # goes on where it was stopped
    python -m tests.faults.plant --results faults.jsonl --only share-times-weight
    python -m tests.faults.plant --list

It works in a copy of the tree. A fault is found if its tests pass without it and fail with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 400.0
_LEFT_OUT = (".git", ".venv", "*_cache", ".hypothesis", "__pycache__", "build", "dist", "results")


def sources(root: Path) -> list[Path]:
    """The files in which faults are planted."""
    return [
        *(root / "src").rglob("*.py"),
        *(root / "spark-plugin" / "src" / "main").rglob("*.java"),
    ]


def places(faults: tuple[Fault, ...], root: Path = ROOT) -> dict[str, list[Path]]:
    """By fault, the files that have its snippet, each as often as it does."""
    texts = {path: path.read_text(encoding="utf-8") for path in sources(root)}
    return {
        fault.name: [p for p, text in texts.items() for _ in range(text.count(fault.right))]
        for fault in faults
    }


def run_tests(tree: Path, fault: Fault) -> tuple[bool, float, str]:
    """Whether the fault's tests pass, how long they took in s, and the end of what they say."""
    # Python runs the kernels: to compile them with each fault would take longer than the tests.
    own = {"PYTHONPATH": f"{tree}/src", "NUMBA_DISABLE_JIT": "1"}
    paths, _, names = fault.tests.partition(" -k ")
    chosen = [f"tests/{path}" for path in paths.split()]
    if names:
        chosen += ["-k", *shlex.split(names)]
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore"]
    begun_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *chosen],
            cwd=tree,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False, TIMEOUT_S, "ran into the timeout"
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # 1 says that tests failed; anything else, such as a wrong selection, finds no fault.
    if done.returncode not in (0, 1) or (done.returncode == 1 and not said):
        raise SystemExit(
            f"{fault.name}: pytest ended with {done.returncode}\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == 0, time.monotonic() - begun_s, said[0] if said else ""


def plant(tree: Path, fault: Fault, clean: dict[str, bool]) -> dict[str, object]:
    """Run the fault's tests without it (once for each selection) and with it."""
    if fault.tests not in clean:
        clean[fault.tests] = run_tests(tree, fault)[0]
    (path,) = places((fault,), tree)[fault.name]
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    try:
        passes, took_s, by = run_tests(tree, fault)
    finally:
        path.write_text(text, encoding="utf-8")
    is_found = clean[fault.tests] and not passes
    return {
        "name": fault.name,
        "area": fault.area,
        "is_found": is_found,
        "passes_without": clean[fault.tests],
        "seconds": round(took_s, 1),
        "by": by,
    }


def main() -> int:
    """Plant what is left to plant. Returns 1 if a fault is not found."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--results", type=Path, default=Path("faults.jsonl"), help="JSON lines, added to"
    )
    parser.add_argument("--only", action="append", default=[], help="this fault, again")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    wrong = {name: paths for name, paths in places(FAULTS).items() if len(paths) != 1}
    for name, paths in wrong.items():
        print(f"{name}: its snippet occurs {len(paths)} times")
    if chosen.list:
        for fault in FAULTS:
            print(f"{fault.area:12} {fault.name:40} {fault.tests}")
    if wrong or chosen.list:
        return int(bool(wrong))
    results = chosen.results.resolve()
    kept = results.read_text().splitlines() if results.exists() else []
    done = {row["name"]: row for row in map(json.loads, kept)}
    clean: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        if (data := ROOT.parent / "shared").exists():  # public data that some tests read
            (tree.parent / "shared").symlink_to(data)
        for fault in FAULTS:
            if fault.name not in (chosen.only or {f.name for f in FAULTS} - done.keys()):
                continue
            row = done[fault.name] = plant(tree, fault, clean)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            verdict = "found" if row["is_found"] else "NOT FOUND"
            print(f"{fault.name:40} {verdict:10} {row['seconds']:6} s  {row['by']}", flush=True)
    lost = [fault.name for fault in FAULTS if not done.get(fault.name, {}).get("is_found")]
    print(f"{len(FAULTS) - len(lost)} of {len(FAULTS)} found; not: {', '.join(lost) or 'none'}")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
