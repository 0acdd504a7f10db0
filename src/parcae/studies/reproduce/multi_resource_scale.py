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
from parcae.studies.reproduce.multi_resource import GRAPHENE, World, heuristics, missing_notes, worlds
from parcae.studies.reproduce.pictures import save_bars
from parcae.studies.reproduce.study import StudyRequest, StudyResult

#: The test's jobs, and how many times fewer jobs and executors a training had.
_NUM_JOBS, _FEWER_JOBS, _FEWER_EXECUTORS = 150, 15, 10
#: Trainings of Decima, and the search for the rule that they imitate.
_NUM_SHARES = 5


def table3(request: StudyRequest) -> StudyResult:
    """Decima trained at the size of the test, with 15 times fewer jobs, and with 10 times fewer executors.

    Source: Decima, Table 3 and Appendix I.
    """
    world = worlds(request)[-1].sized(request.num_jobs or _NUM_JOBS)
    batch = _in_batch(world)
    few = max(1, world.test.num_jobs // _FEWER_JOBS)
    share_s = request.budget_s / _NUM_SHARES
    rule = tune(request, world.train, "rule to imitate", share_s)
    trained = {
        "all jobs at once": (
            batch,
            [
                _train(request, batch.train, f"trained with the test's {batch.test.num_jobs} jobs", share_s, rule),
                _train(request, replace(batch.train, num_jobs=few), f"trained with {few} jobs", share_s, rule),
            ],
        ),
        "arrivals": (
            world,
            [
                _train(request, world.train, "trained with the test's executors", share_s, rule),
                _train(request, _smaller(world), "trained with a tenth of the executors", share_s, rule),
            ],
        ),
    }
    found, sweeps = dict[str, Contest](), list[str]()
    for test, (own, learned) in trained.items():
        baseline, notes = heuristics(request, own, [GRAPHENE])
        found[test] = contest(request, own.test, [*(one.contender for one in learned), *baseline], request.runs(10, 40))
        sweeps += [f"{test}: {note}" for note in notes]
    learned = [one for _, both in trained.values() for one in both]
    executors = world.test.config.total_executors
    return StudyResult(
        "trained small, tested large",
        "at 150 jobs and 10,000 executors: 3,290 s trained with the test setting and 3,540 s with 15 times fewer jobs (7% more); "
        "610 s trained with the test setting and 630 s with 10 times fewer executors (3% more; Table 3, Appendix I)",
        ("test", "policy", "average JCT (s)", "ratio to trained at the test's size"),
        [row for test, own in found.items() for row in _rows(test, own)],
        {
            **{test: own.to_json() for test, own in found.items()},
            "learned": [one.to_json() for one in learned],
            "executors": executors,
            "jobs": world.test.num_jobs,
        },
        [
            *missing_notes(request),
            f"{world.name}, {executors:,} executors, {world.test.num_jobs} jobs; the paper's two pairs differ in their JCTs and "
            f"it does not say how the tests do: here all jobs at once for the number of jobs, and arrivals "
            "for the number of executors",
            *world.notes,
            *(f"{test}: {note}" for test, own in found.items() for note in own.notes()),
            *sweeps,
            rule.words,
            *(one.words for one in learned),
            *budget_notes(request),
        ],
        partial(save_bars, _bars(found), "average JCT (s)"),
    )


def _in_batch(world: World) -> World:
    """The same jobs, all at once."""
    test = replace(world.test, arrivals="batch")
    return World(world.name, test, replace(world.train, arrivals="batch"), world.notes)


def _smaller(world: World) -> Scenario:
    """The training on a tenth of the executors, at the same load."""
    config = world.train.config
    fewer = max(len(config.classes), config.total_executors // _FEWER_EXECUTORS)
    return replace(world.train, config=config.resized(fewer))


def _train(request: StudyRequest, scenario: Scenario, label: str, share_s: float, rule: Learned) -> Learned:
    arrivals = "at once" if scenario.arrivals == "batch" else "as they arrive"
    head = DecimaSettings(executor_classes=True)
    return train_decima(request, scenario, f"decima, {label}, {arrivals}", share_s, decima=head, teacher=rule)


def _rows(test: str, found: Contest) -> list[list[str]]:
    return [
        [test, label, with_half_width(result.average_jct_s), with_interval(result.ratio_to_first)]
        for label, result in found.results.items()
    ]


def _bars(found: dict[str, Contest]) -> dict[str, Estimate]:
    return {f"{label}\n({test})": r.average_jct_s for test, own in found.items() for label, r in own.results.items()}
