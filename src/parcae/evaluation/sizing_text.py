"""What a sizing says: its headline, warnings, table, CSV file and picture."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.files import replacing, write_text
from parcae.base.texts import num_decimals, printable, time_decimals
from parcae.evaluation.doubts import FULL, measured_alone_warning
from parcae.evaluation.sizing import Target
from parcae.evaluation.statistics import UNKNOWN_TEXT, Estimate, with_half_width, with_interval
from parcae.policies.names import parse_name
from parcae.simulation.faults import resolve_faults
from parcae.workloads.import_report import counted

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from rich.table import Table

    from parcae.evaluation.sizing import SizeResult, SizeTarget, Sizing

#: Endings of pictures.
PICTURES = ("png", "svg", "html")
_ESTIMATES = (
    "average_s",
    "p95_s",
    "p99_s",
    "cores_busy",
    "cores_held",
    "cost_per_job",
    "within_target",
)
#: The further one where there are deadlines.
_DEADLINES_MET = "deadlines_met"
#: The policy that others are compared with in the headline, if it was asked for.
_USUAL = "fair"


def headline(sizing: Sizing) -> str:
    """The smallest size that meets the target for each policy, in words."""
    target = sizing.question.target
    if target is None:
        return "No target was given (--target), so no size is recommended."
    found = {policy: sizing.smallest(policy) for policy in sizing.policies}
    parts = [
        f"{policy} needs {size} cores" if size is not None else f"{policy} meets it at no size"
        for policy, size in found.items()
    ]
    runs = f"mean over {sizing.question.num_seeds} runs"
    sentences = [f"Target {target} ({runs}): {', '.join(parts)}.", _saving(found)]
    # Below the smallest given size there is nothing to search between.
    is_between = any(size not in (None, sizing.question.cores[0]) for size in found.values())
    if is_between and not sizing.question.search:
        sentences.append("Only the given sizes were tried; --search tries those between.")
    sentences.extend(_held_text(result, result.meets(target)) for result in sizing.elastic)
    return " ".join(filter(None, sentences))


def _held_text(result: SizeResult, meets_target: bool) -> str:
    """Whether an elastic cluster meets the target, and what it holds, in a sentence."""
    assert result.cores_held is not None
    verb = "meets" if meets_target else "misses"
    return (
        f"Elastic {result.size} cores: {result.policy} {verb} it and holds "
        f"{result.cores_held.mean:,.1f} cores on average."
    )


def _saving(found: dict[str, int | None]) -> str:
    """What the best policy saves against the usual one; no text if nothing."""
    usual = _USUAL if _USUAL in found else next(iter(found))
    needed = found[usual]
    # An oracle cannot be deployed.
    known = {
        policy: size
        for policy, size in found.items()
        if size is not None and parse_name(policy).argument != "oracle"
    }
    if needed is None or not known:
        return ""
    best = min(known, key=lambda policy: known[policy])
    if known[best] >= needed:
        return ""
    return f"With {best} {known[best]} cores do what {usual} needs {needed} for."


def warnings(sizing: Sizing) -> list[str]:
    """Where a conclusion would be wrong, one sentence each."""
    alone = measured_alone_warning(sizing.question.workload)
    durations = [f"{alone[0].upper()}{alone[1:]}."] if alone else []
    return [*_load_warnings(sizing), *durations, *_target_warnings(sizing)]


def _load_warnings(sizing: Sizing) -> list[str]:
    over = [cores for cores, load in sizing.load.items() if FULL < load < math.inf]
    if not over:
        return []
    sizes = ", ".join(f"{cores} (load {sizing.load[cores]:.2f})" for cores in over)
    return [
        f"Overloaded sizes: {sizes}. More work arrives than the cores can do, so the times there "
        "depend on the length of the run."
    ]


def _target_warnings(sizing: Sizing) -> list[str]:
    target = sizing.question.target
    if target is None:
        return []
    texts = []
    sizes = sizing.question.cores
    for policy in sizing.policies:
        found = sizing.smallest(policy)
        if found is None:
            texts.append(
                f"{policy}: the largest size ({sizes[-1]} cores) does not meet the target; give "
                "larger ones."
            )
            continue
        if found == sizes[0]:
            texts.append(
                f"{policy}: the smallest size ({found} cores) already meets the target; fewer may "
                "do."
            )
        result = next(one for one in sizing.of(policy) if one.cores == found)
        if reach := _reach(result.measured(target), target):
            texts.append(
                f"{policy}: at {found} cores the mean meets the target, but its 95% interval "
                f"{reach}; more runs (--seeds) tell."
            )
    return texts


def _reach(estimate: Estimate, target: SizeTarget) -> str:
    """Where an interval leaves the target; no text if it does not, or is unknown."""
    for end, word in ((estimate.high, "ends"), (estimate.low, "begins")):
        if not estimate.is_unknown and not target.is_met(end):
            return f"{word} at {target.text(end)}"
    return ""


def sizing_table(sizing: Sizing) -> Table:
    """The sizing as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    asked = sizing.question
    title = (
        f"{asked.workload.name}: {counted(asked.num_seeds, 'run')} of "
        f"{counted(asked.jobs_per_run, 'job')}, arrivals {asked.arrivals}, growth {asked.growth:g}"
    )
    table = Table(title=escape(title))
    headings = ["cores", "policy", "variant", "average s", "p95 s", "p99 s", "cores busy"]
    headings += ["cores held"] if sizing.elastic else []
    headings += ["load", "cost/hour", "cost/job"]
    headings += _last_headings(sizing)
    for heading in headings:
        is_text = heading in ("policy", "variant")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for result in (*sizing.results, *sizing.elastic):
        table.add_row(*map(escape, _cells(sizing, result)))
    table.caption = "means over runs ± the farther end of their 95% interval"
    if (faults := asked.config.faults) is not None:
        table.caption += f"; with faults: {resolve_faults(faults, asked.workload)}"
    return table


