"""Sizes of slots: the executor classes of a live cluster, from what its clients say, and the demands that count.

Units are the simulator's (`parcae.cluster.state.ExecutorClass`): cores, and memory normalised so that the largest executor has 1.
Where nobody says a size, all slots are alike and hold every demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parcae.cluster.state import ExecutorClass
from parcae.errors import ProtocolError
from parcae.service.protocol import Code, JobMessage, StageMessage, StagesAdded, Sync

#: (cpu, memory)
Size = tuple[float, float]


def alike(num_executors: int) -> tuple[ExecutorClass, ...]:
    """One class that holds every demand, as the simulator's without executor classes."""
    return (ExecutorClass(num_executors, cpu=float("inf"), memory=float("inf")),)


@dataclass(frozen=True)
class SlotSizes:
    """What the applications of one cluster said of its slots in their last `sync`.

    Args:
        by_application: slot to size; empty for an application that said nothing.

    Example: slots 0 and 2 of (1, 0.25) and slot 1 of (1, 1) are two classes: of 2 executors and of 1, slots [0, 1, 2] in
    [0, 1, 0].
    """

    by_application: Mapping[str, Mapping[int, Size]] = field(default_factory=dict)

    def told(self, application: str, sync: Sync) -> SlotSizes:
        """What is known with a further `sync`.

        Raises:
            ProtocolError: bad_slot; only some of the slots have a size, or another application says another one.
        """
        sizes = {slot.slot: (slot.cpu, slot.memory) for slot in sync.slots if slot.cpu is not None and slot.memory is not None}
        if sizes and len(sizes) < len(sync.slots):
            blank = next(slot.slot for slot in sync.slots if slot.slot not in sizes)
            raise ProtocolError(Code.BAD_SLOT, f"slot {blank} has no size and others have one; give all cpu and memory, or none")
        others = self.without(application).by_application
        for other, known in others.items():
            for slot, size in sizes.items():
                if known.get(slot, size) != size:
                    raise ProtocolError(
                        Code.BAD_SLOT, f"slot {slot} is of {_words(size)}; application {other} says {_words(known[slot])}"
                    )
        return SlotSizes({**others, application: sizes})

    def without(self, application: str) -> SlotSizes:
        """What the others said."""
        return SlotSizes({name: sizes for name, sizes in self.by_application.items() if name != application})

    def classes(self, slots: Sequence[int]) -> tuple[tuple[ExecutorClass, ...], list[int]]:
        """The executor classes, the smallest memory first, and the class of each slot.

        A slot of which no size is known, beside others of which one is, counts as large as the largest of them.
        """
        known: dict[int, Size] = {slot: size for sizes in self.by_application.values() for slot, size in sizes.items()}
        if not known:
            return alike(len(slots)), [0] * len(slots)
        largest = max(cpu for cpu, _ in known.values()), max(memory for _, memory in known.values())
        sizes = [known.get(slot, largest) for slot in slots]
        counts = Counter(sizes)
        row = {size: number for number, size in enumerate(sorted(counts, key=lambda size: (size[1], size[0])))}
        return tuple(ExecutorClass(counts[size], *size) for size in row), [row[size] for size in sizes]

    def demanded(self, application: str, stages: Sequence[StageMessage]) -> tuple[StageMessage, ...]:
        """The stages with the demands that count: none where others gave the slots sizes and the application did not."""
        if self.by_application.get(application) or not any(self.by_application.values()):
            return tuple(stages)
        return tuple(stage.model_copy(update={"cpu": 0.0, "memory": 0.0}) for stage in stages)

    def require_fit(self, application: str, job: JobMessage | StagesAdded) -> None:
        """Refuse a job with a stage that is larger than every slot of its application, unless all of its tasks are done.

        Raises:
            ProtocolError: bad_job, with the job, the stage and the sizes that there are.
        """
        sizes = sorted(set(self.by_application.get(application, {}).values()))
        for stage in job.stages if sizes else ():
            if stage.finished < stage.tasks and not any(c >= stage.cpu and m >= stage.memory for c, m in sizes):
                there_are = "; ".join(map(_words, sizes[:8]))
                raise ProtocolError(
                    Code.BAD_JOB,
                    f"job {job.job_id}, stage {stage.stage_id} needs {_words((stage.cpu, stage.memory))}; no slot is as large: "
                    f"there are {there_are}",
                )


def _words(size: Size) -> str:
    return f"{size[0]:g} cores and {size[1]:g} memory"
