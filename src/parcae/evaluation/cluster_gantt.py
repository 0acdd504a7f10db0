"""Gantt charts of simulated runs on executors or cores (as in Decima, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parcae.cluster.trace import NOT_COMPLETED, TASK_RECORD, Trace
from parcae.errors import ConfigError
from parcae.evaluation.gantt import Bars, Chart, Panel
from parcae.metrics.cluster import last_completion_ms
from parcae.metrics.jobs import arrived, jct_ms
from parcae.texts import seconds_text
from parcae.units import MS_PER_S
from parcae.workloads.import_report import counted


def cluster_chart(trace: Trace, name: str = "") -> Chart:
    """The chart of one run: which job each executor or core ran. Red lines are job completions.

    Args:
        trace: the run.
        name: the policy's name in the title; by default that of the run.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    if trace.tasks is None:
        raise ConfigError("a Gantt chart needs recorded tasks: simulate with record=True")
    tasks = np.asarray(trace.tasks, TASK_RECORD)
    bars = Bars(tasks["executor"], tasks["start_ms"], tasks["finish_ms"], tasks["job"])
    panel = Panel(
        trace.unit,
        trace.num_executors,
        bars,
        [f"{job}: {text}" for job, text in enumerate(trace.job_names)],
        completions=trace.completion_ms[trace.completion_ms != NOT_COMPLETED],
    )
    end_ms = max(1, last_completion_ms(trace))
    title = f"{name or trace.policy}: {_results(trace, end_ms)}"
    return Chart(title, [panel], end_ms, "time (s)", MS_PER_S)


def _results(trace: Trace, end_ms: int) -> str:
    here = arrived(trace)
    average_s = float(jct_ms(trace)[here].mean()) / MS_PER_S
    cut = int((trace.completion_ms[here] == NOT_COMPLETED).sum())
    unfinished = f", {counted(cut, 'job')} unfinished" if cut else ""
    return (
        f"average JCT {seconds_text(average_s)} s, "
        f"last completion {seconds_text(end_ms / MS_PER_S)} s{unfinished}"
    )


def cluster_charts(traces: Mapping[str, Trace]) -> list[Chart]:
    """The charts of several runs, given by the policies' names; see `cluster_chart`."""
    return [cluster_chart(trace, name) for name, trace in traces.items()]
