"""Figure 23 and Table 2: unknown task durations, and arrivals that differ from the training's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.recipes import mean_gap_s
from parcae.evaluation.statistics import ratio_estimate, with_half_width, with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contender, Contest, averages_s, contest, less, named
from parcae.papers.findings import Finding
from parcae.papers.learners import DecimaVariant, StudiedPolicy, budget_notes, train_decima
from parcae.papers.pictures import save_bars
from parcae.papers.study import StudyRequest, StudyResult

_BEST = "weighted-fair:tuned"
#: Table 2's shortest and longest mean gap / that of the test: 42 and 75 s against 45 s.
_SHORTEST = 42 / 45
_LONGEST = 75 / 45
#: Table 2's average JCTs in s, in the order of our policies: the best heuristic, and Decima trained
#: on the test's gap, on the longest, on a mix, and on a mix with the gap as a feature.
_PUBLISHED = {"best": 91.2, "same": 65.4, "slow": 104.8, "mix": 82.3, "knowing": 76.6}
#: Number of gaps in the mix, and of rounds over them.
_NUM_GAPS = 3
_NUM_ROUNDS = 2


def fig23(request: StudyRequest) -> StudyResult:
    """Decima without task durations, compared with Decima with them and the best heuristic.

    Source: Decima, Figure 23 and Appendix J.
    """
    informed, blind, learned = _with_and_without_durations(request)
    # All ratios are to the best heuristic with known durations.
    baseline = averages_s(informed.results[_BEST])
    results = [("known", label, result) for label, result in informed.results.items()]
    results += [("unknown", label, result) for label, result in blind.results.items()]
    ratios = [ratio_estimate(averages_s(result), baseline) for _, _, result in results]
    with_them, without = (
        outcome.results[policy.label]
        for outcome, policy in zip((informed, blind), learned, strict=True)
    )
    rows = [
        [label, durations, with_half_width(result.average_jct_s), with_interval(ratio)]
        for (durations, label, result), ratio in zip(results, ratios, strict=True)
    ]
    return StudyResult(
        "jobs whose task durations are unknown",
        "without task durations Decima does worse than with them, but still better than the best "
        "heuristic (Figure 23, Appendix J)",
        ("policy", "durations", "average JCT (s)", f"ratio to {_BEST}, which knows them"),
        rows,
        {
            "known": informed.to_json(),
            "unknown": blind.to_json(),
            "ratio": {
                f"{label}, {durations}": r.to_json()
                for (durations, label, _), r in zip(results, ratios, strict=True)
            },
            "learned": [policy.to_json() for policy in learned],
        },
        [
            f"ratios are to {_BEST} with all durations known; fair sharing uses no durations",
            "durations unknown: every job's durations are hidden from the policy "
            "(unknown_share = 1); the jobs and their real durations are the same",
            *informed.notes(),
            *(policy.words for policy in learned),
            *budget_notes(request),
        ],
        partial(
            save_bars,
            {f"{label}\n(durations {d})": r.average_jct_s for d, label, r in results},
            "average JCT (s)",
        ),
        [
            less("Decima is better with durations than without", with_them, without),
            less(f"Decima without durations below {_BEST}", without, informed.results[_BEST]),
        ],
    )


def _with_and_without_durations(
    request: StudyRequest,
) -> tuple[Contest, Contest, list[StudiedPolicy]]:
    """Compare policies with known durations, and with unknown ones. Returns the contest with known
    durations, the one with unknown durations, and the trained policies.
    """
    known = Scenario(request.workload, request.config, "batch", request.jobs(20, 20))
    unknown = replace(known, config=request.config.model_copy(update={"unknown_share": 1.0}))
    # Two trainings: with and without durations.
    share_s = request.budget_s / 2
    num_runs = request.runs(20, 100)
    informed = train_decima(request, known, "decima", share_s)
    blind = train_decima(request, unknown, "decima without durations", share_s)
    without = [
        blind.contender,
        Contender("decima trained with durations, run without", str(informed.path)),
        *named("fair"),
    ]
    return (
        contest(request, known, [*named(_BEST, "fair"), informed.contender], num_runs),
        contest(request, unknown, without, num_runs),
        [informed, blind],
    )


def gap_arrivals(gap_s: float) -> str:
    """Poisson arrivals with a mean gap.

    Example: `gap_arrivals(0.5)` is "poisson:500.000ms".
    """
    return f"poisson:{gap_s * 1e3:.3f}ms"


def train_on_mix(
    request: StudyRequest,
    scenario: Scenario,
    label: str,
    gaps_s: list[float],
    share_s: float,
    decima: DecimaSettings,
) -> StudiedPolicy:
    """Train for several mean gaps in turn, each time from the previous weights, in several rounds.

    A scenario has only one arrival process, so a mix of arrivals is alternated. Every turn starts
    Adam anew and keeps the policy that is best on the selection runs with its gap.
    """
    # The order of the turns: all gaps, then all gaps again.
    turns = [gap for _ in range(_NUM_ROUNDS) for gap in gaps_s]
    parts = list[StudiedPolicy]()
    for gap in turns:
        turn = replace(scenario, arrivals=gap_arrivals(gap))
        # Continue from the weights of the previous turn.
        weights = parts[-1].weights if parts else None
        turn_s = share_s / len(turns)
        variant = DecimaVariant(decima)
        parts.append(train_decima(request, turn, label, turn_s, variant, weights=weights))
    keys = ("iterations", "decisions", "seconds")
    sums = {key: sum(getattr(part, key) for part in parts) for key in keys}
    words = f"{label}: {len(turns)} turns, {_size(sums)}; the last turn: {parts[-1].words}"
    return replace(parts[-1], words=words, **sums)


def _size(sums: dict[str, float]) -> str:
    """How much a training did, in words."""
    return (
        f"{sums['iterations']} iterations ({sums['decisions']:,} decisions) "
        f"in {sums['seconds']:.0f} s"
    )


def _mixed_gaps_s(gap_s: float) -> list[float]:
    """The mean gaps of the mix, evenly spaced, for a mean gap of the test."""
    shares = [turn / (_NUM_GAPS - 1) for turn in range(_NUM_GAPS)]
    return [gap_s * (_SHORTEST + (_LONGEST - _SHORTEST) * share) for share in shares]


def table2(request: StudyRequest) -> StudyResult:
    """Decima trained on the test's arrivals, on slower ones, and on a mix with and without the gap.

    Source: Decima, Table 2 and section 7.4.
    """
    requested = Scenario(request.workload, request.config, request.stream, request.jobs(60, 1_000))
    gap_s = mean_gap_s(requested)
    # Four trainings share the budget.
    share_s = request.budget_s / 4
    scenario = replace(requested, arrivals=gap_arrivals(gap_s))
    slow = replace(requested, arrivals=gap_arrivals(_LONGEST * gap_s))
    mix = _mixed_gaps_s(gap_s)
    label = "decima, trained on a mix"
    knowing = DecimaSettings(knows_gap=True)
    learned = [
        train_decima(request, scenario, "decima, trained on the test's gap", share_s),
        train_decima(request, slow, "decima, trained on a gap 5/3 as long", share_s),
        train_on_mix(request, scenario, label, mix, share_s, DecimaSettings()),
        train_on_mix(request, scenario, f"{label}, knows the gap", mix, share_s, knowing),
    ]
    outcome = contest(
        request,
        scenario,
        [*named(_BEST), *(policy.contender for policy in learned)],
        request.runs(6, 20),
    )
    return StudyResult(
        "trained on other arrivals than those of the test",
        f"average JCT {_PUBLISHED['best']} s for optimally weighted fair; for Decima "
        f"{_PUBLISHED['same']} s if trained on the test's gap of 45 s, {_PUBLISHED['slow']} s on "
        f"75 s, {_PUBLISHED['mix']} s on a mix, {_PUBLISHED['knowing']} s on a mix with the gap as "
        "a feature (Table 2, section 7.4)",
        ("policy", "average JCT (s)", f"ratio to {_BEST}"),
        outcome.average_rows(),
        {
            **outcome.to_json(),
            "gaps_s": {"test": gap_s, "mix": mix},
            "learned": [policy.to_json() for policy in learned],
        },
        [
            *outcome.notes(),
            f"the test's mean gap is {gap_s:,.2f} s; the others keep the paper's ratios: "
            f"{', '.join(f'{g:,.2f}' for g in mix)} s in the mix; the training on other arrivals "
            "uses only the longest",
            f"the mix is alternated in {_NUM_ROUNDS} rounds over {_NUM_GAPS} gaps, because a "
            "training has one arrival process; each turn continues from the previous weights with "
            "a new Adam state",
            "a training ends only after an iteration, so shares of a few seconds are exceeded, "
            "most of all those of the mix",
            *(policy.words for policy in learned),
            *budget_notes(request),
        ],
        partial(save_bars, outcome.averages, "average JCT (s)"),
        _arrivals_count(outcome),
    )


def _arrivals_count(outcome: Contest) -> list[Finding]:
    """What Table 2 found about trainings on other arrivals."""
    results = dict(zip(_PUBLISHED, outcome.results.values(), strict=True))
    claims = {
        f"trained on the test's gap below {_BEST}": ("same", "best"),
        f"{_BEST} below trained on a gap 5/3 as long": ("best", "slow"),
        f"trained on a mix below {_BEST}": ("mix", "best"),
        "trained on a mix, knows the gap, below trained on a mix": ("knowing", "mix"),
        "trained on the test's gap below trained on a mix": ("same", "mix"),
    }
    return [
        less(claim, results[one], results[other], paper=_PUBLISHED[one] / _PUBLISHED[other])
        for claim, (one, other) in claims.items()
    ]
