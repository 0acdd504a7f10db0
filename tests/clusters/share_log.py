"""Makes an event log fit to be shared: without the settings and paths of the machine.

Usage: python -m tests.clusters.share_log LOG FOLDER OUTPUT.zstd; FOLDER is that of YARN or, for
client mode, of the application.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import zstandard

_SETTINGS = ("spark.app.name", "spark.executor.cores", "spark.master", "spark.submit.deployMode")
#: Fields that no reader needs, and that name the machine.
_LEFT_OUT = {"Attributes", "Driver Attributes", "Driver Logs", "Details", "Log Urls", "details"}


def _without(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without(part) for key, part in value.items() if key not in _LEFT_OUT}
    return [_without(part) for part in value] if isinstance(value, list) else value


def shared(log: str, folder: str) -> str:
    """The log's events, with paths in a folder as of /data."""
    lines = []
    for line in log.replace(folder, "/data").splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerEnvironmentUpdate":
            given = event["Spark Properties"]
            kept = {name: given[name] for name in _SETTINGS if name in given}
            event = {"Event": event["Event"], "Spark Properties": kept}
        if event["Event"] == "SparkListenerJobStart":
            properties = event["Properties"]
            known = ("spark.jobGroup.id", "spark.job.", "spark.sql.execution", "callSite")
            event["Properties"] = {
                name: value for name, value in properties.items() if name.startswith(known)
            }
        if event["Event"] == "SparkListenerStageSubmitted":
            event.pop("Properties")
        lines.append(json.dumps(_without(event), separators=(",", ":")))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    text = shared(Path(sys.argv[1]).read_text(), sys.argv[2])
    Path(sys.argv[3]).write_bytes(zstandard.compress(text.encode(), 19))
