"""Record what Parcae's commands compute with fixed seeds, and compare two records.

    python benchmarks/record.py FOLDER                     # run the commands, one JSON file each
    python benchmarks/record.py FOLDER --against BEFORE    # what differs between two records
    python benchmarks/record.py FOLDER --check             # run, and compare with record.json
    python benchmarks/record.py FOLDER --digest            # run, and write record.json anew

Times, paths, versions and measured speeds are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DIGESTS = HERE / "record.json"
_LOG = "src/parcae/workloads/bundled/example-event-log.zstd"
_RAPIDS = "{data}/real-logs/rapids/eventlog_4nodes_8cores_dynamic_alloc.zstd"
_OWN = "{data}/real-logs/own"
_OUT = "a.safetensors"

#: A line for each command: its name, and the arguments of `parcae`. {out} is an empty folder, whose
#: JSON files are recorded; {data} the folder of public data, without which a row is left out;
#: {made} the workload files of earlier commands. SEEDS stands for a few seeds in one process.
COMMANDS = f"""
policies           policies --json
policies-rigid     policies --world rigid
describe           workload describe tpch --json
simulate-cores     simulate tpch --jobs 8 --policy all --seed 3 --json
simulate-executors simulate tpch --jobs 8 --policy all --seed 3 --json --world executors
simulate-faults    simulate tpch --jobs 8 --policy fifo,fair --json --faults failures=.02,lost=900
simulate-elastic   simulate tpch --jobs 8 --policy fifo,fair --json --cores 8..32
simulate-classes   simulate tpch --jobs 8 --policy fair,tetris --json --executor-classes decima
compare-cores      compare tpch --jobs 8 SEEDS --policies fair,fifo,srpt,parcae,decima
compare-load       compare tpch --jobs 8 SEEDS --arrivals load:0.8 --unknown-share 0.3
compare-executors  compare tpch --jobs 8 SEEDS --world executors --policies fair,tuned,parcae,decima
size               size tpch SEEDS --arrivals poisson:1s --cores 8,16,8..32 --target "p95 < 4s"
bounds             bounds tpch --jobs 4 --orders --json
import-example     workload import spark-events {_LOG} --key spark.jobGroup.id -o {{made}}/a.parcae
describe-example   workload describe {{made}}/a.parcae --json
compare-example    compare {{made}}/a.parcae --cores 8 --arrivals load:0.8 --jobs 8 SEEDS
import-rapids      workload import spark-events {_RAPIDS} --recorded -o {{made}}/b.parcae
describe-rapids    workload describe {{made}}/b.parcae --json
compare-logs       compare-logs {_OWN}/pool_nofile {_OWN}/pool_other --json
learn              learn {_LOG} --budget 0.01 --seeds 2 --key spark.jobGroup.id -o {{out}}
train-cores        train tpch --iterations 2 --jobs 5 --seed 3 --json -o {{out}}
train-executors    train tpch --iterations 1 --jobs 4 --seed 3 --json -o {{out}} --network decima
simulate-rigid     simulate --world rigid --load 1.3 --policy all --json
compare-rigid      compare --world rigid --load 1.3 --seeds 5 --json {{out}}/a.json
compare-swf        compare --world rigid --swf {{data}}/swf/lublin_256.swf --json {{out}}/a.json
tune-rigid         tune --world rigid withhold --load 1.3 --generations 2 --json -o {{out}}/{_OUT}
fig16              reproduce decima-fig16 -o {{out}}
deeprm-fig4        reproduce deeprm-fig4 --runs 2 --processes 1 -o {{out}}
"""
_SEEDS = "--seeds 3 --processes 1 --json {out}/a.json"
#: This ends by the clock: only the names of what they print and write are compared.
_BY_CLOCK = {"learn"}

#: What differs from run to run or from place to place.
_VOLATILE = re.compile(
    r"(^|_)(seconds|elapsed|wall|version|path|file|folder|output|created|budget)(_|$)|_per_s$|^command$"
)


def _kept(value: Any) -> Any:
    """The value without what is volatile, with floats of nine digits."""
    if isinstance(value, dict):
        return {k: _kept(v) for k, v in value.items() if not _VOLATILE.search(str(k))}
    if isinstance(value, list):
        return [_kept(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that holds no others, with its JSON path."""
    if isinstance(value, dict | list):
        items = sorted(value.items()) if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value