def _last_headings(sizing: Sizing) -> list[str]:
    """The headings of the columns about deadlines and the target."""
    target = sizing.question.target
    headings = ["deadlines met"] if _has_deadlines(sizing) else []
    headings += ["in time"] if isinstance(target, Target) else []
    return headings + ([] if target is None else ["target"])


def _last_cells(sizing: Sizing, result: SizeResult) -> list[str]:
    """The cells below `_last_headings`."""
    target = sizing.question.target
    shares = [one for one in (result.deadlines_met, result.within_target) if one is not None]
    cells = [with_interval(one, "{:.1%}".format) for one in shares]
    if target is not None:
        cells.append("met" if result.meets(target) else "missed")
    return cells


def _has_deadlines(sizing: Sizing) -> bool:
    return any(result.deadlines_met is not None for result in sizing.results)


def _load_text(load: float) -> str:
    if math.isnan(load):
        return UNKNOWN_TEXT
    return "batch" if math.isinf(load) else f"{load:.2f}"


def _cells(sizing: Sizing, result: SizeResult) -> list[str]:
    load = sizing.load[result.cores]
    held = str(result.cores) if result.cores_held is None else with_half_width(result.cores_held)
    cells = [
        result.size,
        result.policy,
        result.variant,
        *(
            with_half_width(time_s, time_decimals(time_s.mean))
            for time_s in (result.average_s, result.p95_s, result.p99_s)
        ),
        with_half_width(result.cores_busy),
        *([held] if sizing.elastic else []),
        _load_text(load),
        f"{result.cost_per_hour:,.{num_decimals(result.cost_per_hour, 2)}f}",
        with_half_width(result.cost_per_job, num_decimals(result.cost_per_job.mean, 2)),
    ]
    return [*cells, *_last_cells(sizing, result)]


def sizing_frame(sizing: Sizing) -> pl.DataFrame:
    """One row a size and policy.

    Columns:
        cores: the most, of an elastic cluster; size: as in 8 or 8..64; policy; variant; load: null
        for a batch; cost_per_hour; of every estimate NAME the columns NAME, NAME_low and NAME_high
        (deadlines_met: only with deadlines); meets_target: null without a target. An estimate is
        null where it is unknown.
    """
    import polars as pl

    target = sizing.question.target
    names = (*_ESTIMATES, *((_DEADLINES_MET,) if _has_deadlines(sizing) else ()))
    rows: list[dict[str, Any]] = []
    for result in (*sizing.results, *sizing.elastic):
        load = sizing.load[result.cores]
        row: dict[str, Any] = {
            "cores": result.cores,
            "size": result.size,
            "policy": printable(result.policy),
            "variant": printable(result.variant),
            "load": load if math.isfinite(load) else None,
            "cost_per_hour": result.cost_per_hour,
        }
        for name in names:
            one: Estimate | None = getattr(result, name)
            row[name] = None if one is None else one.mean
            row[f"{name}_low"] = None if one is None else one.low
            row[f"{name}_high"] = None if one is None else one.high
        row["meets_target"] = None if target is None else result.meets(target)
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)


