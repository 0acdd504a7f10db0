"""What the live page and the metrics show: who works for which job, what waits, what was decided last."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from parcae.cluster.state import NO_STAGE
from parcae.service.deciding import DecisionRecord
from parcae.service.mirror import Mirror
from parcae.service.protocol import Events, Sync
from parcae.service.session import Service, Session, Watcher

_MS_PER_S = 1e3
_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
#: Samples of the chart: two minutes, four a second.
_NUM_SAMPLES, _SAMPLE_S = 480, 0.25
_NUM_DECISIONS = 40
#: Jobs that the page lists for each cluster.
_NUM_JOBS = 60


class Board(Watcher):
    """Keeps the last decisions and samples of the clusters, and measures latencies."""

    def __init__(self, service: Service) -> None:
        self.service, self.version, self._begun_s = service, 0, time.time()
        self._decisions: deque[DecisionRecord] = deque(maxlen=_NUM_DECISIONS)
        self._history: dict[str, deque[tuple[float, dict[str, int]]]] = {}
        self._sampled_s = 0.0
        self.registry = CollectorRegistry()
        self._decision_s = Histogram(
            "parcae_decision_seconds",
            "From looking at the state to the policy's decision.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._request_s = Histogram(
            "parcae_request_seconds",
            "From a decoded request to its reply.",
            ["type"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(self)

    def opened(self, session: Session) -> None:
        """The page shows it."""
        self.version += 1

    def closed(self, session: Session) -> None:
        """The page shows it no more."""
        self.version += 1
        self._history = {name: samples for name, samples in self._history.items() if name in self.service.mirrors}

    def decided(self, record: DecisionRecord) -> None:
        """Keep it and measure it."""
        self._decisions.append(record)
        self._decision_s.observe(record.took_ms / _MS_PER_S)

    def answered(self, session: Session, message: Sync | Events, took_ms: float) -> None:
        """Measure it, and sample the clusters from time to time."""
        self.version += 1
        self._request_s.labels(message.type).observe(took_ms / _MS_PER_S)
        now_s = time.time()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            for name, mirror in self.service.mirrors.items():
                samples = self._history.setdefault(name, deque(maxlen=_NUM_SAMPLES))
                samples.append((round(now_s, 2), slots_by_job(mirror)))

    def collect(self) -> Any:
        """The counters and gauges, read when Prometheus asks."""
        counts = asdict(self.service.counts)
        for name, value in counts.items():
            yield CounterMetricFamily(f"parcae_{name}", f"Number of {name.replace('_', ' ')}.", value=value)
        jobs, busy, slots = Counter[str](), 0, 0
        for mirror in self.service.mirrors.values():
            for row in job_rows(mirror):
                jobs["running" if row["slots"] else "waiting"] += 1
                busy += row["slots"]
            slots += len(mirror.slots)
        family = GaugeMetricFamily("parcae_jobs", "Jobs in the system.", labels=["state"])
        for state in ("running", "waiting"):
            family.add_metric([state], jobs[state])
        yield family
        yield GaugeMetricFamily("parcae_sessions", "Applications that are connected.", value=len(self.service.sessions))
        yield GaugeMetricFamily("parcae_slots", "Slots of all clusters.", value=slots)
        yield GaugeMetricFamily("parcae_slots_busy", "Slots that run tasks.", value=busy)

    def snapshot(self) -> dict[str, Any]:
        """All that the page shows."""
        return {
            "policy": self.service.policy_name,
            "scope": self.service.scope.value,
            "uptime_s": round(time.time() - self._begun_s, 1),
            "counts": asdict(self.service.counts),
            "sessions": [
                {"application": session.application, "name": session.application_name}
                for session in self.service.sessions.values()
            ],
            "clusters": [self._cluster(name, mirror) for name, mirror in self.service.mirrors.items()],
            "decisions": [asdict(record) for record in reversed(self._decisions)],
        }

    def _cluster(self, name: str, mirror: Mirror) -> dict[str, Any]:
        rows = job_rows(mirror)
        return {
            "name": name or "all applications",
            "clock_ms": int(mirror.state.now.clock_ms[0]),
            "slots": len(mirror.slots),
            "num_jobs": len(rows),
            "num_running": sum(row["slots"] > 0 for row in rows),
            "jobs": rows[:_NUM_JOBS],
            "history": [*self._history.get(name, ()), (round(time.time(), 2), slots_by_job(mirror))],
        }


def slots_by_job(mirror: Mirror) -> dict[str, int]:
    """Slots that run tasks, by job."""
    return {row["key"]: row["slots"] for row in job_rows(mirror) if row["slots"]}


def job_rows(mirror: Mirror) -> list[dict[str, Any]]:
    """One row for every job in the system, in order of arrival."""
    state = mirror.state
    busy = state.executors.stage[state.executors.stage != NO_STAGE]
    working = Counter(state.stages.job[busy].tolist())
    moving = state.executors.destination[state.executors.destination != NO_STAGE]
    coming = Counter(state.stages.job[moving].tolist())
    rows = []
    for job in mirror.jobs if mirror.slots else ():
        start = mirror.roster.start(job)
        stages = state.stages[start : start + len(job.stages)]
        rows.append(
            {
                "key": f"{job.application}/{job.job_id}",
                "application": job.application,
                "job_id": job.job_id,
                "name": job.name or f"job {job.job_id}",
                "arrival_ms": job.arrival_ms,
                "tasks": int(stages["num_tasks"].sum()),
                "finished": int(stages["num_finished"].sum()),
                "slots": working[job.row],
                "moving": coming[job.row],
                "remaining_ms": round(float(state.jobs.remaining_ms[job.row])) if state.jobs.work_ms[job.row] > 0 else None,
            }
        )
    return rows
