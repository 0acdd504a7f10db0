"""Options that the commands of `parcae packing` share, and the jobs that they describe."""

# Types of options are annotations of commands' parameters, see `parcae.cli.options`.

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import Only, file_to_read, finite
from parcae.cli.options import MOST
from parcae.cli.progress import print_reading

if TYPE_CHECKING:
    from parcae.rigid.layout import Cost
    from parcae.rigid.sources import DrawnSource
    from parcae.rigid.swf import SwfLog

_OBJECTIVES = (
    "slowdown | bounded-slowdown | completion | makespan | slowdown+makespan "
    "(default: slowdown; logs: bounded-slowdown)"
)
ObjectiveOption = Annotated[
    str | None, typer.Option("--objective", help=f"What to minimise: {_OBJECTIVES}")
]
TunedObjectiveOption = Annotated[
    str | None, typer.Option("--objective", help=f"What tuning minimises: {_OBJECTIVES}")
]
#: Number of loads into which a range is divided.
_NUM_RATES = 10


@dataclass(frozen=True)
class ReadingOptions:
    """How a log is read."""

    processors: Annotated[
        int | None,
        typer.Option(
            "--processors",
            min=1,
            help="Number of processors of the cluster. (default: as in the log)",
        ),
    ] = None
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory", min=1, help="Memory of the cluster in KB; makes memory a second resource."
        ),
    ] = None
    estimates: Annotated[
        str,
        typer.Option("--estimates", help="Durations that the policies know: requested | actual"),
    ] = "requested"
    cancelled: Annotated[
        str, typer.Option("--cancelled", help="Jobs that were cancelled while running: keep | drop")
    ] = "keep"
    partitions: Annotated[
        str | None, typer.Option("--partitions", help="Use only the jobs of these partitions: 1,3")
    ] = None
    max_bad_share: Annotated[
        float,
        typer.Option(
            "--max-bad-share",
            min=0,
            max=1,
            help="Fail if more than this share of the lines is invalid.",
            callback=finite,
        ),
    ] = 0.0

    def settings(self) -> dict[str, Any]:
        """How a log is read, as JSON: the values of the options, by their names."""
        return {one.name: getattr(self, one.name) for one in fields(ReadingOptions)}

    def read(self, path: Path) -> SwfLog:
        """Read a log."""
        from parcae.base.errors import ConfigError
        from parcae.rigid.swf import read_swf

        words = self.partitions.split(",") if self.partitions is not None else []
        if not all(word.strip().isdecimal() for word in words):
            raise ConfigError(
                f"--partitions {self.partitions}: write numbers separated by commas, as in 1,3"
            )
        return read_swf(
            path,
            processors=self.processors,
            memory=self.memory,
            # `read_swf` checks these texts itself.
            estimates=self.estimates,  # type: ignore[arg-type]
            cancelled=self.cancelled,  # type: ignore[arg-type]
            partitions=[int(word) for word in words] or None,
            max_bad_share=self.max_bad_share,
        )


@dataclass(frozen=True)
class LogOptions(ReadingOptions):
    """A log, if there is one, and how it is read."""

    swf: Annotated[
        Path | None,
        typer.Option(
            "--swf",
            help="A log in the Standard Workload Format (*.swf, *.swf.gz).",
            callback=file_to_read,
        ),
    ] = None

    def read_noting(self, path: Path) -> SwfLog:
        """Read a log, and print on standard error what was left out or changed; see `read`."""
        log = self.read(path)
        print_reading(log.report)
        return log


@dataclass(frozen=True)
class SpedLogOptions(LogOptions):
    """A log, if there is one, how it is read, and how fast its jobs arrive."""

    speed: Annotated[
        float,
        typer.Option(
            "--speed",
            min=1e-3,
            max=1e3,
            help="Let the log's jobs arrive this many times as fast, e.g. 1.5.",
            callback=finite,
        ),
    ] = 1.0

    def read(self, path: Path) -> SwfLog:
        """Read a log; see `ReadingOptions.read`."""
        from dataclasses import replace

        from parcae.rigid.sources import sped_up

        log = super().read(path)
        if self.speed == 1.0:
            return log
        name = f"{log.jobs.name}[{self.speed:g} times as fast]"
        return replace(log, jobs=replace(sped_up(log.jobs, self.speed), name=name))


