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

from parcae.errors import ConfigError
from parcae.evaluation.statistics import Estimate, with_half_width, with_interval
from parcae.files import check_place, replacing, write_text
from parcae.units import s_from_ms

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from rich.table import Table

    from parcae.evaluation.sizing import SizeResult, Sizing

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
    known = {policy: size for policy, size in found.items() if size is not None}
    if needed is None or not known:
        return ""
    best = min(known, key=lambda policy: known[policy])
    if known[best] >= needed:
        return ""
    return f"With {best} {known[best]} cores do what {usual} needs {needed} for."


def warnings(sizing: Sizing) -> list[str]:
    """Where a conclusion would be wrong, one sentence each."""
    return [*_load_warnings(sizing), *_target_warnings(sizing)]


def _load_warnings(sizing: Sizing) -> list[str]:
    over = [cores for cores, load in sizing.load.items() if 1 < load < math.inf]
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
        high_s = result.measured_s(target).high
        if high_s >= s_from_ms(target.limit_ms):
            texts.append(
                f"{policy}: at {found} cores the mean meets the target, but its 95% interval ends "
                f"at {high_s:,.1f} s; more runs (--seeds) tell."
            )
    return texts


def sizing_table(sizing: Sizing) -> Table:
    """The sizing as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    asked = sizing.question
    title = (
        f"{asked.workload.name}: {asked.num_seeds} runs of {asked.jobs_per_run} jobs, arrivals "
        f"{asked.arrivals}, growth {asked.growth:g}"
    )
    table = Table(title=escape(title))
    headings = ["cores", "policy", "variant", "average s", "p95 s", "p99 s", "cores busy"]
    headings += ["cores held"] if sizing.elastic else []
    headings += ["load", "cost/hour", "cost/job"]
    headings += [] if asked.target is None else ["in time", "target"]
    for heading in headings:
        is_text = heading in ("policy", "variant")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for result in (*sizing.results, *sizing.elastic):
        table.add_row(*map(escape, _cells(sizing, result)))
    table.caption = "means over runs ± half of their 95% interval"
    return table


def _digits(value: float) -> int:
    """Digits after the point that show three of a small value, and two of a large one."""
    return max(2, 2 - math.floor(math.log10(value))) if value > 0 else 2


def _cells(sizing: Sizing, result: SizeResult) -> list[str]:
    load = sizing.load[result.cores]
    held = str(result.cores) if result.cores_held is None else with_half_width(result.cores_held)
    cells = [
        result.size,
        result.policy,
        result.variant,
        with_half_width(result.average_s),
        with_half_width(result.p95_s),
        with_half_width(result.p99_s),
        with_half_width(result.cores_busy),
        *([held] if sizing.elastic else []),
        "batch" if math.isinf(load) else f"{load:.2f}",
        f"{result.cost_per_hour:,.2f}",
        with_half_width(result.cost_per_job, _digits(result.cost_per_job.mean)),
    ]
    target = sizing.question.target
    if target is None or result.within_target is None:
        return cells
    share = with_interval(result.within_target, "{:.1%}".format)
    return [*cells, share, "met" if result.meets(target) else "missed"]


def sizing_frame(sizing: Sizing) -> pl.DataFrame:
    """One row a size and policy.

    Columns:
        cores: the most, of an elastic cluster; size: as in 8 or 8..64; policy; variant; load: null
        for a batch; cost_per_hour; of every estimate NAME the columns NAME, NAME_low and NAME_high;
        meets_target: null without a target.
    """
    import polars as pl

    target = sizing.question.target
    rows: list[dict[str, Any]] = []
    for result in (*sizing.results, *sizing.elastic):
        load = sizing.load[result.cores]
        row: dict[str, Any] = {
            "cores": result.cores,
            "size": result.size,
            "policy": result.policy,
            "variant": result.variant,
            "load": None if math.isinf(load) else load,
            "cost_per_hour": result.cost_per_hour,
        }
        for name in _ESTIMATES:
            one: Estimate | None = getattr(result, name)
            row[name] = None if one is None else one.mean
            row[f"{name}_low"] = None if one is None else one.low
            row[f"{name}_high"] = None if one is None else one.high
        row["meets_target"] = None if target is None else result.meets(target)
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def picture_format(path: Path) -> str:
    """The format of a picture by the ending of the file's name.

    Raises:
        ConfigError: the ending is not in PICTURES.
    """
    ending = path.suffix.lstrip(".").lower()
    if ending not in PICTURES:
        raise ConfigError(f"{path}: give the picture one of the endings .{', .'.join(PICTURES)}")
    return ending


def check_files(json_path: Path | None, csv: Path | None, plot: Path | None) -> None:
    """Check that the files can be written, before runs that take time.

    Args:
        json_path: the JSON file, or None.
        csv: the CSV file, or None.
        plot: the picture, or None.

    Raises:
        ConfigError: the picture's ending is unknown.
        OSError: a file cannot be written.
    """
    if plot is not None:
        picture_format(plot)
    for path in (json_path, csv, plot):
        if path is not None:
            check_place(path)


def write_json(sizing: Sizing, path: Path) -> None:
    """Write the sizing as JSON."""
    write_text(path, json.dumps(sizing.to_json(), indent=2) + "\n")


def write_csv(sizing: Sizing, path: Path) -> None:
    """Write `sizing_frame` as CSV."""
    with replacing(path) as stream:
        sizing_frame(sizing).write_csv(stream)


def write_plot(sizing: Sizing, path: Path) -> None:
    """Draw completion times and costs by size, as a picture or a page of one file.

    Raises:
        ConfigError: the ending is not in PICTURES.
        OSError: the file cannot be written.
    """
    from parcae.evaluation.pictures import write_picture

    file_format = picture_format(path)
    picture = _picture(sizing)
    if file_format != "html":
        write_picture(picture, path, sizing.question.workload.name, file_format)
        return
    drawn = io.BytesIO()
    picture.savefig(drawn, format="svg")
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
    """Two panels: the completion time that the target limits, and the cost of a job, by size."""
    from parcae.evaluation.pictures import new_picture, tidy

    target = sizing.question.target
    measure = "average" if target is None else target.measure
    picture = new_picture(10, 4)
    times, costs = picture.subplots(1, 2)
    for policy in sizing.policies:
        results = sizing.of(policy)
        sizes = [result.cores for result in results]
        _draw_line(times, sizes, [getattr(result, f"{measure}_s") for result in results], policy)
        _draw_line(costs, sizes, [result.cost_per_job for result in results], policy)
    for result in sizing.elastic:
        assert result.cores_held is not None
        held = [result.cores_held.mean]
        label = f"{result.policy}, {result.size} (cores held)"
        _draw_line(times, held, [getattr(result, f"{measure}_s")], label)
        _draw_line(costs, held, [result.cost_per_job], label)
    if target is not None:
        limit_s = s_from_ms(target.limit_ms)
        times.axhline(limit_s, linestyle="--", color="grey", label=f"target {limit_s:g} s")
    tidy(times, ("cores", f"{measure} completion time in s"))
    tidy(costs, ("cores", "cost of a job"), has_legend=False)
    times.set_ylim(bottom=0)
    costs.set_ylim(bottom=0)
    return picture


def _draw_line(axis: Any, sizes: Sequence[float], estimates: list[Estimate], label: str) -> None:
    """Draw means by size, with their intervals."""
    means = [one.mean for one in estimates]
    # Intervals of few runs may reach below 0, which no time or cost does.
    below = [one.mean - max(0.0, one.low) for one in estimates]
    above = [one.high - one.mean for one in estimates]
    axis.errorbar(sizes, means, yerr=[below, above], marker="o", capsize=3, label=label)
