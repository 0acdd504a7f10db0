"""The admin side over HTTP: /health, /metrics for Prometheus, the live page and its event stream.

It listens on the loopback address only and is read-only. To reach it from another machine, use a
tunnel.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from parcae.base.texts import MS_PER_S, __version__
from parcae.cluster.kernels.tables import correction
from parcae.service.live_tables import EndedJob, LiveJob
from parcae.service.mirror import Mirror
from parcae.service.policies import TimedPlan
from parcae.service.protocol import Events, JobOrder, StateMessage
from parcae.service.server import Server
from parcae.service.session import Service, Session, Watcher

_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
#: Samples of the chart: one a second for ten minutes.
_NUM_SAMPLES = 600
_SAMPLE_S = 1.0
#: Number of ended jobs that the page draws.
_NUM_ENDED = 300
#: Number of jobs that the page lists for each cluster: the first in the order.
_NUM_JOBS = 200

_Seen = TypeVar("_Seen")


class Board(Watcher):
    """Keeps samples of the clusters and the last ended jobs, and records latencies."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.version = 0
        # By the monotonic clock, which nobody sets; times that the page shows are those of the day.
        self._begun_s = time.monotonic()
        self._sampled_s = self._begun_s - _SAMPLE_S
        self._history: dict[str, deque[tuple[float, int, int]]] = {}
        self._ended: deque[dict[str, Any]] = deque(maxlen=_NUM_ENDED)
        self._num_ended = 0
        self._took_ms = self._fair_ms = 0.0
        self._clusters: dict[str, dict[str, Any]] = {}  # as last seen
        self._sizes: dict[str, _Sizes] = {}  # as last seen
        self.registry = CollectorRegistry()
        self._plan_s = Histogram(
            "parcae_plan_seconds", "Time of one plan.", buckets=_BUCKETS_S, registry=self.registry
        )
        self._request_s = Histogram(
            "parcae_request_seconds",
            "Time from a decoded request to its reply.",
            ["type"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(self)

    def opened(self, session: Session) -> None:
        """Note that the page must be updated."""
        self.version += 1

    def closed(self, session: Session) -> None:
        """Drop the samples of clusters that are gone."""
        self.version += 1
        for name in self._history.keys() - self.service.mirrors.keys():
            self._history.pop(name, None)

    def planned(self, mirror: Mirror, plan: TimedPlan) -> None:
        """Record the time of the plan."""
        self._plan_s.observe(plan.took_ms / MS_PER_S)

    def ended(self, job: EndedJob) -> None:
        """Record the job's completion time and its estimate for fair sharing."""
        # Without an estimate, count no difference from fair sharing.
        fair_ms = float(job.took_ms) if job.fair_ms is None else job.fair_ms
        self._num_ended += 1
        self._took_ms += job.took_ms
        self._fair_ms += fair_ms
        self._ended.append(
            {
                "name": job.name,
                "application": job.application,
                "at_s": round(time.time(), 2),
                "took_s": round(job.took_ms / MS_PER_S, 3),
                "fair_s": round(fair_ms / MS_PER_S, 3),
            }
        )

    def answered(self, session: Session, message: StateMessage | Events, took_ms: float) -> None:
        """Record the latency, and sample the clusters once a second."""
        self.version += 1
        self._request_s.labels(message.type).observe(took_ms / MS_PER_S)
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            shown_s = round(time.time(), 2)
            for name, sizes in self._look(self._sizes, lambda _, mirror: _sizes(mirror)).items():
                samples = self._history.setdefault(name, deque(maxlen=_NUM_SAMPLES))
                samples.append((shown_s, sizes.jobs, sizes.busy_cores))

    def _look(
        self, seen: dict[str, _Seen], look: Callable[[str, Mirror], _Seen]
    ) -> dict[str, _Seen]:
        """What there is to see of all clusters now; of a cluster that is being changed, the
        last.
        """
        mirrors = dict(self.service.mirrors)
        # The event loop and the thread for heavy messages may look at the same time.
        for name in tuple(seen):
            if name not in mirrors:
                seen.pop(name, None)
        for name, mirror in mirrors.items():
            if mirror.lock.acquire(blocking=False):
                try:
                    seen[name] = look(name, mirror)
                finally:
                    mirror.lock.release()
        return dict(seen)

    def collect(self) -> Iterator[Metric]:
        """The counters and gauges; called when Prometheus reads the metrics."""
        took = "Sum of the completion times of all jobs that ended successfully"
        counters = [
            (name, f"Number of {name.replace('_', ' ')}.", float(value))
            for name, value in asdict(self.service.counts).items()
        ]
        counters += [
            ("completion_seconds", f"{took}.", self._took_ms / MS_PER_S),
            (
                "fair_completion_seconds",
                f"{took}, as estimated for fair sharing.",
                self._fair_ms / MS_PER_S,
            ),
        ]
        for name, text, value in counters:
            yield CounterMetricFamily(f"parcae_{name}", text, value=value)
        sizes = self._look(self._sizes, lambda _, mirror: _sizes(mirror)).values()
        total = _Sizes(*map(sum, zip(_Sizes(0, 0, 0, 0), *sizes, strict=True)))
        family = GaugeMetricFamily("parcae_jobs", "Jobs in the system.", labels=["state"])
        family.add_metric(["running"], total.running_jobs)
        family.add_metric(["waiting"], total.jobs - total.running_jobs)
        yield family
        for name, text, value in (
            ("sessions", "Connected applications.", len(self.service.sessions)),
            ("cores", "Cores of all clusters.", total.cores),
            ("cores_busy", "Cores that run tasks.", total.busy_cores),
        ):
            yield GaugeMetricFamily(f"parcae_{name}", text, value=value)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the page shows, as plain values for JSON."""
        return {
            "policy": self.service.policy_name,
            "scope": self.service.scope.value,
            "uptime_s": round(time.monotonic() - self._begun_s, 1),
            "counts": asdict(self.service.counts),
            "sessions": [
                {"application": session.application, "name": session.application_name}
                for session in tuple(self.service.sessions.values())
            ],
            "clusters": list(self._look(self._clusters, self._cluster).values()),
            "ended": list(self._ended),
            "num_ended": self._num_ended,
            "took_s": round(self._took_ms / MS_PER_S, 3),
            "fair_s": round(self._fair_ms / MS_PER_S, 3),
        }

    def _cluster(self, name: str, mirror: Mirror) -> dict[str, Any]:
        rows = job_rows(mirror)
        sharing = self.service.sharing
        return {
            "name": name or "all applications",
            "clock_ms": mirror.clock_ms,
            "cores": mirror.num_cores,
            "busy": mirror.num_running,
            "num_jobs": len(mirror.jobs),
            "jobs": rows,
            "executors": sharing.executors if sharing is not None else None,
            "history": [
                *self._history.get(name, ()),
                (round(time.time(), 2), len(mirror.jobs), mirror.num_running),
            ],
        }


def job_rows(mirror: Mirror) -> list[dict[str, Any]]:
    """A row for every job in the system, in the order in force; at most `_NUM_JOBS`."""
    active = mirror.state.active[: mirror.num_jobs]
    in_order = active[np.argsort(mirror.state.job_orders["tier"][active], kind="stable")]
    rows = in_order[:_NUM_JOBS].tolist()
    return [_job_row(mirror, mirror.by_row[row], mirror.order_of(row)) for row in rows]


def _job_row(mirror: Mirror, job: LiveJob, order: JobOrder) -> dict[str, Any]:
    jobs = mirror.state.jobs
    stages = mirror.state.stages
    first = mirror.stage_row(job, 0)
    rows = slice(first, first + len(job.stage_ids))
    running = int(jobs["num_attached"][job.row])
    return {
        "key": f"{job.application}/{job.job_id}",
        "application": job.application,
        "job_id": job.job_id,
        "name": job.name,
        "arrival_ms": job.arrival_ms,
        "tasks": int(stages["num_tasks"][rows].sum()),
        "finished": int(stages["num_finished"][rows].sum()),
        "running": running,
        # Remaining work by the profile, corrected by the durations of the job's finished tasks.
        "left_ms": round(float(jobs["remaining_ms"][job.row]) * correction(mirror.state, job.row)),
        "tier": order.tier,
        "weight": order.weight,
        "limit": order.limit,
    }


class _Sizes(NamedTuple):
    """The size of a cluster, and how much of it is in use."""

    jobs: int
    running_jobs: int
    cores: int
    busy_cores: int


def _sizes(mirror: Mirror) -> _Sizes:
    running = mirror.state.jobs["num_attached"][mirror.state.active[: mirror.num_jobs]]
    return _Sizes(mirror.num_jobs, int((running > 0).sum()), mirror.num_cores, int(running.sum()))


_HOST = "127.0.0.1"
#: Shortest time between two pictures of the state, in s.
_REFRESH_S = 0.25
#: Longest share of the event loop's time that is spent on pictures.
_SHARE = 0.05
#: Seconds without data after which a comment keeps the stream alive.
_ALIVE_S = 15.0
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)
_NAMES = ("127.0.0.1", "localhost", "[::1]")


@web.middleware
async def _only_here(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests for another host name: they come from a foreign page by DNS rebinding."""
    if request.host.rsplit(":", 1)[0] not in _NAMES:
        raise web.HTTPForbidden(text="use http://127.0.0.1 or http://localhost for this page\n")
    return await handler(request)


class Admin:
    """The HTTP server beside a `Server`."""

    def __init__(self, server: Server, board: Board, port: int) -> None:
        self.server = server
        self.board = board
        self._port = port
        self._page = files("parcae.service").joinpath("page.html").read_text()
        self._runner: web.AppRunner | None = None
        self._picture = b""  # the state as JSON, once for all viewers
        self._shown = -1  # the board's version that it shows
        self._next_s = 0.0  # when it may be taken again

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Start to listen."""
        app = web.Application(middlewares=[_only_here])
        pages = {
            "/": self._show,
            "/health": self._health,
            "/metrics": self._metrics,
            "/state": self._state,
            "/events": self._events,
        }
        app.add_routes([web.get(path, page) for path, page in pages.items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, _HOST, self._port).start()

    async def stop(self) -> None:
        """Stop the HTTP server."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _show(self, request: web.Request) -> web.Response:
        headers = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        service = self.server.service
        return _json(
            {
                "status": "ok",
                "parcae": __version__,
                "policy": service.policy_name,
                "sessions": len(service.sessions),
                "connections": self.server.num_connections,
                "fallbacks": service.counts.fallbacks,
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self.board.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _state(self, request: web.Request) -> web.Response:
        return web.Response(body=self._current(), content_type="application/json")

    def _current(self) -> bytes:
        """The state as JSON: a new picture if it has changed and the last one is old enough."""
        start_s = time.monotonic()
        if self.board.version != self._shown and start_s >= self._next_s:
            self._shown = self.board.version
            self._picture = orjson.dumps(self.board.snapshot())
            took_s = time.monotonic() - start_s
            self._next_s = start_s + max(_REFRESH_S, took_s / _SHARE)
        return self._picture

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the whole state when it has changed, at most four times a second."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        seen = b""
        silent_s = 0.0
        try:
            while True:
                picture = self._current()
                if picture is not seen:
                    seen = picture
                    silent_s = 0.0
                    await response.write(b"data: " + picture + b"\n\n")
                elif silent_s >= _ALIVE_S:
                    silent_s = 0.0
                    await response.write(b": still here\n\n")
                await asyncio.sleep(_REFRESH_S)
                silent_s += _REFRESH_S
        except (ConnectionError, asyncio.CancelledError):
            return response


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
