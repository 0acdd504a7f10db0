"""What notebooks show of results: a table, one picture, and a short text."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree

import pytest

import parcae
from parcae.evaluation import plots
from parcae.evaluation.sizing import Question, SizeResult, Sizing
from parcae.evaluation.statistics import Estimate
from parcae.workloads.synthetic import toy_workload
from tests.evaluation.made import comparison_of
from tests.metrics.hand_made import sequence, trace

_COMPARISON = comparison_of({"fair": [5.0, 6.0], "<me>": [4.0, 5.0]})
_RUN = parcae.Run(sequence(), parcae.Cluster(executors=2), trace())
_KNOWN = ("average_s", "p95_s", "p99_s", "cores_busy", "cost_per_job")
_ESTIMATES = {
    **dict.fromkeys(_KNOWN, Estimate(3.0, 2.0, 4.0)),
    **dict.fromkeys(("cores_held", "deadlines_met", "within_target")),
}
_SIZES = tuple(SizeResult("fair", "fair", cores, str(cores), 0.0, _ESTIMATES) for cores in (2, 4))
_SIZING = Sizing(
    Question(toy_workload(), (2, 4), ("fair",), arrivals="poisson:9s"), _SIZES, {2: 0.8, 4: 0.4}
)


def _pictures(page: str) -> list[ElementTree.Element]:
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    return [ElementTree.fromstring(base64.b64decode(image)) for image in images]


@pytest.mark.parametrize(
    ("result", "in_short", "cells"),
    [
        (
            _COMPARISON,
            "<Comparison fair, <me>: <tpch>: 2 jobs, batch, 2 executors, seeds 0-1; best: <me>>",
            ("fair", "&lt;me&gt;", "ratio to first"),
        ),
        (
            _RUN,
            "<Run by hand: 2 jobs, 2 executors, average JCT 5.5 s>",
            ("5.5", "7.0", "71.4%"),
        ),
        (
            toy_workload(),
            "<Workload toy: 3 jobs, 5 stages, 10 tasks>",
            ("jobs, stages, tasks", "3, 5, 10"),
        ),
        (_SIZING, "<Sizing toy: fair at 2, 4 cores>", ("2", "4", "fair", "0.80")),
    ],
)
def test_a_result_is_shown_as_a_table_with_one_picture(
    result: object, in_short: str, cells: tuple[str, ...]
) -> None:
    assert repr(result) == in_short
    page = result._repr_html_()  # type: ignore[attr-defined]
    shown_cells = re.findall(r"<t[dh]>(.*?)</t[dh]>", page)
    assert set(cells) <= set(shown_cells)
    (picture,) = _pictures(page)
    assert picture.tag.endswith("svg")
    assert len(page) < 80_000


def test_a_run_without_its_tasks_has_no_picture() -> None:
    run = parcae.Run(sequence(), parcae.Cluster(executors=2), trace(recorded=False))
    assert _pictures(run._repr_html_()) == []


def test_without_the_library_of_pictures_the_table_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(*size: float) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(plots, "new_picture", lacking)
    page = _COMPARISON._repr_html_()
    assert "parcae-scheduler[report]" in page
    assert "<td>fair</td>" in page
