"""The packing world once more, slowly and in plain Python: what the kernels are held to."""

from __future__ import annotations

from dataclasses import dataclass, field

from parcae.rigid.jobs import RigidJobs


@dataclass
class PlainSteps:
    """Steps of time: slots, a backlog, a horizon (DeepRM, section 3)."""

    jobs: RigidJobs
    num_slots: int = 10
    backlog_size: int = 60
    horizon: int = 20
    window: int = 0
    now: int = 0
    cost: float = 0.0
    is_over: bool = False
    slots: list = field(default_factory=list)
    backlog: list = field(default_factory=list)
    start: dict = field(default_factory=dict)
    finish: dict = field(default_factory=dict)
    dropped: list = field(default_factory=list)

    def __post_init__(self):
        self.slots = [None] * self.num_slots
        self.use = {}  # step -> units in use
        self._arrive()
        self._end()

    def _arrive(self):
        for job in range(len(self.jobs)):
            if self.jobs.arrival[job] == self.now:
                if None in self.slots:
                    self.slots[self.slots.index(None)] = job
                elif len(self.backlog) < self.backlog_size:
                    self.backlog.append(job)
                else:
                    self.dropped.append(job)

    def _present(self):
        waiting = [j for j in self.slots if j is not None] + self.backlog
        return waiting + [j for j, end in self.finish.items() if end > self.now]

    def _end(self):
        to_come = any(a > self.now for a in self.jobs.arrival)
        self.is_over = self.now >= self.window and not to_come and not self._present()

    def fits(self, job, start):
        for step in range(start, start + int(self.jobs.duration[job])):
            used = self.use.get(step, [0] * len(self.jobs.capacity))
            if any(
                u + d > c
                for u, d, c in zip(used, self.jobs.demand[job], self.jobs.capacity, strict=True)
            ):
                return False
        return True

    def first_fit(self, job):
        last = self.now + self.horizon - int(self.jobs.duration[job])
        return next((s for s in range(self.now, last + 1) if self.fits(job, s)), None)

    def take(self, slot):
        job = self.slots[slot] if 0 <= slot < self.num_slots else None
        start = None if job is None else self.first_fit(job)
        if start is not None:
            for step in range(start, start + int(self.jobs.duration[job])):
                used = self.use.setdefault(step, [0] * len(self.jobs.capacity))
                self.use[step] = [
                    u + int(d) for u, d in zip(used, self.jobs.demand[job], strict=True)
                ]
            self.start[job], self.finish[job] = start, start + int(self.jobs.duration[job])
            self.slots[slot] = self.backlog.pop(0) if self.backlog else None
            return
        self.cost += sum(1 / int(self.jobs.duration[j]) for j in self._present())
        self.now += 1
        self._end()
        if not self.is_over:
            self._arrive()
            self._end()


@dataclass
class PlainEvents:
    """Exact times: every waiting job is visible, in order of arrival."""

    jobs: RigidJobs
    now: int = 0

    def __post_init__(self):
        self.waiting = []
        self.start = {}
        self.finish = {}
        self.now = int(self.jobs.arrival[0])
        self._arrive()

    def _arrive(self):
        known = {*self.waiting, *self.start}
        self.waiting += [
            j for j in range(len(self.jobs)) if self.jobs.arrival[j] <= self.now and j not in known
        ]

    @property
    def running(self):
        return [j for j in self.start if self.finish[j] > self.now]

    @property
    def free(self):
        used = sum((self.jobs.demand[j] for j in self.running), start=0 * self.jobs.capacity)
        return self.jobs.capacity - used

    @property
    def is_over(self):
        return not self.waiting and not self.running and len(self.start) == len(self.jobs)

    def fits(self, job):
        return bool((self.jobs.demand[job] <= self.free).all())

    def take(self, job):
        if job is not None and self.fits(job):
            self.waiting.remove(job)
            self.start[job] = self.now
            self.finish[job] = self.now + int(self.jobs.duration[job])
            return
        later = [int(a) for a in self.jobs.arrival if a > self.now] + [
            self.finish[j] for j in self.running
        ]
        self.now = min(later)
        self._arrive()

    def releases(self):
        """(time, units) as the scheduler expects them, late jobs at any moment."""
        expected = [
            (max(self.now + 1, self.start[j] + int(self.jobs.estimate[j])), self.jobs.demand[j])
            for j in self.running
        ]
        return sorted(expected, key=lambda pair: pair[0])

    def ordered(self, order):
        """The waiting jobs, oldest first among equal ones."""
        keys = {
            "arrival": lambda job: 0,
            "shortest": lambda job: self.jobs.estimate[job],
            "expansion": lambda job: -(self.now - self.jobs.arrival[job]) / self.jobs.estimate[job],
        }
        return sorted(self.waiting, key=keys[order])

    def easy(self, order="arrival", backfilling="arrival"):
        """EASY, from its definition: the first, or whoever does not delay the first's earliest
        start.
        """
        if not self.waiting:
            return None
        head = self.ordered(order)[0]
        if self.fits(head):
            return head
        free = self.free.copy()
        shadow = None
        for time, units in self.releases():
            free = free + units
            if (self.jobs.demand[head] <= free).all():
                shadow = time
                break
        at_shadow = self.free + sum(
            (u for t, u in self.releases() if t <= shadow), start=0 * self.jobs.capacity
        )
        extra = at_shadow - self.jobs.demand[head]
        for job in self.ordered(backfilling):
            is_short = self.now + int(self.jobs.estimate[job]) <= shadow
            if self.fits(job) and (is_short or bool((self.jobs.demand[job] <= extra).all())):
                return job
        return None

    def conservative(self):
        """Conservative backfilling: every waiting job gets the earliest start that delays none
        before it.
        """
        booked = [(0, t, u) for t, u in self.releases()]  # (from, to, units) in use
        for job in self.waiting:
            estimate = int(self.jobs.estimate[job])
            demand = self.jobs.demand[job]
            moments = sorted({self.now, *(end for _, end, _ in booked if end > self.now)})
            start = next(t for t in moments if self._fits_from(t, estimate, demand, booked))
            if start == self.now:
                return job
            booked.append((start, start + estimate, demand))
        return None

    def _fits_from(self, start, estimate, demand, booked):
        edges = [start] + [b for b, _, _ in booked if start < b < start + estimate]
        for t in edges:
            used = sum((u for b, e, u in booked if b <= t < e), start=0 * self.jobs.capacity)
            if ((used + demand) > self.jobs.capacity).any():
                return False
        return True
