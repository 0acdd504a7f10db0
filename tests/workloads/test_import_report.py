"""The collector of bad rows."""

import pytest

from parcae.base.errors import FormatError
from parcae.workloads.import_report import BadRows


def test_too_many_bad_rows_are_refused_with_samples() -> None:
    bad = BadRows(max_share=0.01)
    for line in range(1, 9):
        bad.add("log", line, "not JSON")
    with pytest.raises(
        FormatError,
        match=r"8 of 100 rows could not be read \(8\.0%; at most 1\.0% is tolerated\): "
        r"log:1: not JSON; .*log:5: not JSON\. Repair",
    ):
        bad.finish(100)
    assert len(bad.samples) == 5
    none_tolerated = BadRows(max_share=0.0)
    none_tolerated.finish(0)
    none_tolerated.add("log", 1, "not JSON")
    with pytest.raises(FormatError):
        none_tolerated.finish(1_000_000)


def test_a_sample_of_a_long_row_is_cut() -> None:
    bad = BadRows(max_share=1.0)
    bad.add("log", 1, "x" * 1_000)
    assert bad.samples == (f"log:1: {'x' * 400}...",)
