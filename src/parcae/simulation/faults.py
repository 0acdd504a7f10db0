"""What goes wrong in a simulated application: the settings behind `--faults`."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_DOWN, Context
from typing import Any

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from parcae.base.arrays import Float64Array
from parcae.base.errors import ConfigError, WorkloadError
from parcae.base.texts import MS_PER_HOUR, ms_from_s, s_from_ms
from parcae.cluster.trace import FaultCounts
from parcae.simulation.future import Future
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import Workload

#: The keys of `--faults KEY=VALUE,...`, and the fields of `Faults` that they set.
KEYS = {
    "failures": "failure_rate",
    "max-failures": "max_failures",
    "lost": "lost_per_hour",
    "executor-cores": "executor_cores",
    "restart": "restart_s",
    "redraw": "redraws",
    "stragglers": "straggler_share",
    "factor": "straggler_factor",
    "speculation": "speculation",
    "multiplier": "speculation_multiplier",
    "quantile": "speculation_quantile",
}
#: Most losses of an executor, on average, during the longest task: a task then has e^10 attempts.
_MOST_LOSSES = 10.0
_SWITCHES = ("redraws", "speculation")
_SWITCH = {"on": True, "off": False}
_HELP = (
    "write none, log, or KEY=VALUE,... with keys of "
    f"{', '.join(KEYS)}, as in failures=0.01,lost=0.5,speculation=on"
)


class Faults(BaseModel):
    """What goes wrong in the world of cores. The defaults of the rates are 0.

    Raises:
        pydantic.ValidationError: a key is unknown or a value is out of range.

    Source: Spark's TaskSetManager and its configuration page.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_log: bool = False
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    max_failures: int = Field(default=4, ge=1, le=1_000)
    lost_per_hour: float = Field(default=0.0, ge=0, le=1e6)
    executor_cores: int = Field(default=4, ge=1, le=1 << 20)
    restart_s: float = Field(default=30.0, ge=0.001, le=1e6)
    redraws: bool = True
    straggler_share: float = Field(default=0.0, ge=0, le=1)
    straggler_factor: float = Field(default=5.0, ge=1, le=1e6)
    speculation: bool = False
    speculation_multiplier: float = Field(default=3.0, ge=1, le=1e6)
    speculation_quantile: float = Field(default=0.9, ge=0, lt=1)
    speculation_interval_ms: int = Field(default=100, ge=1, le=10**9)
    speculation_least_ms: int = Field(default=100, ge=0, le=10**9)

    @model_serializer(mode="wrap")
    def _fields_to_save(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """All fields; beside `from_log` only given ones, since what is given replaces the log."""
        fields: dict[str, Any] = serialize(self)
        if not self.from_log:
            return fields
        return {name: value for name, value in fields.items() if name in self.model_fields_set}

    def __str__(self) -> str:
        """The settings as `--faults` takes them; defaults are left out.

        Beside "log" a default that was given is no default: it holds instead of the log's number.
        """
        words = ["log"] if self.from_log else []
        given = self.model_fields_set if self.from_log else set()
        for key, name in KEYS.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default or name in given:
                is_switch = isinstance(value, bool)
                # All digits, so that the text is read as the same number.
                text = ("off", "on")[value] if is_switch else repr(value).removesuffix(".0")
                words.append(f"{key}={text}")
        return ",".join(words) or "failures=0"


def parse_faults(text: str) -> Faults | None:
    """Parse "none", "log", or KEY=VALUE,... with the keys of `KEYS`; "log" may come first.

    Example: `parse_faults("failures=0.01,speculation=on")` lets one attempt in a hundred fail.
    """
    if text.strip() == "none":
        return None
    try:
        return Faults.model_validate(_fields(text))
    except ValidationError as error:
        key, first = _first_problem(error)
        raise ConfigError(f"--faults {text}: {key}: {first['msg']}; {_HELP}") from None


def _first_problem(error: ValidationError) -> tuple[str, Any]:
    """The key of the first field that is wrong, and what pydantic says of it."""
    first = error.errors()[0]
    field = str(first["loc"][0])
    return next((key for key, name in KEYS.items() if name == field), field), first


def _fields(text: str) -> dict[str, Any]:
    """The fields of `Faults` that the text sets, with values as text."""
    words = [word.strip() for word in text.split(",")]
    fields: dict[str, Any] = {"from_log": words[0] == "log"}
    for word in words[1:] if fields["from_log"] else words:
        key, _, value = word.partition("=")
        field = KEYS.get(key)
        if field is None or not value or field in fields:
            raise ConfigError(f"--faults {text}: {word!r} cannot be read; {_HELP}")
        fields[field] = _SWITCH.get(value, value) if field in _SWITCHES else value
    return fields


def resolve_faults(faults: Faults | None, workload: Workload) -> Faults | None:
    """Replace the rates that come from the log by the workload's numbers; given ones stay.

    A restart takes at least 1 ms, the resolution of the simulation: a log may have a new executor
    in the millisecond of a loss.
    """
    if faults is None or not faults.from_log:
        return faults
    counts = workload.faults
    if counts is None:
        raise WorkloadError(
            f"workload {workload.name!r} does not say what went wrong in its logs: import its "
            "Spark event logs again, or give rates, as in --faults failures=0.01,lost=0.5"
        )
    update: dict[str, Any] = {
        "from_log": False,
        "failure_rate": counts.failure_rate,
        "lost_per_hour": counts.lost_per_hour,
        "speculation": faults.speculation or counts.num_speculative > 0,
    }
    if counts.executor_cores > 0:
        update["executor_cores"] = counts.executor_cores
    if counts.num_restarts > 0:
        update["restart_s"] = s_from_ms(max(1.0, counts.restart_ms))
    # What was set beside "log" holds.
    given = faults.model_fields_set - {"from_log"}
    resolved = faults.model_copy(update={k: v for k, v in update.items() if k not in given})
    _check_range(resolved, workload)
    return resolved


def _check_range(resolved: Faults, workload: Workload) -> None:
    """Refuse rates of a log outside the bounds of those that can be given."""
    try:
        Faults.model_validate(dict(resolved))
    except ValidationError as error:
        key, first = _first_problem(error)
        raise WorkloadError(
            f"--faults log: the logs of workload {workload.name!r} have {key}={first['input']:g}: "
            f"{first['msg']}; give another value, as in --faults log,{key}=1"
        ) from None


def check_elastic(faults: Faults | None) -> None:
    """Refuse what cannot be simulated on an elastic cluster."""
    if faults is not None and faults.lost_per_hour > 0:
        raise ConfigError(
            "losses of executors are simulated on clusters of a fixed size only: give --faults "
            "with lost=0, or a number of cores instead of a range"
        )


def check_losses(
    faults: Faults, jobs: Iterable[JobSpec], factors: Float64Array | None = None
) -> None:
    """Refuse executors that are lost so often that a task would hardly ever end.

    A task whose executor is lost runs again, about exp(losses during the task) times. Where each
    attempt samples a duration of its own, that of a mean task counts, else the longest one.
    """
    if faults.lost_per_hour == 0:
        return
    stages = [stage for job in jobs for stage in job.stages]
    if faults.redraws:
        each_ms = [stage.mean_task_ms for stage in stages]
    else:
        each_ms = [float(stage.durations.all_samples.max()) for stage in stages]
    if factors is not None:
        each_ms = (np.array(each_ms) * factors[: len(each_ms)]).tolist()
    longest_ms = max(each_ms, default=0.0)
    if faults.straggler_share == 1:
        longest_ms *= faults.straggler_factor
    losses = faults.lost_per_hour * longest_ms / MS_PER_HOUR
    if losses > _MOST_LOSSES:
        # Rounded down, so that it is accepted.
        three_digits = Context(prec=3, rounding=ROUND_DOWN)
        most = three_digits.create_decimal_from_float(_MOST_LOSSES * MS_PER_HOUR / longest_ms)
        raise ConfigError(
            f"with lost={faults.lost_per_hour:g} an executor is lost {losses:,.0f} times while its "
            f"longest task runs ({s_from_ms(longest_ms):,.4g} s): hardly any attempt would end; "
            f"give at most lost={float(most):g}"
        )


def put_faults(faults: Faults, future: Future) -> None:
    """Write the settings into the tables of one simulator; `from_log` must be resolved."""
    table = future.faults
    for name in type(faults).model_fields.keys() & set(table.dtype.names):
        table[name][0] = getattr(faults, name)
    table.restart_ms[0] = ms_from_s(faults.restart_s)


def read_counts(future: Future, clock_ms: int) -> FaultCounts | None:
    """What went wrong in the run of one simulator; None if its settings have no faults."""
    if len(future.faults) == 0:
        return None
    table = future.faults
    return FaultCounts(
        failed=int(table.num_failed[0]),
        interrupted=int(table.num_interrupted[0]),
        lost_executors=int(table.num_losses[0]),
        copies=int(table.num_copies[0]),
        copies_won=int(table.num_copies_won[0]),
        wasted_ms=int(table.wasted_ms[0]),
        down_ms=int(table.down_ms[0]) - _down_after_ms(future, clock_ms),
    )


def _down_after_ms(future: Future, clock_ms: int) -> int:
    """Core time after the end of the run that `down_ms` counts for the executors still down."""
    rows = future.fault_cores
    cores = int(future.faults.executor_cores[0])
    return sum(
        min(cores, len(rows) - executor * cores) * (int(rows.change_ms[executor]) - clock_ms)
        for executor in np.flatnonzero(rows.is_down).tolist()
    )
