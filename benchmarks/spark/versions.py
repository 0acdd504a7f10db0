"""Run the plugin's jars in the Sparks of PyPI, with a small program each.

    python -m benchmarks.spark.versions 3.3.4 newest

In every Spark a long query of many tasks runs, and a short one comes behind it: with the plugin on,
and with its mode off by the control file while Spark runs. Results must be right, the tab must be
there, and the jar of the other Scala line must refuse this Spark. Prints a table, and ends with
exit code 1 if anything is not so. Sparks are downloaded once, into the folder of --work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError
from parcae.spark.home import SCALA_LINES, SparkHome, find_java, find_spark, java_release
from parcae.spark.jar import find_jar, jar_name

VERSIONS = ("3.3.4", "3.4.4", "3.5.9", "4.0.5", "4.1.4", "4.2.1", "newest")
#: A short query is guided if it takes at most this share of its time under Spark's own order.
_GUIDED = 0.7
_TIMEOUT_S = 900

#: What runs in each Spark: PySpark alone, since that Spark's Python may know nothing else.
PROGRAM = """
import json, sys, threading, time, urllib.request
from pyspark.sql import SparkSession

control = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
sleep = "java_method('java.lang.Thread', 'sleep', 100L)"

def query(tasks):
    text = f"select count(x) as n from (select {sleep} as x from range(0, {tasks}, 1, {tasks}))"
    begun = time.monotonic()
    rows = spark.sql(text).collect()[0][0]
    return time.monotonic() - begun, rows

def short_behind_long():
    long = []
    thread = threading.Thread(target=lambda: long.append(query(100)))
    thread.start()
    time.sleep(0.7)
    short_s, rows = query(2)
    thread.join()
    return short_s, rows == 2 and long[0][1] == 100

found = {"is_right": query(2)[1] == 2}
modes = sys.argv[2:]
if modes:
    short_behind_long()  # warms the JVM up
for mode in modes:
    with open(control, "w") as file:
        json.dump({"mode": mode}, file)
    time.sleep(1)
    found[mode + "_s"], is_right = short_behind_long()
    found["is_right"] &= is_right
try:
    page = urllib.request.urlopen(spark.sparkContext.uiWebUrl + "/parcae/").read().decode()
except urllib.error.HTTPError:
    page = ""
found["tab"] = "<strong>Mode:" in page
print("FOUND " + json.dumps(found))
spark.stop()
"""


def fetch(version: str, work: Path) -> SparkHome:
    """A PySpark of PyPI, downloaded at the first call; "newest" is the newest."""
    folder = work / version
    if not folder.exists():
        wanted = "pyspark" if version == "newest" else f"pyspark=={version}"
        with tempfile.TemporaryDirectory(dir=work) as made:
            words = ["install", "--quiet", "--no-deps", "--no-compile", "--target", made, wanted]
            subprocess.run([sys.executable, "-m", "pip", *words], check=True)
            (Path(made) / "pyspark").rename(folder)
    return find_spark(folder)


def submit(spark: SparkHome, jar: Path, folder: Path, *modes: str) -> tuple[dict[str, Any], str]:
    """What the program found in a Spark with this jar, and the lines that the plugin logged."""
    program, control = folder / "program.py", folder / "control.json"
    program.write_text(PROGRAM)
    control.write_text("{}")
    conf = {
        "spark.driver.extraClassPath": jar,
        "spark.plugins": "parcae.spark.ParcaePlugin",
        "spark.parcae.control": control,
        "spark.parcae.controlMs": 100,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.port": 0,
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    options = [f"--conf={name}={value}" for name, value in conf.items()]
    environment = {**os.environ, "SPARK_HOME": str(spark.path), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [spark.command("spark-submit"), "--master", "local[2]", *options, program, control, *modes],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    said = re.findall(r"parcae: .*", done.stdout + done.stderr)  # Sparks log here or there
    found = re.findall(r"^FOUND (.*)", done.stdout, re.MULTILINE)
    return json.loads(found[0]) if found else {"error": done.stderr[-2000:]}, "\n".join(said)


def examine(spark: SparkHome) -> dict[str, Any]:
    """The row of a Spark."""
    jar = find_jar(spark)
    (other,) = {jar_name(scala) for scala in SCALA_LINES} - {jar.name}
    with tempfile.TemporaryDirectory() as work:
        found, said = submit(spark, jar, Path(work), "on", "off")
        refused, why = submit(spark, jar.parent / other, Path(work))
    row: dict[str, Any] = {
        "spark": spark.version,
        "scala": spark.scala,
        "java": java_release(find_java()),
        "on": "parcae: on" in said and "parcae: off" not in said,
        "on_s": found.get("on_s"),
        "off_s": found.get("off_s"),
        "right": bool(found.get("is_right")),
        "tab": bool(found.get("tab")) and not refused.get("tab"),
        "refused": f"parcae-spark_{spark.scala}:" in why and bool(refused.get("is_right")),
    }
    row["guided"] = "off_s" in found and found["on_s"] < _GUIDED * found["off_s"]
    if error := found.get("error"):
        print(error, file=sys.stderr)
    return row


def main() -> None:
    """Run the command."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("versions", nargs="*", default=VERSIONS)
    command.add_argument("--work", type=Path, default=Path("parcae-spark-versions"))
    args = command.parse_args()
    args.work.mkdir(exist_ok=True)
    rows = []
    is_right = True
    for version in args.versions:
        try:
            rows.append(examine(fetch(version, args.work.resolve())))
            print(json.dumps(rows[-1]), flush=True)
        except (ConfigError, subprocess.SubprocessError) as error:
            print(f"Spark {version}: {error}", file=sys.stderr)
            is_right = False
    print("| Spark | Scala | Java | On | Short behind long: on, off | Right | Tab | Other jar |")
    print("| --- " * 8 + "|")
    for row in rows:
        checks = [row["on"], row["guided"], row["right"], row["tab"], row["refused"]]
        is_right &= all(checks)
        on, guided, right, tab, refused = ("yes" if check else "NO" for check in checks)
        times = f"{row['on_s']:.1f} s, {row['off_s']:.1f} s" if row["on_s"] else "no result"
        times += "" if guided == "yes" else " (NOT guided)"
        print(
            f"| {row['spark']} | {row['scala']} | {row['java']} | {on} | {times} | {right} | {tab} "
            f"| {'refused' if refused == 'yes' else 'NOT refused'} |"
        )
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
