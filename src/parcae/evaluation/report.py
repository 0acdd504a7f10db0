"""The HTML report of a comparison: one self-contained file that opens without a network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parcae.cluster.trace import Trace
from parcae.evaluation.bounds import Bounds
from parcae.evaluation.compare import Comparison, PolicyResult, write_text
from parcae.evaluation.gantt import MAX_EXECUTORS, gantt_figure
from parcae.evaluation.plots import concurrency_over_time, jct_bars, jct_cdf, jct_over_time, share_by_work
from parcae.metrics.cluster import last_completion_ms
from parcae.units import MS_PER_S

_STYLE = """
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:#1d232a;background:#fff;
  max-width:1120px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:1.7rem;margin:0 0 .2rem}
h2{font-size:1.2rem;margin:2.4rem 0 .6rem;border-bottom:1px solid #e3e6ea;padding-bottom:.3rem}
.lead{font-size:1.08rem;background:#f5f8fb;border-left:4px solid #0072b2;padding:.8rem 1rem;margin:1rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.38rem .6rem;text-align:right;border-bottom:1px solid #eceff2}th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:#48525c}tr.best td{font-weight:600;background:#f1f8f4}small,.quiet{color:#5b6670}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace;background:#f5f6f8;border-radius:4px}code{padding:.1rem .3rem}
pre{padding:.8rem 1rem;overflow-x:auto;white-space:pre-wrap;word-break:break-word}
"""


def summary_sentence(comparison: Comparison) -> str:
    """Who wins, by how much and how sure that is, in plain words."""
    first = comparison.policies[0]
    best = min(comparison.policies, key=lambda p: p.average_jct_s.mean)
    if len(comparison.policies) == 1 or best is first:
        return f"No policy beats {first.name}: its average job completion time is {first.average_jct_s.mean:,.1f} s."
    ratio = best.ratio_to_first
    sure = (
        "the interval lies wholly below 0%, so the difference is not chance"
        if ratio.high < 1
        else "the interval includes 0%, so the difference may be chance"
    )
    return (
        f"{best.name} has the lowest average job completion time, {best.average_jct_s.mean:,.1f} s: "
        f"{100 * (1 - ratio.mean):.1f}% less than {first.name} (95% interval {100 * (1 - ratio.high):.1f}% to "
        f"{100 * (1 - ratio.low):.1f}%; {sure})."
    )


def write_report(
    comparison: Comparison, traces: Mapping[str, Trace], path: Path, *, command: str = "", bounds: Bounds | None = None
) -> None:
    """Write the report.

    Args:
        comparison: the statistics over all seeds.
        traces: the recorded run of every policy on the first seed, for the pictures.
        path: the HTML file.
        command: how to make the comparison again.
        bounds: lower bounds of the first seed's sequence.
    """
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Parcae: {html.escape(comparison.settings['workload'])}</title><style>{_STYLE}</style>",
        f"<h1>Scheduling {html.escape(comparison.settings['workload'])}</h1>",
        f"<p class=quiet>{html.escape(_setting(comparison.settings))}</p>",
        f"<p class=lead>{html.escape(summary_sentence(comparison))}</p>",
        _table(comparison),
        *_figures(comparison, traces, bounds),
        _reproduce(comparison, command),
    ]
    write_text(path, "\n".join(parts) + "\n")


def _setting(s: dict[str, Any]) -> str:
    classes = s["config"]["executor_classes"]
    executors = sum(c["num_executors"] for c in classes) if classes else s["config"]["num_executors"]
    count = s["seeds"][1] - s["seeds"][0] + 1
    return f"{s['jobs']} jobs a run, arrivals {s['arrivals']}, {executors} executors, {count} seeds, the same for every policy"


def _table(comparison: Comparison) -> str:
    best = min(comparison.policies, key=lambda p: p.average_jct_s.mean)
    first = html.escape(comparison.policies[0].name)
    head = ("policy", "average JCT (s)", "95% interval", f"ratio to {first}", "95% interval", "p95 JCT (s)", "makespan (s)",
            "slowdown", "busy", "inflation", "moves")  # fmt: skip
    rows = "".join(_row(result, result is best) for result in comparison.policies)
    return f"<table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>{rows}</table>"


def _row(result: PolicyResult, is_best: bool) -> str:
    row, jct, ratio = result.to_json(), result.average_jct_s, result.ratio_to_first
    cells = (
        html.escape(result.name), f"{jct.mean:,.1f}", f"{jct.low:,.1f} – {jct.high:,.1f}", f"{ratio.mean:.3f}",
        f"{ratio.low:.3f} – {ratio.high:.3f}", f"{row['p95_jct_s']:,.1f}", f"{row['makespan_s']:,.1f}",
        f"{row['mean_slowdown']:.2f}", f"{row['utilization']:.0%}", f"{row['work_inflation']:.2f}", f"{row['moves']:,.0f}",
    )  # fmt: skip
    return f"<tr{' class=best' if is_best else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _figures(comparison: Comparison, traces: Mapping[str, Trace], bounds: Bounds | None) -> list[str]:
    import plotly.io

    results = comparison.policies
    estimates = [p.average_jct_s for p in results]
    bars = jct_bars([p.name for p in results], *([getattr(e, k) for e in estimates] for k in ("mean", "low", "high")))
    parts = ["<h2>Over all seeds</h2>", plotly.io.to_html(bars, include_plotlyjs=True, full_html=False)]
    seed = comparison.settings["seeds"][0]
    parts.append(f"<h2>One run, seed {seed}: who ran where</h2><p class=quiet>{_gantt_note(traces)}</p>")
    end_s = max(last_completion_ms(trace) for trace in traces.values()) / MS_PER_S
    parts += [plotly.io.to_html(gantt_figure(t, end_s), include_plotlyjs=False, full_html=False) for t in traces.values()]
    parts.append(f"<h2>The same run over time</h2>{_bounds_note(traces, bounds)}")
    for make in (jct_cdf, concurrency_over_time, jct_over_time, share_by_work):
        parts.append(plotly.io.to_html(make(traces), include_plotlyjs=False, full_html=False))
    return parts


def _gantt_note(traces: Mapping[str, Trace]) -> str:
    largest = max(trace.num_executors for trace in traces.values())
    cut = f" The first {MAX_EXECUTORS} of {largest} executors are shown." if largest > MAX_EXECUTORS else ""
    return f"Each colour is a job, the same in every chart; white is idle or moving; red lines are job completions.{cut}"


def _bounds_note(traces: Mapping[str, Trace], bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    best = min(float((t.completion_ms - t.arrival_ms).mean()) for t in traces.values()) / MS_PER_S
    return (
        f"<p>No schedule of this run can have an average JCT below <b>{bounds.average_jct_ms / MS_PER_S:,.1f} s</b> or a "
        f"makespan below <b>{bounds.makespan_ms / MS_PER_S:,.1f} s</b> ({html.escape(bounds.explanation)}). "
        f"The best policy here reached {best:,.1f} s.</p>"
    )


def _reproduce(comparison: Comparison, command: str) -> str:
    run = f"<pre>{html.escape(command)}</pre>" if command else ""
    settings = html.escape(json.dumps(comparison.settings, indent=2))
    return (
        f"<h2>How this was made</h2>{run}<p>{html.escape(comparison.settings['intervals'])}. Tuned policies were tuned on "
        f"seeds that no comparison uses.</p><details><summary>Settings</summary><pre>{settings}</pre></details>"
    )
