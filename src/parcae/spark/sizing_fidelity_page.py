"""The page and the table of `parcae spark fidelity` at several sizes."""

from __future__ import annotations

import math

from parcae.evaluation.statistics import with_interval
from parcae.spark.sizing_fidelity import SizeError, SizingFidelity

#: Headings of the table.
COLUMNS = (
    "cores, load",
    "policy",
    "average: `parcae size`",
    "real Spark",
    "error",
    "p95: `parcae size`",
    "real Spark",
    "error",
    "error of a job",
)


def rows(result: SizingFidelity) -> list[tuple[str, ...]]:
    """The cells of the table: a row for every size and policy."""
    return [_row(result, error) for error in result.errors]


def _row(result: SizingFidelity, error: SizeError) -> tuple[str, ...]:
    predicted = error.predicted
    load = result.load(predicted.cores)
    return (
        f"{predicted.cores}, {'batch' if math.isinf(load) else f'{load:.2f}'}",
        predicted.policy,
        f"{predicted.average_s.mean:.2f} s",
        f"{error.real_average_s.mean:.2f} s",
        with_interval(error.average_error, "{:+.1%}".format),
        f"{predicted.p95_s.mean:.2f} s",
        f"{error.real_p95_s.mean:.2f} s",
        with_interval(error.p95_error, "{:+.1%}".format),
        with_interval(error.job_error, "{:.1%}".format),
    )


def page_text(result: SizingFidelity, command: str) -> str:
    """The page in Markdown."""
    config = result.config
    costs = result.costs
    last = config.seed_start + config.seeds - 1
    table = [" | ".join(row) for row in (COLUMNS, ["---"] * len(COLUMNS), *rows(result))]
    paragraphs = (
        "# Sizing against real Spark",
        "What [`parcae size`](../sizing.md) says about a workload at several numbers of cores, and "
        f"what a real Spark {result.spark_version} with as many declared cores took for the same "
        "jobs. Both have the same arrivals and task durations; on Spark, tasks sleep.",
        f"    {command}",
        summary(result),
        "\n".join(f"| {row} |" for row in table),
        "An error is simulated / real - 1: it is negative where Spark took longer. Averages and "
        f"95th percentiles are means over {config.seeds} mixes of {config.num_jobs} jobs (seeds "
        f"{config.seed_start} to {last}, `--arrivals {result.question.arrivals}`); their errors "
        "are paired by mix. The error of a job is the mean of |simulated / real - 1| over jobs. "
        "Intervals are 95% (bootstrap-t; with fewer than 8 mixes, Student's t).",
        f"The profile is `{config.workload}` with {config.time_scale:g} times its task durations. "
        f"Measured on one core, a task of this Spark takes {costs.task:.1f} ms longer than it "
        "works; the profile includes this, as one that is imported from event logs does. A step "
        f"from stage to stage ({costs.stage:.1f} ms) and the start and end of a job "
        f"({costs.job:.1f} ms) take time, too; `parcae size` does not know about these. The "
        "predictions can be printed by",
        f"    {result.size_command}",
    )
    return "\n\n".join(paragraphs) + "\n"


def summary(result: SizingFidelity) -> str:
    """The largest error, in a sentence."""
    worst = max(result.errors, key=lambda error: abs(error.average_error.mean))
    p95 = max(abs(error.p95_error.mean) for error in result.errors)
    return (
        f"The largest error of an average is {worst.average_error.mean:+.1%} "
        f"({worst.predicted.policy}, {worst.predicted.cores} cores); errors of the 95th "
        f"percentile are at most {p95:.1%}."
    )
