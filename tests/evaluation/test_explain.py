"""What a policy changes in a log, and why."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from parcae.evaluation.explain import Asked, ExplainedQuery, explain
from parcae.workloads.spark_log.event_log import LoggedRuns, read_runs
from tests.cli.running import ran, refused
from tests.evaluation.made import write_waiting_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_waiting_log(tmp_path / "log")


def _first(logged: LoggedRuns, policy: str) -> ExplainedQuery:
    return explain(logged, policy, Asked(queries=1)).queries[0]


def test_it_says_when_a_query_waited_for_whom_and_how_the_policy_ordered_both(log: Path) -> None:
    query = _first(read_runs([log]), "srpt")
    assert (query.label(query.query), query.user, query.arrival_s) == ("1: short", "s", 0.05)
    # Today it waits for all ten tasks of the long query, under the policy for the first of them.
    for one, end_s in ((query.against, 10), (query.policy, 1)):
        assert one.waits_s == ((0.05, end_s, 0),)
        assert one.waited_s == pytest.approx(end_s - 0.05)
        assert one.cores_had == ((0, 1.0),)
        assert one.ran_s == ((end_s, end_s + 0.1),)
        assert one.jct_s == end_s + 0.05
    assert (query.when, query.for_whom) == ("0.1 to 10.0 s", "0: long 100%")
    # The policy chooses between the two when a core is free.
    assert query.meetings[0].at_s == 1
    (own,), (other,) = query.meetings[0][1:]
    assert own.name == other.name == "work left"
    assert own.value < other.value
    assert query.why.startswith(f"at 1.0 s: {own}; 0: long: work left ")


def test_a_formula_is_explained_by_its_terms_and_an_account_by_the_overdraft(log: Path) -> None:
    logged = read_runs([log])
    formula = _first(logged, "formula: max(rem + 2 * overdraft, rem / 10)")
    terms = {term.name: term.value for term in formula.meetings[0].other}
    first = terms["rem + 2 * overdraft"]
    assert list(terms) == ["rem", "overdraft", "rem + 2 * overdraft", "rem / 10", "value"]
    assert first == pytest.approx(terms["rem"] + 2 * terms["overdraft"])
    assert terms["value"] == max(first, terms["rem / 10"])
    assert [term.unit for term in formula.meetings[0].other] == ["ms", "ms", "", "", ""]
    account = _first(logged, "srpt+account")
    work, overdraft, charged = account.meetings[0].other
    assert (work.name, overdraft.name, charged.name) == ("work left", "overdraft", "counts as")
    # Of the 950 ms in which the short query waited, the split gives its user half.
    assert overdraft.value == pytest.approx(0.475)
    assert charged.value == pytest.approx(work.value + 1.5 * 0.475)


def test_the_command_prints_tables_json_and_a_picture(log: Path) -> None:
    folder = log.parent
    done = ran("parcae explain srpt log --queries 2 --plot why.svg", folder)
    shown = " ".join(done.stdout.split())
    assert "60 queries: mean 10.0 s under the log's order, 5.6 s under srpt" in shown
    assert "1. 1: short" in shown
    assert "0: long 100%" in shown
    assert "picture: why.svg" in shown
    ElementTree.parse(folder / "why.svg")
    command = "parcae explain srpt log --against fair --cores 2 --arrivals load:0.9 --jobs 20"
    found = json.loads(ran(f"{command} --seed 3 --plot why.html --json", folder).stdout)
    assert (found["against"], found["jobs"], len(found["queries"])) == ("fair", 20, 5)
    changes = [abs(one["policy"]["jct_s"] - one["against"]["jct_s"]) for one in found["queries"]]
    assert changes == sorted(changes, reverse=True)
    for one in found["queries"]:
        for side in ("against", "policy"):
            waited = sum(end - begin for begin, end, _ in one[side]["waits_s"])
            assert one[side]["waited_s"] == pytest.approx(waited)
            assert one[side]["jct_s"] >= waited
            shares = [share for _, share in one[side]["cores_had"]]
            assert sum(shares) == pytest.approx(1 if waited else 0)
    assert "under srpt" in (folder / "why.html").read_text()


def test_what_cannot_be_explained_is_refused(log: Path) -> None:
    folder = log.parent
    assert "no query's time changes" in ran("parcae explain fifo log", folder).stdout
    refused("parcae explain sprt log", folder, "sprt", "srpt")
    refused("parcae explain sjf-cp log", folder, "plans no order", "such as srpt or a formula")
    refused("parcae explain srpt log --arrivals sessions:2", folder, "depends on the order")
