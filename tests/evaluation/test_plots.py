import io
import warnings
import xml.etree.ElementTree as ElementTree

import pytest

from parcae.evaluation.pictures import in_legend, new_picture, save_picture, svg_text, tidy
from parcae.evaluation.plots import (
    busy_over_time,
    cdf,
    concurrency_over_time,
    interval_dots,
    jct_cdf,
    jct_over_time,
    policy_color,
    ratio_dots,
    share_by_work,
)
from parcae.evaluation.statistics import Estimate
from tests.metrics.hand_made import cut_off, trace

_RUNS = {"fair": trace(), "fifo": cut_off()}


def test_the_distribution_starts_at_zero_and_ends_at_the_share_that_completed() -> None:
    assert [part.tolist() for part in cdf(trace())] == [[0.0, 5.0, 6.0], [0.0, 0.5, 1.0]]
    assert [part.tolist() for part in cdf(cut_off())] == [[0.0, 5.0], [0.0, 0.5]]


def test_a_policy_has_one_colour_in_every_plot() -> None:
    for draw in (jct_cdf, concurrency_over_time, busy_over_time, jct_over_time, share_by_work):
        lines = draw(_RUNS).axes[0].get_lines()
        assert [(line.get_label(), line.get_color()) for line in lines] == [
            ("fair", policy_color(0)),
            ("fifo", policy_color(1)),
        ]


def test_names_beside_a_chart_are_short_and_no_markup() -> None:
    names = ["q1", "<b>q2</b>", f"SELECT {'x, ' * 100}FROM t"]
    figure = ratio_dots("t", names, [Estimate(1.0, 0.9, 1.1)] * 3)
    *short, long = (label.get_text() for label in figure.axes[0].get_yticklabels())
    assert short == names[:2]
    assert (long[:10], long[-7:], len(long)) == ("SELECT x, ", " FROM t", 40)
    page = svg_text(figure)
    assert "&lt;b&gt;q2&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_ratio_of_two_seeds_does_not_hide_the_others() -> None:
    ratios = [Estimate(0.8, 0.7, 0.9), Estimate(1.5, 0.002, 1_100.0)]
    assert ratio_dots("t", ["q1", "q2"], ratios).axes[0].get_xlim() == (0, 2.5)


def test_a_name_that_begins_with_an_underscore_is_in_the_legend() -> None:
    names = ["_mine.safetensors", "fair"]
    axis = new_picture(6, 3).subplots()
    for name in names:
        axis.plot([1.0, 2.0], label=in_legend(name))
    tidy(axis, ("x", "y"))
    assert [text.get_text().strip() for text in axis.get_legend().get_texts()] == names


def test_jobs_without_a_completion_are_not_drawn_as_completed() -> None:
    dots = [line.get_xydata().tolist() for line in jct_over_time(_RUNS).axes[0].get_lines()]
    assert dots == [[[5.0, 5.0], [7.0, 6.0]], [[5.0, 5.0]]]


def test_busy_executors_are_drawn_until_the_run_ends() -> None:
    fair, cut = (line.get_xydata() for line in busy_over_time(_RUNS).axes[0].get_lines())
    assert fair[:, 0].max() < 7.0
    assert cut[:, 0].max() < 6.0
    assert fair[:, 1].max() == pytest.approx(2.0)


def test_intervals_are_drawn_from_low_to_high_and_left_out_where_unknown() -> None:
    unknown = Estimate(5.0, float("nan"), float("nan"))
    axis = interval_dots("title", "axis", ["a", "b"], [Estimate(10.0, 8.0, 13.0), unknown]).axes[0]
    ends = axis.collections[0].get_segments()
    assert [line[:, 0].tolist() for line in ends] == [[8.0, 13.0], [5.0, 5.0]]


def _svg(label: str) -> bytes:
    figure = new_picture(3, 2)
    tidy(figure.subplots(), (label, ""))
    drawn = io.BytesIO()
    save_picture(figure, drawn, "svg")
    return drawn.getvalue()


def test_names_that_no_file_can_have_leave_a_picture_well_formed() -> None:
    label = "\x1b[31mred\x00 \ufffe\uffff \ud800 a--b <b>&"
    drawn = _svg(label)
    ElementTree.fromstring(drawn)
    assert "\ufffd[31mred\ufffd \ufffd\ufffd \ufffd a" in drawn.decode()


def test_characters_that_the_font_lacks_give_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _svg("查询 हिन्दी")
    (warned,) = caplog.messages
    assert warned.startswith("warning: the font of pictures lacks characters of the labels (")
    caplog.clear()
    _svg("plain")
    assert not caplog.messages
