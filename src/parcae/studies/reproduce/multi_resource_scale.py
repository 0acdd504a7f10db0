"""Table 3: trained on fewer jobs or fewer executors than what it is tested on.

Source: Decima, Appendix I.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parcae.evaluation.statistics import Estimate
from parcae.learning.scenario import Scenario
from parcae.policies.decima.layout import DecimaSettings
from parcae.studies.reproduce.contest import Contest, contest, with_half_width, with_interval
from parcae.studies.reproduce.learners import Learned, budget_notes, train_decima, tune
from parcae.studies.reproduce.multi_resource import (
    GRAPHENE,
    World,
    heuristics,
    missing_notes,
    worlds,
)
from parcae.studies.reproduce.pictures import save_bars
from parcae.studies.reproduce.study import StudyRequest, StudyResult

#: The test's jobs, and how many times fewer jobs and executors a training had.
_NUM_JOBS = 150
_FEWER_JOBS = 15
_FEWER_EXECUTORS = 10
#: Trainings of Decima, and the search for the rule that they imitate.
_NUM_SHARES = 5


def table3(request: StudyRequest) -> StudyResult:
    """Decima trained at the size of the test, with 15 times fewer jobs, and with 10 times fewer executors.

    Source: Decima, Table 3 and Appendix I.
    """
    size = request.num_jobs or _NUM_JOBS
    world = worlds(request)[-1].sized(size, size)
    rule = tune(request, world.train, "rule to imitate", request.budget_s / _NUM_SHARES)
    found = dict[str, Contest]()
    notes = [rule.words]
    learned = list[Learned]()
    for test, own in (("all jobs at once", _in_batch(world)), ("arrivals", world)):
        pair = _trained(request, own, rule)
        baseline, sweeps = heuristics(request, own, [GRAPHENE])
        found[test] = contest(
            request, own.test, [*(one.contender for one in pair), *baseline], request.runs(10, 40)
        )
        notes += [f"{test}: {note}" for note in (*found[test].notes(), *sweeps)] + [
            one.words for one in pair
        ]
        learned += pair
    executors = world.test.config.total_executors
    num_jobs = world.test.num_jobs
    numbers = {test: own.to_json() for test, own in found.items()}
    return StudyResult(
        "trained small, tested large",
        "at 150 jobs and 10,000 executors: 3,290 s trained with the test setting and 3,540 s with 15 times fewer jobs (7% more); "
        "610 s trained with the test setting and 630 s with 10 times fewer executors (3% more; Table 3, Appendix I)",
        ("test", "policy", "average JCT (s)", "ratio to trained at the test's size"),
        [row for test, own in found.items() for row in _rows(test, own)],
        {
            **numbers,
            "learned": [one.to_json() for one in learned],
            "executors": executors,
            "jobs": num_jobs,
        },
        [
            *missing_notes(request),
            f"{world.name}, {executors:,} executors, {num_jobs} jobs; the paper's two pairs differ in their JCTs and it does not "
            "say how the tests do: here all jobs at once for the number of jobs, and arrivals for the number of executors",
            *world.notes,
            *notes,
            *budget_notes(request),
        ],
        partial(save_bars, _bars(found), "average JCT (s)"),
    )


def _trained(request: StudyRequest, world: World, rule: Learned) -> list[Learned]:
    """Decima at the size of the test, and with fewer jobs (all at once) or executors."""
    if world.train.arrivals == "batch":
        few = max(1, world.train.num_jobs // _FEWER_JOBS)
        words = f"with the test's {world.train.num_jobs} jobs at once", f"with {few} jobs at once"
        scenarios = world.train, replace(world.train, num_jobs=few)
    else:
        words = "with the test's executors", "with a tenth of the executors"
        scenarios = world.train, _smaller(world)
    head = DecimaSettings(executor_classes=True)
    share_s = request.budget_s / _NUM_SHARES
    return [
        train_decima(
            request, scenario, f"decima, trained {what}", share_s, decima=head, teacher=rule
        )
        for scenario, what in zip(scenarios, words, strict=True)
    ]


def _in_batch(world: World) -> World:
    """The same jobs, all at once."""
    test = replace(world.test, arrivals="batch")
    return World(world.name, test, replace(world.train, arrivals="batch"), world.notes)


def _smaller(world: World) -> Scenario:
    """The training on a tenth of the executors, at the same load."""
    config = world.train.config
    fewer = max(len(config.classes), config.total_executors // _FEWER_EXECUTORS)
    return replace(world.train, config=config.resized(fewer))


def _rows(test: str, found: Contest) -> list[list[str]]:
    return [
        [test, label, with_half_width(result.average_jct_s), with_interval(result.ratio_to_first)]
        for label, result in found.results.items()
    ]


def _bars(found: dict[str, Contest]) -> dict[str, Estimate]:
    return {
        f"{label}\n({test})": r.average_jct_s
        for test, own in found.items()
        for label, r in own.results.items()
    }
