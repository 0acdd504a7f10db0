"""Options that the commands of `parcae packing` share, and the jobs that they describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from parcae.packing.layout import Cost
    from parcae.packing.sources import DrawnSource
    from parcae.workloads.swf import SwfLog

LoadOption = Annotated[
    str | None,
    typer.Option(
        "--load",
        help="Load of each resource: 1.3, 130%, several (0.7,1.3), or a range of ten (0.1:1.84).",
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", help="Jobs that arrive a step, instead: 0.7, several, or a range."),
]
MixOption = Annotated[
    str,
    typer.Option("--mix", help="DeepRM's jobs as in its code, or as in its paper: code | paper"),
]
WindowOption = Annotated[int, typer.Option("--window", min=1, help="Steps in which jobs arrive.")]
SlotsOption = Annotated[
    int, typer.Option("--slots", min=1, help="Waiting jobs that a policy sees.")
]
BacklogOption = Annotated[
    int,
    typer.Option(
        "--backlog", min=0, help="Further waiting jobs; those beyond are lost, and counted."
    ),
]
HorizonOption = Annotated[
    int, typer.Option("--horizon", min=1, help="Steps that are planned ahead.")
]
UnitsOption = Annotated[int, typer.Option("--units", min=1, help="Units of each resource.")]
ResourcesOption = Annotated[int, typer.Option("--resources", min=1, help="Resources.")]
SwfOption = Annotated[
    Path | None,
    typer.Option("--swf", help="A log in the Standard Workload Format (*.swf, *.swf.gz)."),
]
ProcessorsOption = Annotated[
    int | None, typer.Option("--processors", min=1, help="Processors of the log's cluster.")
]
MemoryOption = Annotated[
    int | None,
    typer.Option("--memory", min=1, help="KB of memory of the log's cluster: a second resource."),
]
EstimatesOption = Annotated[
    str, typer.Option("--estimates", help="Durations that schedulers are told: requested | actual")
]
CancelledOption = Annotated[
    str, typer.Option("--cancelled", help="Jobs that were cancelled while they ran: keep | drop")
]
PartitionsOption = Annotated[
    str | None, typer.Option("--partitions", help="Only jobs of these partitions: 1,3")
]
BadShareOption = Annotated[
    float,
    typer.Option("--max-bad-share", min=0, max=1, help="Refuse more bad lines than this share."),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="slowdown | bounded-slowdown (logs) | completion | utilization | makespan",
    ),
]
#: Rates that a range of loads is divided into.
_NUM_RATES = 10


@dataclass(frozen=True)
class LogOptions:
    """How a log is read."""

    processors: int | None = None
    memory: int | None = None
    estimates: str = "requested"
    cancelled: str = "keep"
    partitions: str | None = None
    max_bad_share: float = 0.0

    def read(self, path: Path) -> SwfLog:
        """The log."""
        from parcae.errors import ConfigError
        from parcae.workloads.swf import read_swf

        words = self.partitions.split(",") if self.partitions is not None else []
        if not all(word.strip().isdecimal() for word in words):
            raise ConfigError(
                f"--partitions {self.partitions}: write numbers separated by commas, as in 1,3"
            )
        return read_swf(
            path,
            processors=self.processors,
            memory=self.memory,
            estimates=self.estimates,  # type: ignore[arg-type]
            cancelled=self.cancelled,  # type: ignore[arg-type]
            partitions=[int(word) for word in words] or None,
            max_bad_share=self.max_bad_share,
        )


@dataclass(frozen=True)
class DrawnOptions:
    """How jobs are drawn."""

    load: str | None = None
    rate: str | None = None
    mix: str = "code"
    window: int = 50
    units: int = 10
    resources: int = 2
    sizes: dict[str, int] = field(default_factory=dict)

    def source(self) -> DrawnSource:
        """The sequences."""
        from parcae.errors import ConfigError
        from parcae.packing.config import PackingConfig
        from parcae.packing.sources import DrawnSource
        from parcae.workloads.bernoulli import job_mix, parse_load, rate_of_load

        mix = job_mix(self.mix)
        capacity = [self.units] * self.resources
        if (self.load is None) == (self.rate is None):
            raise ConfigError(
                "say how many jobs arrive: one of --load 1.3, --rate 0.7 and --swf FILE"
            )
        text = self.load if self.load is not None else self.rate
        prefix = "" if self.load is not None else "rate:"
        loads = tuple(parse_load(prefix + word, mix, capacity) for word in _spread(str(text)))
        rates = tuple(round(rate_of_load(mix, load, capacity), 6) for load in loads)
        settings = PackingConfig.model_validate(self.sizes)
        return DrawnSource(rates, self.window, self.mix, self.units, self.resources, settings)

    def label(self) -> str:
        """The setting in words."""
        arrivals = f"load {self.load}" if self.load is not None else f"rate {self.rate}"
        return f"{arrivals}, mix {self.mix}, {self.window} steps"


def _spread(text: str) -> list[str]:
    """The numbers of "0.4", "0.4,0.7" or "0.1:1.84", the last as a range of ten."""
    import numpy as np

    from parcae.errors import ConfigError

    if ":" not in text:
        return text.split(",")
    try:
        low, high = (float(word.rstrip("%")) for word in text.split(":"))
    except ValueError:
        raise ConfigError(f"{text!r} is not a range: write 0.1:1.84") from None
    sign = "%" if text.endswith("%") else ""
    return [f"{value:.6g}{sign}" for value in np.linspace(low, high, _NUM_RATES)]


def sizes(slots: int, backlog: int, horizon: int) -> dict[str, int]:
    """Sizes of the world as its config names them."""
    return {"num_slots": slots, "backlog_size": backlog, "horizon": horizon}


def cost_of(objective: str | None, is_log: bool) -> Cost:
    """What is made small: as asked for, else slowdown, of logs bounded."""
    from parcae.metrics.packing import parse_cost

    return parse_cost(objective or ("bounded-slowdown" if is_log else "slowdown"))


def reject_both(swf: Path | None, load: str | None, rate: str | None) -> None:
    """Jobs are drawn, or of a log."""
    from parcae.errors import ConfigError

    if swf is not None and (load is not None or rate is not None):
        raise ConfigError(
            "--swf runs a log as it is; --load and --rate are for drawn jobs: give one of them"
        )


def log_json(log: SwfLog) -> dict[str, Any]:
    """What was read, and what the log is like."""
    import numpy as np

    jobs = log.jobs
    report = log.report
    hours = {"p50": 50, "p95": 95, "max": 100}

    def spread(values: Any) -> dict[str, float]:
        return {key: float(np.percentile(values, share)) for key, share in hours.items()} | {
            "mean": float(np.mean(values))
        }

    return {
        "log": jobs.name,
        "jobs": len(jobs),
        "span_s": jobs.span,
        "start_unix_s": log.start_unix_s,
        "capacity": dict(zip(jobs.resources, jobs.capacity.tolist(), strict=True)),
        "load": {name: float(load) for name, load in zip(jobs.resources, jobs.load, strict=True)},
        "duration_s": spread(jobs.duration),
        "told_s": spread(jobs.told),
        "demand": {
            name: spread(jobs.demand[:, column]) for column, name in enumerate(jobs.resources)
        },
        "read": {
            "lines": report.num_rows,
            "bad": report.num_bad_rows,
            "bad_samples": list(report.bad_samples),
            "notes": list(report.notes),
            "findings": [
                {"what": f.what, "jobs": f.count, "first": f.first, "dropped": f.is_dropped}
                for f in log.findings
            ],
        },
        "header": dict(log.header.entries),
    }
