"""Damaged inputs of every reader and of the service: each is read, or refused in one clear line.

Nothing else may happen: no other exception, no message that hides which file it is about, no
unbounded memory, no hang. The inputs depend on their numbers alone: to repeat number 1234 of a
reader, call `attempt(subject, 1234, folder)`.
"""

from __future__ import annotations

import gc
import resource
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from parcae.base.errors import InputError
from parcae.workloads.readers import guess_format
from tests.fuzzing.subjects import READERS, Subject

#: Processor time of one input; the machine of the tests may be busy.
MOST_SECONDS = 5.0
#: Growth of the process over all inputs of a reader.
MOST_GROWTH_MIB = 400
SAMPLE = 1_000
ALL = 100_000


def attempt(subject: Subject, number: int, folder: Path) -> str:
    """Read one damaged input. Returns "read", or the kind of the refusal."""
    content = subject.damaged(Random(f"{subject.name} {number}"))
    path = folder / subject.file_name
    path.write_bytes(content)
    begin = time.process_time()
    try:
        subject.load(path)
        outcome = "read"
    except InputError as error:
        outcome = type(error).__name__
        _check_message(str(error), subject)
    except OSError as error:
        # `main` says it in one line: a file that another one names does not exist.
        outcome = type(error).__name__
        assert error.filename is not None  # noqa: PT017
    guess_format(path)
    seconds = time.process_time() - begin
    assert seconds < MOST_SECONDS, f"{seconds:.1f} s"
    return outcome


def _check_message(message: str, subject: Subject) -> None:
    """The message names a file that the reader was given."""
    names = (subject.file_name, "_tpch_profiles.json")
    assert any(name in message for name in names), f"does not name the file: {message}"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(subject: Subject, numbers: Sequence[int], folder: Path) -> tuple[Counter[str], list[str]]:
    """Try many inputs: how many ended how, and what went wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for number in numbers:
        try:
            outcomes[attempt(subject, number, folder)] += 1
        except Exception as error:
            outcomes["wrong"] += 1
            wrong.append(f"{subject.name} {number}: {type(error).__name__}: {str(error)[:300]}")
    return outcomes, wrong


def _share(subject: Subject, total: int) -> int:
    return max(1, round(total * subject.share / sum(one.share for one in READERS)))


@pytest.mark.parametrize("subject", READERS, ids=lambda one: one.name)
def test_a_sample_of_damaged_inputs_is_read_or_refused(subject: Subject, tmp_path: Path) -> None:
    subject_is_read(subject, tmp_path)
    before = _peak_mib()
    outcomes, wrong = run(subject, range(_share(subject, SAMPLE)), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert _peak_mib() - before < MOST_GROWTH_MIB
    assert outcomes.total() == _share(subject, SAMPLE)


def subject_is_read(subject: Subject, folder: Path) -> None:
    """Undamaged inputs are read: otherwise nothing is tested."""
    for seed in subject.seeds():
        for container in subject.containers:
            path = folder / subject.file_name
            path.write_bytes(container(seed, Random(0)))
            assert subject.load(path) is not None


@pytest.mark.slow
@pytest.mark.parametrize("subject", READERS, ids=lambda one: one.name)
def test_all_damaged_inputs_are_read_or_refused(subject: Subject, tmp_path: Path) -> None:
    subject_is_read(subject, tmp_path)
    gc.collect()
    before = _peak_mib()
    begin = time.process_time()
    outcomes, wrong = run(subject, range(_share(subject, ALL)), tmp_path)
    growth = _peak_mib() - before
    seconds = time.process_time() - begin
    print(f"| {subject.name} | {outcomes.total():,} | {outcomes['read']:,} | {growth:.0f} |"
          f" {seconds:.0f} |")  # fmt: skip
    assert not wrong, f"{len(wrong)} of {outcomes.total()}\n" + "\n".join(wrong[:20])
    assert growth < MOST_GROWTH_MIB
