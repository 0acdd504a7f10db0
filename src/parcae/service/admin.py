"""The admin side over HTTP: /health, /metrics for Prometheus, the live page and its event stream.

It listens on the loopback address only and is read-only. To reach it from another machine, use a
tunnel; /metrics alone may have an address of its own.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
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
from parcae.service.recorded_jobs import JobKey, RecordedJobs
from parcae.service.server import Server
from parcae.service.session import Service, Session, Watcher

_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
#: Samples of the chart: one a second for ten minutes.
_NUM_SAMPLES = 600
_SAMPLE_S = 1.0
#: Number of ended jobs that the page draws.
_NUM_ENDED = 300
#: Number of clusters that the page shows one by one: those with most jobs.
_NUM_CLUSTERS = 20
#: Number of jobs that the page lists, of all of these: the first in the order of each.
_NUM_JOBS = 200

_Seen = TypeVar("_Seen")


_FAIR = "fair"
#: Tasks of the ended jobs that are played for the estimate: about a tenth of a second.
_MOST_PLAYED_TASKS = 200_000
#: An estimate is made of so many groups of jobs in a row, of at least so many jobs each.
_NUM_GROUPS = 10
_LEAST_JOBS = 4
#: The 97.5% quantile of Student's t with nine degrees of freedom.
_T_OF_GROUPS = 2.262


class AgainstFair(NamedTuple):
    """Mean completion time of the last jobs / that under FAIR, with a 95% interval."""

    mean: float
    low: float
    high: float
    num_jobs: int


def against_fair(played_ms: npt.NDArray[np.float64]) -> AgainstFair | None:
    """The ratio of two columns of completion times of jobs in a row; None if they are too few.

    Jobs that ran together have related times: groups of them in a row are the sample.
    """
    if len(played_ms) < _NUM_GROUPS * _LEAST_JOBS:
        return None
    groups = np.array([one.mean(axis=0) for one in np.array_split(played_ms, _NUM_GROUPS)])
    means = groups.mean(axis=0)
    ratio = float(means[0] / means[1])
    # The delta method: the standard error of the logarithm of a ratio of means.
    error = float((groups / means @ (1, -1)).std(ddof=1)) / math.sqrt(_NUM_GROUPS)
    factor = math.exp(_T_OF_GROUPS * error)
    return AgainstFair(ratio, ratio / factor, ratio * factor, len(played_ms))


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
        self._took_ms = 0.0
        self._recorded = RecordedJobs()
        self._against_fair: AgainstFair | None = None
        self._num_estimated = 0  # `_num_ended` at the last estimate
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
        """Drop the samples of a cluster that is gone."""
        self.version += 1
        key = self.service.key_of(session.application)
        if key not in self.service.mirrors:
            self._history.pop(key, None)

    def planned(self, mirror: Mirror, plan: TimedPlan) -> None:
        """Record the time of the plan."""
        self._plan_s.observe(plan.took_ms / MS_PER_S)

    def ended(self, job: EndedJob) -> None:
        """Record the job's completion time."""
        self._num_ended += 1
        if self._num_ended % _NUM_ENDED == 0:
            self._forget_recorded()  # nobody may look at the page for days
        self._took_ms += job.took_ms
        self._ended.append(
            {
                "name": job.name,
                "application": job.application,
                "job_id": job.job_id,
                "at_s": round(time.time(), 2),
                "took_s": round(job.took_ms / MS_PER_S, 3),
                "fair_s": None,  # not estimated yet
            }
        )

    def answered(self, session: Session, message: StateMessage | Events, took_ms: float) -> None:
        """Record the latency, and sample the clusters once a second."""
        self.version += 1
        self._recorded.answered(session, message, took_ms)
        self._request_s.labels(message.type).observe(took_ms / MS_PER_S)
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            shown_s = round(time.time(), 2)
            shown = self._shown()
            for name in tuple(self._history):
                if name not in shown:
                    self._history.pop(name, None)
            seen = self._look(self._sizes, _sizes, shown)
            for name, sizes in seen.items():
                samples = self._history.setdefault(name, deque(maxlen=_NUM_SAMPLES))
                samples.append((shown_s, sizes.jobs, sizes.busy_cores))

    def _shown(self) -> dict[str, Mirror]:
        """The clusters that the page shows one by one."""
        mirrors = dict(self.service.mirrors)
        most = heapq.nlargest(_NUM_CLUSTERS, mirrors, key=lambda name: len(mirrors[name].jobs))
        return {name: mirror for name, mirror in mirrors.items() if name in most}

    @property
    def has_new(self) -> bool:
        """Whether jobs have ended since the last estimate."""
        return self._num_ended > self._num_estimated

    def jobs_to_play(self) -> dict[str, list[JobKey]]:
        """The latest ended jobs that are played for the estimate, by cluster.

        Call it from the thread that sends requests; it forgets all other jobs.
        """
        self._num_estimated = self._num_ended
        ended = self._forget_recorded()
        chosen: dict[str, list[JobKey]] = {}
        num_tasks = 0
        for key in reversed(ended):
            num_tasks += self._recorded.num_tasks(key)
            if num_tasks > _MOST_PLAYED_TASKS:
                break
            chosen.setdefault(self.service.key_of(key[0]), []).append(key)
        return chosen

    def _forget_recorded(self) -> list[JobKey]:
        """Forget the recorded jobs that neither run nor are drawn; return those that are drawn."""
        active = [key for mirror in self.service.mirrors.values() for key in mirror.jobs]
        ended = [(job["application"], job["job_id"]) for job in self._ended]
        self._recorded.keep([*ended, *active])
        return ended

    def estimate(self, chosen: dict[str, list[JobKey]]) -> None:
        """Play ended jobs under the policy and under FAIR; both as the simulator does it.

        What the simulator leaves out it leaves out of both, so that under FAIR itself the ratio is
        1.
        """
        sharing = self.service.sharing
        policies = (self.service.policy_name, _FAIR)
        played: dict[JobKey, tuple[float, float]] = {}
        for name, keys in chosen.items():
            cores = sharing.num_cores if sharing else self._recorded.num_cores.get(name, 1)
            found = self._recorded.simulated(policies, cores, keys)
            if found is not None:
                played.update(
                    zip(
                        found.keys,
                        zip(*(one.tolist() for one in found.jct_ms), strict=True),
                        strict=True,
                    )
                )
        for job in tuple(self._ended):
            own_ms, fair_ms = played.get((job["application"], job["job_id"]), (0.0, 0.0))
            if own_ms > 0:
                job["fair_s"] = round(job["took_s"] * fair_ms / own_ms, 3)
        self._against_fair = against_fair(np.array(list(played.values())).reshape(-1, 2))
        self.version += 1

    def _look(
        self,
        seen: dict[str, _Seen],
        look: Callable[[str, Mirror], _Seen],
        mirrors: dict[str, Mirror],
    ) -> dict[str, _Seen]:
        """What there is to see of clusters now; of one that is being changed, the last."""
        # The event loop and the threads beside it may look at the same time.
        for name in tuple(seen):
            if name not in self.service.mirrors:
                seen.pop(name, None)
        for name, mirror in mirrors.items():
            if mirror.lock.acquire(blocking=False):
                try:
                    seen[name] = look(name, mirror)
                finally:
                    mirror.lock.release()
        return {name: seen[name] for name in mirrors if name in seen}

    def _total(self, mirrors: dict[str, Mirror]) -> _Sizes:
        """The size of some clusters together."""
        sizes = self._look(self._sizes, _sizes, mirrors).values()
        return _Sizes(*map(sum, zip(_Sizes(0, 0, 0, 0), *sizes, strict=True)))

    def collect(self) -> Iterator[Metric]:
        """The counters and gauges; called when Prometheus reads the metrics."""
        for name, count in asdict(self.service.counts).items():
            text = f"Number of {name.replace('_', ' ')}."
            yield CounterMetricFamily(f"parcae_{name}", text, value=count)
        took = "Sum of the completion times of all jobs that ended successfully."
        value = self._took_ms / MS_PER_S
        yield CounterMetricFamily("parcae_completion_seconds", took, value=value)
        total = self._total(dict(self.service.mirrors))
        family = GaugeMetricFamily("parcae_jobs", "Jobs in the system.", labels=["state"])
        family.add_metric(["running"], total.running_jobs)
        family.add_metric(["waiting"], total.jobs - total.running_jobs)
        yield family
        estimate = self._against_fair
        if estimate is not None:
            text = "Mean completion time of the last jobs / that under FAIR, estimated."
            family = GaugeMetricFamily("parcae_ratio_to_fair", text, labels=["end"])
            for end in ("low", "mean", "high"):
                family.add_metric([end], getattr(estimate, end))
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
            "clusters": self._pictures(),
            "ended": list(self._ended),
            "num_ended": self._num_ended,
            "took_s": round(self._took_ms / MS_PER_S, 3),
            "against_fair": None if self._against_fair is None else self._against_fair._asdict(),
        }

    def _pictures(self) -> list[dict[str, Any]]:
        """The clusters that are shown, and one in place of all others."""
        shown = self._shown()
        most = _NUM_JOBS // max(1, len(shown))
        pictures = list(
            self._look(
                self._clusters, lambda name, mirror: self._cluster(name, mirror, most), shown
            ).values()
        )
        others = {
            name: one for name, one in dict(self.service.mirrors).items() if name not in shown
        }
        if others:
            total = self._total(others)
            pictures.append(
                {
                    "name": f"{len(others)} other applications",
                    "clock_ms": 0,
                    "cores": total.cores,
                    "busy": total.busy_cores,
                    "num_jobs": total.jobs,
                    "jobs": [],
                    "executors": None,
                    "shares": {},
                    "lending": "",
                    "history": [],
                }
            )
        return pictures

    def _cluster(self, name: str, mirror: Mirror, most: int) -> dict[str, Any]:
        rows = job_rows(mirror, most)
        sharing = self.service.sharing
        return {
            "name": name or "all applications",
            "clock_ms": mirror.clock_ms,
            "cores": mirror.num_cores,
            "busy": mirror.num_running,
            "num_jobs": len(mirror.jobs),
            "jobs": rows,
            "executors": sharing.executors if sharing is not None else None,
            "shares": sharing.in_words(mirror.clock_ms) if sharing is not None else {},
            "lending": sharing.lending_in_words(mirror.clock_ms) if sharing is not None else "",
            "history": [
                *self._history.get(name, ()),
                (round(time.time(), 2), len(mirror.jobs), mirror.num_running),
            ],
        }


