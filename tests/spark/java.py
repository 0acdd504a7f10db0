"""Builds the plugin and its test programs once, and runs them without Spark's launchers."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import jar_name, jars_folder, sources_folder

_TIMEOUT_S = 120.0
#: Fetching what Maven lacks, and its tests, take a slow machine long.
_MAVEN_TIMEOUT_S = 500.0
#: What Maven says where it lacks an artifact and cannot fetch it.
OUT_OF_REACH = ("could not be resolved", "Could not transfer", "Could not resolve", "offline mode")


def jdk_tool(name: str) -> Path:
    """A tool of the JDK: from JAVA_HOME, else from the PATH; without one the test is skipped."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin" if home else None)
    if found is None:
        pytest.skip(f"needs a JDK: there is no {name} (apt-get install openjdk-17-jdk-headless)")
    return Path(found)


def java_sources(folder: Path) -> list[Path]:
    """All Java files below a folder, sorted."""
    return sorted(folder.rglob("*.java"))


def compile_java(sources: list[Path], target: Path, class_path: str) -> None:
    """Compile Java sources with javac."""
    options = ["-nowarn", "-Xlint:-options", "-encoding", "UTF-8", "--release", "11"]
    command = [jdk_tool("javac"), *options, "-d", target, "-cp", class_path, *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"javac: {done.stderr[-4000:]}", pytrace=False)


def maven(*words: str, project: Path) -> subprocess.CompletedProcess[str] | str:
    """Run Maven on a project; where it or what it needs is out of reach, the reason."""
    command = shutil.which("mvn")
    if command is None:
        return "needs Maven (apt-get install maven)"
    try:
        done = subprocess.run(
            [command, "-B", "-ntp", "-f", project / "pom.xml", *words],
            capture_output=True,
            text=True,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Maven has not done its work in {_MAVEN_TIMEOUT_S:g} s"
    if any(words in done.stdout for words in OUT_OF_REACH):
        (line, *_) = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
        return f"Maven cannot fetch what it needs: {line[8:300]}"
    return done


def build_plugin(spark: SparkHome) -> None:
    """Build the jar of a Spark's Scala line with Maven, if its sources have changed.

    Where Maven is out of reach, javac does it, since else no test with a real Spark could run.
    """
    jar = jars_folder() / jar_name(spark.scala)
    target = sources_folder() / "target"
    target.mkdir(exist_ok=True)
    stamp = target / f"{spark.scala}.sha256"
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        digest = hashlib.sha256((sources_folder() / "pom.xml").read_bytes())
        for path in sorted((sources_folder() / "src").rglob("*.*")):
            digest.update(path.read_bytes())
        if not jar.exists() or not stamp.exists() or stamp.read_text() != digest.hexdigest():
            words = ("--quiet", f"-Dscala.line={spark.scala}", "-DskipTests", "package")
            done = maven(*words, project=sources_folder())
            if isinstance(done, str):
                _build_with_javac(spark, jar)
            elif done.returncode:
                pytest.fail(done.stdout[-4000:], pytrace=False)
            stamp.write_text(digest.hexdigest())
        jar.touch()  # a checkout of the same sources makes them younger


def _build_with_javac(spark: SparkHome, jar: Path) -> None:
    main = sources_folder() / "src" / "main"
    jar.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        compile_java(java_sources(main), Path(work), f"{spark.jars}/*")
        note = f"version={__version__}\nscala={spark.scala}\nspark=3.3.4\njava=11\n"
        (Path(work) / "parcae/spark/build.properties").write_text(note + "group=io.github.OWNER\n")
        subprocess.run([jdk_tool("jar"), "cf", jar, "-C", work, "."], check=True)


def plugin_and_tests() -> tuple[Path, Path]:
    """The plugin's jar, and the folder of its test programs; both are made once for all runs.

    The test is skipped without a JDK or a Spark.
    """
    jdk_tool("javac")
    try:
        spark = find_spark()
    except ConfigError as error:
        pytest.skip(str(error))
    build_plugin(spark)
    jar = jars_folder() / jar_name(spark.scala)
    # Maven compiles and runs the tests of JUnit; programs that pytest runs are compiled against
    # the Spark in which they run.
    sources = java_sources(sources_folder() / "src" / "test")
    sources = [path for path in sources if "org.junit" not in path.read_text()]
    digest = hashlib.sha256(jar.read_bytes() + spark.version.encode())
    for path in sources:
        digest.update(path.read_bytes())
    kept = sources_folder() / "target" / "programs"
    kept.mkdir(exist_ok=True)
    folder = kept / digest.hexdigest()[:12]
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=kept) as made:
                compile_java(sources, Path(made) / "classes", f"{jar}:{spark.jars}/*")
                (Path(made) / "classes").rename(folder)
    return jar, folder


def run_java(class_path: str, main: str, *arguments: object) -> str:
    """What a class of `parcae.spark` prints; a failed check is the test's failure."""
    command = [
        jdk_tool("java"),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        class_path,
        f"parcae.spark.{main}",
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        pytest.fail(f"{main}: {done.stderr[-4000:]}\n{done.stdout[-2000:]}", pytrace=False)
    return done.stdout