def picture_format(path: Path) -> str:
    """The format of a picture by the ending of the file's name."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in PICTURES:
        raise ConfigError(f"{path}: give the picture one of the endings .{', .'.join(PICTURES)}")
    return ending


def write_json(sizing: Sizing, path: Path) -> None:
    """Write the sizing as JSON."""
    write_text(path, json.dumps(sizing.to_json(), indent=2) + "\n")


def write_csv(sizing: Sizing, path: Path) -> None:
    """Write `sizing_frame` as CSV."""
    with replacing(path) as stream:
        sizing_frame(sizing).write_csv(stream)


def write_plot(sizing: Sizing, path: Path) -> None:
    """Draw completion times and costs by size, as a picture or a page of one file."""
    from parcae.evaluation.pictures import save_picture, write_picture

    file_format = picture_format(path)
    picture = _picture(sizing)
    if file_format != "html":
        write_picture(picture, path, sizing.question.workload.name, file_format)
        return
    drawn = io.BytesIO()
    save_picture(picture, drawn, "svg")
    image = base64.b64encode(drawn.getvalue()).decode()
    lines = "".join(f"<p>{html.escape(text)}</p>" for text in [headline(sizing), *warnings(sizing)])
    title = html.escape(f"Sizes for {sizing.question.workload.name}")
    write_text(
        path,
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f'<body><h1>{title}</h1>{lines}<img alt="{title}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{image}"></body></html>\n',
    )


def _picture(sizing: Sizing) -> Figure:
    """Two panels: what the target is about, and the cost of a job, by size."""
    from parcae.evaluation.pictures import new_picture, tidy

    target = sizing.question.target
    field = "average_s" if target is None else target.field
    is_time = field != _DEADLINES_MET
    what = f"{field.removesuffix('_s')} completion time in s" if is_time else "deadlines met"
    picture = new_picture(10, 4)
    times, costs = picture.subplots(1, 2)
    for policy in sizing.policies:
        results = sizing.of(policy)
        sizes = [result.cores for result in results]
        _draw_line(times, sizes, [getattr(result, field) for result in results], policy)
        _draw_line(costs, sizes, [result.cost_per_job for result in results], policy)
    for result in sizing.elastic:
        assert result.cores_held is not None
        held = [result.cores_held.mean]
        label = f"{result.policy}, {result.size} (cores held)"
        _draw_line(times, held, [getattr(result, field)], label)
        _draw_line(costs, held, [result.cost_per_job], label)
    if target is not None:
        label = f"target {target.bound:.15g}" + (" s" if is_time else "")
        times.axhline(target.bound, linestyle="--", color="grey", label=label)
    tidy(times, ("cores", what))
    tidy(costs, ("cores", "cost of a job"), has_legend=False)
    times.set_ylim(bottom=0)
    costs.set_ylim(bottom=0)
    return picture


def _draw_line(axis: Any, sizes: Sequence[float], estimates: list[Estimate], label: str) -> None:
    """Draw means by size, with their intervals."""
    from parcae.evaluation.pictures import in_legend

    means, low, high = (
        np.array([getattr(one, key) for one in estimates]) for key in ("mean", "low", "high")
    )
    # Intervals of few runs may reach below 0, which no time or cost does. An unknown interval is
    # not drawn, and rounding can leave the mean of equal shares outside theirs by 1e-16.
    ends = np.maximum(0.0, np.nan_to_num([means - np.maximum(0.0, low), high - means]))
    name = in_legend(label)
    axis.errorbar(sizes, means, yerr=ends, marker="o", capsize=3, label=name)
