"""Hold a randomised experiment, and the forecast of a log, against paired runs of a real Spark.

    python -m benchmarks.spark.experiment --seeds 6 --work spark-experiments

Three kinds of queries arrive at random; their tasks sleep. A seed has three applications with the
same arrivals and sleeps, which run side by side: under FAIR, under the plugin's order, and under an
experiment of the plugin between both, in short blocks. The first two are the truth. Prints, for
every seed, the ratio of their mean completion times, what `parcae forecast` says by the log under
FAIR, and the experiment's estimate.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.experiment_coverage import workload
from benchmarks.spark.replaying import ReplayRequest, drawn_sleeps, mix_json, replay, warm_workload
from benchmarks.spark.work import Work, number, run_script, tell

from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.experiment import evaluate_experiment
from parcae.evaluation.forecast import forecast
from parcae.evaluation.statistics import with_interval
from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.spark.launch import PluginSettings
from parcae.workloads.spark_log.event_log import read_runs
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.workload import ArrivalProcess, RandomStreams, Workload, draw_sequence

ARMS = ("stock", "policy", "experiment")
#: The property that the queries of the mix have, and those that warm the JVM up lack.
KEY = "parcae.mix.0"


class Measurement:
    """The seeds of one command."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        names = ("policy", "cores", "load", "time_scale", "block", "pairs")
        self.work = Work(args.work, {name: getattr(args, name) for name in names})
        self.jobs: Workload = warm_workload(workload(), args.time_scale)
        self.spark = find_spark()
        self.jar = find_jar(self.spark)
        self.policy = args.work.resolve() / "policy.json"
        write_policy(export_policy(args.policy, self.jobs), self.policy)

    def mix(self, seed: int) -> dict[str, Any]:
        """The queries that arrive in the time of all blocks."""
        args = self.args
        process = ArrivalProcess.parse(f"load:{args.load}")
        horizon_ms = 2 * args.pairs * args.block * MS_PER_S
        count = round(horizon_ms / process.mean_gap_ms(self.jobs, args.cores))
        sequence = draw_sequence(self.jobs, process, count, args.cores, RandomStreams(seed))
        return mix_json(sequence, drawn_sleeps(sequence, seed))

    def run(self, seed: int) -> dict[str, list[float]]:
        """Completion times in ms of a seed's queries under every arm, in order of arrival."""
        mix = self.mix(seed)
        with ThreadPoolExecutor(len(ARMS)) as pool:
            futures = {
                arm: pool.submit(
                    self.work.kept, f"{arm}-{seed}", partial(self._run, arm, seed, mix)
                )
                for arm in ARMS
            }
        return {arm: future.result() for arm, future in futures.items()}

    def _run(self, arm: str, seed: int, mix: dict[str, Any]) -> list[float]:
        tell(f"{arm}, seed {seed}: {len(mix['jobs'])} queries")
        control = self.args.work.resolve() / f"{arm}-{seed}-control.json"
        experiment = {"block": f"{self.args.block}s", "seed": seed}
        wanted = {"mode": "on", **({"experiment": experiment} if arm == "experiment" else {})}
        write_text(control, json.dumps(wanted))
        plugin = None if arm == "stock" else PluginSettings(self.jar, policy=self.policy)
        conf = {} if arm == "stock" else {"spark.parcae.control": str(control)}
        request = ReplayRequest(
            self.spark, self.jar, self.args.cores, "FAIR", plugin, self.args.work.resolve(),
            f"{arm}-{seed}", conf,
        )  # fmt: skip
        return [float(jct_ms) for jct_ms in replay(request, [mix])[0].jct_ms]

    def log(self, arm: str, seed: int) -> Path:
        """The event log of an application; of a stopped one there may be an older one."""
        folder = Path(self.args.work) / f"{arm}-{seed}-events"
        return max(folder.iterdir(), key=lambda path: path.stat().st_mtime)


def main(args: argparse.Namespace) -> None:
    """Measure, and print a row for every seed."""
    measurement = Measurement(args)
    rows, held, missed = [], 0, []
    for seed in range(args.seed_start, args.seed_start + args.seeds):
        took = measurement.run(seed)
        truth = float(np.mean(took["policy"]) / np.mean(took["stock"]))
        run = read_spark_run([measurement.log("experiment", seed)], key=KEY)
        result = evaluate_experiment(run)
        ratio = result.effects["mean"].ratio
        held += ratio.low <= truth <= ratio.high
        logged = read_runs([measurement.log("stock", seed)], key=KEY)
        foretold = forecast(logged, args.policy).all["ratio"]
        missed.append(abs(foretold.mean - truth))
        shown = (with_interval(one) for one in (foretold, ratio))
        rows.append([str(seed), str(len(took["stock"])), f"{truth:.3f}", *shown])
        tell(" | ".join(rows[-1]))
    title = f"{args.policy} against FAIR on {args.cores} cores of a real Spark"
    caption = (
        f"the interval contains the ratio of the paired runs in {held} of {len(rows)}, "
        f"the forecast is off by {np.mean(missed):.3f} on average, at most {max(missed):.3f}"
    )
    headings = ("seed", "queries", "paired runs", "forecast", "experiment")
    print_rows(title, headings, rows, caption)


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--policy", default="srpt", help="one that `parcae export` writes")
    add("--cores", type=number(1), default=8, help="declared; tasks sleep")
    add("--load", type=number(0.01, 0.99, float), default=0.6)
    add("--time-scale", type=number(0.01, 100, float), default=0.25, help="of the tasks' times")
    add("--block", type=number(1), default=20, help="seconds")
    add("--pairs", type=number(6), default=12, help="of blocks")
    add("--seeds", type=number(1), default=6, help="each takes pairs x 2 blocks")
    add("--seed-start", type=number(0), default=1000)
    add("--work", type=Path, default=Path("spark-experiments"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