def _parsed(text: str) -> Any:
    """A JSON text, lines of JSON, or lines of text."""
    for whole in (text, f"[{','.join(text.splitlines())}]"):
        try:
            return json.loads(whole)
        except ValueError:
            continue
    return text.splitlines()


def _run(arguments: str, places: dict[str, str]) -> dict[str, Any]:
    """Run one command in its own empty folder. Returns what it printed and wrote."""
    with tempfile.TemporaryDirectory() as out:
        filled = arguments.replace("SEEDS", _SEEDS).format(**places, out=out)
        plain = {"NO_COLOR": "1", "COLUMNS": "120", "TZ": "UTC", "PARCAE_ANNOUNCE_COMPILATION": "0"}
        command = [sys.executable, "-m", "parcae.cli.main", *shlex.split(filled)]
        done = subprocess.run(command, env={**os.environ, **plain}, capture_output=True, text=True)
        named = {place: name for name, place in {**places, "out": out}.items()}

        def parsed(text: str) -> Any:
            for place, name in named.items():
                text = text.replace(place, name)
            return _parsed(text)

        files = {path.name: parsed(path.read_text()) for path in Path(out).rglob("*.json")}
        # A table that is printed after a JSON file was written says the same.
        printed = [] if files else parsed(done.stdout)
        errors = done.stderr.splitlines() if done.returncode else []
        return {"exit": done.returncode, "printed": printed, "errors": errors, **files}


def record(folder: Path, data: Path, only: list[str]) -> None:
    """Run the commands and write a JSON file of each into the folder."""
    made = folder / "made"
    made.mkdir(parents=True, exist_ok=True)
    for line in COMMANDS.strip().splitlines():
        name, arguments = line.split(maxsplit=1)
        if ("{data}" in arguments and not data.exists()) or (only and name not in only):
            continue
        result = _run(arguments, {"data": str(data), "made": str(made)})
        text = json.dumps(result, indent=1, sort_keys=True)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: exit {result['exit']}", flush=True)


def _read(path: Path) -> dict[str, Any]:
    """The leaves of one command's file."""
    leaves = dict(_leaves(_kept(json.loads(path.read_text(encoding="utf-8")))))
    by_clock = path.stem in _BY_CLOCK
    return {p: type(v).__name__ if by_clock and p != ".exit" else v for p, v in leaves.items()}


def differences(before: Path, after: Path) -> bool:
    """Print what differs between two records. Returns whether anything does."""
    differs = False
    for name in sorted({path.name for path in [*before.glob("*.json"), *after.glob("*.json")]}):
        old, new = (_read(f / name) if (f / name).exists() else {} for f in (before, after))
        paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
        differs |= bool(paths)
        print(f"{name}: {f'{len(paths)} of {len(old)} values differ' if paths else 'equal'}")
        for path in paths[:20]:
            print(f"    {path}: {old.get(path)!r} -> {new.get(path)!r}")
    return differs


def digests(folder: Path) -> dict[str, Any]:
    """A digest and a few numbers of every command of a record."""
    result = {}
    for path in sorted(folder.glob("*.json")):
        leaves = _read(path)
        sha = hashlib.sha256(json.dumps(leaves).encode()).hexdigest()[:16]
        numbers = [leaf for leaf in leaves.items() if isinstance(leaf[1], float)]
        few = dict(numbers[:: len(numbers) // 4 + 1])
        result[path.stem] = {"sha256": sha, "values": len(leaves), **few}
    return result


def main() -> int:
    """Do what the arguments ask for. Returns 1 if something differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, help="a record of before; nothing is run")
    parser.add_argument("--check", action="store_true", help="compare with record.json")
    parser.add_argument("--digest", action="store_true", help="write record.json")
    parser.add_argument("--only", action="append", default=[], help="this command only")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    chosen = parser.parse_args()
    if chosen.against:
        return int(differences(chosen.against, chosen.folder))
    record(chosen.folder.resolve(), chosen.data.resolve(), chosen.only)
    now = digests(chosen.folder)
    if chosen.digest:
        DIGESTS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    before = json.loads(DIGESTS.read_text(encoding="utf-8")) if chosen.check else now
    for name in (name for name in now if now[name] != before.get(name)):
        print(f"{name} differs:\n    before {before.get(name)}\n    now    {now[name]}")
    return int(any(now[name] != before.get(name) for name in now))


if __name__ == "__main__":
    sys.exit(main())