@dataclass(frozen=True)
class DrawnOptions:
    """How jobs are drawn, and the sizes of the packing world."""

    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            help="Load of each resource: 1.3, 130%, several (0.7,1.3), or ten in a range "
            "(0.1:1.84).",
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            help="Mean arrivals per time step, instead of --load: 0.7, several, or a range.",
        ),
    ] = None
    mix: Annotated[
        str,
        typer.Option(
            "--mix", help="Which jobs: as in DeepRM's code, or as in its paper: code | paper"
        ),
    ] = "code"
    window: Annotated[
        int,
        typer.Option(
            "--window", min=1, max=MOST, help="Number of time steps in which jobs arrive."
        ),
    ] = 50
    slots: Annotated[
        int,
        typer.Option("--slots", min=1, help="Number of job slots (waiting jobs that are visible)."),
    ] = 10
    backlog: Annotated[
        int,
        typer.Option(
            "--backlog",
            min=0,
            help="Maximum number of further waiting jobs; jobs beyond it are lost, and counted.",
        ),
    ] = 60
    horizon: Annotated[
        int, typer.Option("--horizon", min=1, help="Number of time steps that are planned ahead.")
    ] = 20
    units: Annotated[
        int,
        typer.Option("--units", min=1, max=MOST, help="Number of units of each resource."),
    ] = 10
    resources: Annotated[
        int, typer.Option("--resources", min=1, max=MOST, help="Number of resources.")
    ] = 2

    @property
    def is_given(self) -> bool:
        """Whether a load or a rate is given."""
        return self.load is not None or self.rate is not None

    def source(self) -> DrawnSource:
        """The source of job sequences."""
        from parcae.base.errors import ConfigError
        from parcae.rigid.bernoulli import job_mix, parse_load, rate_of_load
        from parcae.rigid.config import PackingConfig
        from parcae.rigid.sources import DrawnSource

        mix = job_mix(self.mix)
        capacity = [self.units] * self.resources
        # Both or neither.
        if (self.load is None) == (self.rate is None):
            raise ConfigError(
                "give exactly one of --load 1.3, --rate 0.7 and --swf FILE, so that it is known "
                "how many jobs arrive"
            )
        text = self.load if self.load is not None else self.rate
        prefix = "" if self.load is not None else "rate:"
        loads = tuple(parse_load(prefix + word, mix, capacity) for word in _spread(str(text)))
        # A load is a multiple of the rate; the source has rates.
        rates = tuple(round(rate_of_load(mix, load, capacity), 6) for load in loads)
        settings = PackingConfig(
            num_slots=self.slots, backlog_size=self.backlog, horizon=self.horizon
        )
        return DrawnSource(rates, self.window, self.mix, self.units, self.resources, settings)

    def label(self) -> str:
        """The setting in words, for titles."""
        arrivals = f"load {self.load}" if self.load is not None else f"rate {self.rate}"
        return f"{arrivals}, mix {self.mix}, {self.window} steps"


def _spread(text: str) -> list[str]:
    """The numbers in "0.4", "0.4,0.7" or "0.1:1.84"; a range gives ten numbers."""
    import numpy as np

    from parcae.base.errors import ConfigError

    if ":" not in text:
        return text.split(",")
    words = text.split(":")
    # In "10:184%" the sign belongs to both numbers.
    sign = "%" if words[-1].endswith("%") else ""
    try:
        low, high = (float(word.removesuffix(sign)) for word in words)
    except ValueError:
        raise ConfigError(f"{text!r} is not a range: write 0.1:1.84 or 10:184%") from None
    return [f"{value:.6g}{sign}" for value in np.linspace(low, high, _NUM_RATES)]


def cost_of(objective: str | None, is_log: bool) -> Cost:
    """The objective that the option names; by default slowdown, for logs bounded slowdown."""
    from parcae.rigid.metrics import parse_cost

    name = objective or ("bounded-slowdown" if is_log else "slowdown")
    return parse_cost(name, is_of_run=True)


def reject_both(swf: Path | None, drawn: DrawnOptions) -> None:
    """Raise an error if both a log and drawn jobs are requested."""
    from parcae.base.errors import ConfigError

    if swf is not None and drawn.is_given:
        raise ConfigError(
            "--swf runs the jobs of a log, --load and --rate are for drawn jobs: give only one of "
            "them"
        )


#: Options of the packing commands that apply only to logs, or only to jobs that are drawn.
_OF_LOGS = ("processors", "memory", "estimates", "cancelled", "partitions", "max_bad_share")
_OF_LOGS_TOO = ("also_swf", "piece_jobs", "speeds", "part", "speed")
_OF_DRAWN = ("mix", "window", "slots", "backlog", "horizon", "units", "resources")
_OF_DRAWN_TOO = ("seeds", "seed_start")
ONE_SOURCE = (
    Only((*_OF_LOGS, *_OF_LOGS_TOO), lambda given: given["swf"] is not None, "to logs (--swf)"),
    Only(
        (*_OF_DRAWN, *_OF_DRAWN_TOO),
        lambda given: given["swf"] is None and given.get("job_set") is None,
        "to jobs that are drawn (--load, --rate)",
    ),
)


def log_json(log: SwfLog) -> dict[str, Any]:
    """A description of a log, and what the reader left out or changed, as JSON."""
    jobs = log.jobs
    names = jobs.resources
    return {
        "log": jobs.name,
        "jobs": len(jobs),
        "span_s": jobs.span,
        "start_unix_s": log.start_unix_s,
        "capacity": dict(zip(names, jobs.capacity.tolist(), strict=True)),
        "load": jobs.load_by_resource,
        "duration_s": _spread_of(jobs.duration),
        "told_s": _spread_of(jobs.estimate),
        "demand": {name: _spread_of(jobs.demand[:, row]) for row, name in enumerate(names)},
        "read": _reading_json(log),
        "header": dict(log.header.entries),
    }


def _spread_of(values: Any) -> dict[str, float]:
    """Percentiles and the mean of an array."""
    import numpy as np

    percentiles = {"p50": 50, "p95": 95, "max": 100}
    spread = {key: float(np.percentile(values, rank)) for key, rank in percentiles.items()}
    return {**spread, "mean": float(np.mean(values))}


def _reading_json(log: SwfLog) -> dict[str, Any]:
    """What the reader left out or changed, as JSON."""
    report = log.report
    return {
        "lines": report.num_rows,
        "bad": report.num_bad_rows,
        "bad_samples": list(report.bad_samples),
        "notes": list(report.notes),
        "findings": [
            {"what": f.what, "jobs": f.count, "first": f.first, "dropped": f.is_dropped}
            for f in log.findings
        ],
    }