def job_rows(mirror: Mirror, most: int) -> list[dict[str, Any]]:
    """A row for every job in the system, in the order in force; the first ones of many."""
    active = mirror.state.active[: mirror.num_jobs]
    in_order = active[np.argsort(mirror.state.job_orders["tier"][active], kind="stable")]
    rows = in_order[:most].tolist()
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


def _sizes(_: str, mirror: Mirror) -> _Sizes:
    running = mirror.state.jobs["num_attached"][mirror.state.active[: mirror.num_jobs]]
    return _Sizes(mirror.num_jobs, int((running > 0).sum()), mirror.num_cores, int(running.sum()))


_HOST = "127.0.0.1"
#: Shortest time between two pictures of the state, in s.
_REFRESH_S = 0.25
#: Shortest time between two estimates, in s.
_ESTIMATE_S = 2.0
#: Longest share of the time that is spent on pictures, during which clients wait ...
_PICTURE_SHARE = 0.01
#: ... and on estimates, during which they do not.
_ESTIMATE_SHARE = 0.05
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

    def __init__(
        self,
        server: Server,
        board: Board,
        port: int,
        metrics_at: tuple[str, int | None] = (_HOST, None),
    ) -> None:
        self.server = server
        self.board = board
        self._port = port
        self._metrics_at = metrics_at
        self._page = files("parcae.service").joinpath("page.html").read_text()
        self._runners: list[web.AppRunner] = []
        self._picture = b""  # the state as JSON, once for all viewers
        self._shown = -1  # the board's version that it shows
        self._next_s = 0.0  # when it may be taken again
        self._estimating: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._runners[0].addresses[0][1])

    async def start(self) -> None:
        """Start to listen."""
        pages = {
            "/": self._show,
            "/health": self._health,
            "/metrics": self._metrics,
            "/state": self._state,
            "/events": self._events,
        }
        await self._listen(web.Application(middlewares=[_only_here]), pages, _HOST, self._port)
        host, port = self._metrics_at
        if port is not None:
            await self._listen(web.Application(), {"/metrics": self._metrics}, host, port)
        self._estimating = asyncio.create_task(self._estimate_often())

    async def _listen(
        self, app: web.Application, pages: Mapping[str, Handler], host: str, port: int
    ) -> None:
        app.add_routes([web.get(path, page) for path, page in pages.items()])
        self._runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.5))
        await self._runners[-1].setup()
        await web.TCPSite(self._runners[-1], host, port).start()

    async def _estimate_often(self) -> None:
        """Estimate what FAIR would have taken, in a thread beside the one that serves."""
        while True:
            begin_s = time.monotonic()
            if self.board.has_new:
                await asyncio.to_thread(self.board.estimate, self.board.jobs_to_play())
            took_s = time.monotonic() - begin_s
            await asyncio.sleep(max(_ESTIMATE_S, took_s / _ESTIMATE_SHARE))

    async def stop(self) -> None:
        """Stop the HTTP server."""
        if self._estimating is not None:
            self._estimating.cancel()
        for runner in self._runners:
            await runner.cleanup()

    async def _show(self, request: web.Request) -> web.Response:
        headers = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        service = self.server.service
        return web.json_response(
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
            self._next_s = start_s + max(_REFRESH_S, took_s / _PICTURE_SHARE)
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
