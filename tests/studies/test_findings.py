"""Verdicts about what a paper found."""

import math
from pathlib import Path

import pytest

from parcae.evaluation.statistics import Estimate
from parcae.papers.findings import Finding, Verdict
from parcae.papers.study import Origin, StudyResult, page


@pytest.mark.parametrize(
    ("low", "high", "most", "verdict"),
    [
        (0.8, 0.99, 1.0, Verdict.SAME),
        (0.8, 1.0, 1.0, Verdict.OPEN),
        (0.9, 1.2, 1.0, Verdict.OPEN),
        (1.01, 1.2, 1.0, Verdict.OTHER),
        (1.0, 1.0, 1.0, Verdict.OTHER),
        (1.01, 1.09, 1.1, Verdict.SAME),
        (math.nan, math.nan, 1.0, Verdict.OPEN),
    ],
)
def test_the_interval_decides(low: float, high: float, most: float, verdict: Verdict) -> None:
    finding = Finding("a below b", Estimate(0.95, low, high), most)
    assert finding.verdict is verdict
    assert finding.row()[-1] == finding.to_json()["verdict"] == str(verdict)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.91, 1.01, Verdict.OTHER),
        (0.89, 1.01, Verdict.OPEN),
        (0.91, 0.99, Verdict.SAME),
        (1.01, 1.02, Verdict.OTHER),
        (math.nan, math.nan, Verdict.OPEN),
    ],
)
def test_less_than_half_of_the_papers_difference_is_not_what_it_found(
    low: float, high: float, verdict: Verdict
) -> None:
    finding = Finding("a below b", Estimate(0.95, low, high), paper=0.81)
    assert finding.verdict is verdict
    assert Finding.from_json(finding.to_json()).verdict is verdict
    is_slight = "(0.810): less than half of that difference" in finding.row()[-1]
    assert is_slight == (low == 0.91 and high > 1)


def test_a_study_prints_its_findings_below_its_table() -> None:
    finding = Finding("a below b", Estimate(0.95, 0.9, 0.99))
    result = StudyResult(
        "title", "paper", ["policy"], [["a"]], {}, ["note"], lambda _: None, [finding]
    )
    text = page(result, Origin("study", 1.0), "study.png")
    assert "| a below b | 0.950 [0.900, 0.990] | 1 | as in the paper |" in text
    assert text.index("| a |") < text.index("a below b") < text.index("study.png")
    without = StudyResult("title", "paper", ["policy"], [["a"]], {}, ["note"], lambda _: Path())
    assert "verdict" not in page(without, Origin("study", 1.0), "study.png")
