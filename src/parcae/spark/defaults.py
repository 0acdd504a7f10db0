"""The settings of a Spark installation, which every application starts with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parcae.spark.home import SparkHome
from parcae.spark.linkage import PLUGIN_CLASS

CLASS_PATH = "spark.driver.extraClassPath"
PLUGINS = "spark.plugins"
_PROPERTY = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]\s*(.*)")
#: A backslash and what it escapes; Java's programs write "hdfs\://HOST".
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _lines(text: str) -> Iterator[str]:
    """The lines of a file of properties; one that ends in a backslash goes on in the next one."""
    lines = iter(text.splitlines())
    for line in lines:
        whole = line
        while _is_continued(whole):
            whole = whole[:-1] + next(lines, "").lstrip()
        yield whole


def _is_continued(line: str) -> bool:
    is_comment = line.lstrip().startswith(("#", "!"))
    return not is_comment and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _plain(value: str) -> str:
    """A value without the escapes of Java's properties, and without blanks at its ends."""

    def meant(match: re.Match[str]) -> str:
        escaped = match[1]
        is_code = len(escaped) > 1
        return chr(int(escaped[1:], 16)) if is_code else _CONTROLS.get(escaped, escaped)

    return _ESCAPED.sub(meant, value).strip()


@dataclass(frozen=True)
class SparkDefaults:
    """The settings with which every application starts: those in `spark-defaults.conf`.

    Args:
        path: of the file; None if there is no file.
        values: settings by name.
    """

    path: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: SparkHome) -> SparkDefaults:
        """The settings that Spark's commands read: from SPARK_CONF_DIR, else its folder `conf`."""
        folder = Path(os.environ.get("SPARK_CONF_DIR") or spark.path / "conf")
        return cls.read(folder / "spark-defaults.conf")

    @classmethod
    def read(cls, path: Path) -> SparkDefaults:
        """The settings in a file of properties; none if it cannot be read."""
        try:
            # Whatever is no UTF-8 stands in a comment or a value; Spark reads ISO 8859-1.
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return cls()
        matches = (_PROPERTY.fullmatch(line) for line in _lines(text))
        return cls(path, {each[1]: _plain(each[2]) for each in matches if each})

    @property
    def plugins(self) -> list[str]:
        """The names of the plugins with which every application starts."""
        return [name.strip() for name in self.values.get(PLUGINS, "").split(",") if name.strip()]

    def class_path(self) -> list[Path]:
        """The files on the driver's class path; of a folder with `/*`, its jars, as Java does."""
        places = self.values.get(CLASS_PATH, "").split(os.pathsep)
        places += self.values.get("spark.jars", "").split(",")
        files = [Path(place.strip().removeprefix("file:")) for place in places if place.strip()]
        all_jars = (sorted(one.parent.glob("*.jar")) if one.name == "*" else [one] for one in files)
        return [jar for jars in all_jars for jar in jars]

    def with_plugin(self, jar: Path) -> dict[str, str]:
        """The plugins and the driver's class path, with Parcae's plugin and its jar added."""
        plugins = dict.fromkeys([*self.plugins, PLUGIN_CLASS])
        paths = [str(jar), self.values.get(CLASS_PATH, "").strip()]
        return {PLUGINS: ",".join(plugins), CLASS_PATH: os.pathsep.join(filter(None, paths))}
