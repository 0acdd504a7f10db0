"""Idle slots (Duan & Wu): the paper's data sets and agents, Table I and Figures 3 and 4."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.recipes import fair_runs, mean_gap_s
from parcae.evaluation.pictures import tidy
from parcae.evaluation.statistics import with_half_width, with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contender, Contest, contest, less, named
from parcae.papers.learners import (
    DecimaVariant,
    StudiedPolicy,
    budget_notes,
    checkpoint_path,
    train_decima,
)
from parcae.papers.pictures import bar_panel, interval_lines, save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.policies.checkpoint import read_checkpoint
from parcae.simulation.config import SimulationConfig
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import MEAN_GAP_S, mixed, synthetic_jobs

#: G: an idle slot is g / G of the stage's length, g = 0 ... G.
#: # Deviation: the paper does not state its G.
NUM_LENGTHS = 5
#: Settings of the agents, by label (features, idle slots) as in the paper; 0.5 is one of the two
#: features.
AGENTS: Mapping[str, DecimaSettings] = {
    "(1,1)": DecimaSettings(critical_path=True, average_width=True, idle_lengths=NUM_LENGTHS),
    "(0,1)": DecimaSettings(idle_lengths=NUM_LENGTHS),
    "(1,0)": DecimaSettings(critical_path=True, average_width=True),
    "(0,0)": DecimaSettings(),
    "(0.5,1) critical path": DecimaSettings(critical_path=True, idle_lengths=NUM_LENGTHS),
    "(0.5,1) average width": DecimaSettings(average_width=True, idle_lengths=NUM_LENGTHS),
}
PLAIN = "(0,0)"
WHOLE = "(1,1)"
#: Hand-made policies to compare with; for one-stage jobs srpt-cap is shortest job first.
TUNED_FAIR = "weighted-fair:tuned"
BESIDE = ("srpt-cap", "idle-theory", TUNED_FAIR)
#: Mean gap between arrivals of the real-world data set.
_REAL_GAP_S = 40.0
#: The load stays below this share.
_MOST_LOAD = 0.8
#: Share of busy executors, for settings without a mean gap in the paper.
_BUSY = 0.75
#: Number of bisection steps in the search for arrivals with that share.
_HALVINGS = 7
#: Jobs of a run in this search; many, so that beginning and end of the run hardly count.
_NUM_MEASURED_JOBS = 1_000
#: Training starts with gaps this many times longer (Duan & Wu, section V-A: load that grows).
_EARLY_GAP = 2.0
_PUBLISHED = {
    "synthetic": {"(1,1)": 46.3, "(0,1)": 52.7, "(1,0)": 53.5, "(0,0)": 55.0},
    "mixed": {"(1,1)": 69.4, "(0,1)": 75.2, "(1,0)": 74.5, "(0,0)": 77.6},
}


def smallest_cluster(workload: Workload, gap_s: float) -> int:
    """The smallest number of executors with a load below 80%.

    Example: 4 for the one-stage jobs with a mean gap of 10 s (load 75%).
    """
    return math.floor(workload.mean_work_ms / (gap_s * MS_PER_S * _MOST_LOAD)) + 1


def synthetic_scenario(request: StudyRequest, load: float | None = None) -> Scenario:
    """One-stage jobs on executors that move without delay.

    The mean gap is 10 s, unless a load is given.
    """
    workload = synthetic_jobs()
    config = SimulationConfig(
        num_executors=smallest_cluster(workload, MEAN_GAP_S), moving_delay_ms=0, warmup_delay_ms=0
    )
    return Scenario(
        workload,
        config,
        f"poisson:{MEAN_GAP_S:g}s" if load is None else f"load:{load:g}",
        request.jobs(200, 1_000),
    )


def real_scenario(request: StudyRequest, busy: float | None = None) -> Scenario:
    """The request's workload on its cluster.

    If the user chose no cluster and the jobs take minutes, the study uses the smallest cluster that
    a mean gap of 40 s loads below 80%, with that gap. Otherwise arrivals keep the share `busy` of
    the executors busy (default 75%).
    """
    workload = request.workload
    config = request.config
    num_jobs = request.jobs(200, 1_000)
    is_default = config == SimulationConfig() and not request.is_cluster_given
    if is_default:
        config = config.model_copy(
            update={"num_executors": smallest_cluster(workload, _REAL_GAP_S)}
        )
    scenario = Scenario(workload, config, f"poisson:{_REAL_GAP_S:g}s", num_jobs)
    return scenario if is_default and busy is None else at_busy(scenario, busy or _BUSY)


def mixed_scenario(
    request: StudyRequest, busy: float | None = None, alpha: float = 0.5
) -> Scenario:
    """A mix of two data sets on the cluster of the real-world data set."""
    real = real_scenario(request, busy)
    return at_busy(replace(real, workload=mixed(request.workload, alpha)), busy or _BUSY)


def at_busy(scenario: Scenario, busy: float) -> Scenario:
    """The scenario with arrivals that keep the share `busy` of the executors busy.

    Bisection finds them with fair sharing on the selection seeds.
    """
    # The busy share grows with the load: halve the interval [low, high] of loads.
    low = 0.02
    high = 1.5
    for _ in range(_HALVINGS):
        load = (low + high) / 2
        tried = replace(scenario, arrivals=f"load:{load:.3f}", num_jobs=_NUM_MEASURED_JOBS)
        low, high = (low, load) if fair_runs(tried).busy_share > busy else (load, high)
    return replace(scenario, arrivals=f"load:{low:.3f}")


def _train_agent(
    request: StudyRequest, scenario: Scenario, label: str, kind: str, share_s: float
) -> StudiedPolicy:
    # The load grows during training, as in the paper.
    changes = {"early_gap": _EARLY_GAP}
    name = f"{label} {kind}"
    return train_decima(
        request, scenario, name, share_s, DecimaVariant(AGENTS[label], changes=changes)
    )


def require_agents(request: StudyRequest, kinds: Collection[str], labels: Collection[str]) -> None:
    """Check that every policy of the request is an agent of the study, before any is trained."""
    names = [checkpoint_path(request, f"{label} {kind}").name for kind in kinds for label in labels]
    first: dict[str, str] = {}
    for text in request.policies:
        other = first.setdefault(Path(text).name, text)
        if other != text:
            raise ConfigError(
                f"--policy {other} and {text} are the same agent of this study, which shows one of "
                "each: give one of them"
            )
        if Path(text).name not in names:
            raise ConfigError(
                f"--policy {text}: not an agent of this study: give checkpoints that it wrote, "
                f"with the names {', '.join(names)}"
            )
        read_checkpoint(Path(text))


def train_agents(
    request: StudyRequest, scenario: Scenario, kind: str, labels: Sequence[str], share_s: float
) -> tuple[list[Contender], list[str]]:
    """Train the agents, each for the same time, or take them from the request's policies. Returns
    the agents, and a note on the origin of each.

    A checkpoint that an earlier run of the study wrote is used again if it is among the request's
    policies; its file name says which agent and data set it belongs to.
    """
    known = {Path(text).name: text for text in request.policies}
    contenders = list[Contender]()
    notes = list[str]()
    for label in labels:
        # The file name identifies the agent and the data set.
        path = checkpoint_path(request, f"{label} {kind}")
        if path.name in known:
            contenders.append(Contender(label, known[path.name]))
            notes.append(f"{label}, {kind}: {known[path.name]}, trained earlier")
            continue
        learned = _train_agent(request, scenario, label, kind, share_s)
        contenders.append(replace(learned.contender, label=label))
        notes.append(learned.words)
    return contenders, notes


def describe(kind: str, scenario: Scenario) -> str:
    """A note on a data set: workload, executors and mean gap."""
    gap_s = mean_gap_s(scenario)
    return (
        f"{kind}: {scenario.workload.name}, {scenario.config.total_executors} executors, "
        f"mean gap {gap_s:,.2f} s"
    )


_NOTES = (
    "an agent (f, i): f = 1 adds the features critical path and average width (0.5: one of them); "
    f"i = 1 adds idle slots of 0 to {NUM_LENGTHS}/{NUM_LENGTHS} of the stage's length; otherwise "
    "it is Decima's network, with the same training and time for all",
    "the load grows over the first half of a training; it starts with gaps "
    f"{_EARLY_GAP:g} times as long",
    "srpt-cap is shortest remaining work first, which for one-stage jobs is shortest job first; "
    "idle-theory is the same with the idle slots that the theory of two jobs prescribes",
)


def table1(request: StudyRequest) -> StudyResult:
    """Average JCT of four agents on the synthetic and the mixed data set.

    Source: Duan & Wu, Table I.
    """
    labels = (PLAIN, "(1,0)", "(0,1)", WHOLE)
    require_agents(request, ("synthetic", "mixed"), labels)
    scenarios = {"synthetic": synthetic_scenario(request), "mixed": mixed_scenario(request)}
    share_s = request.budget_s / (len(labels) * len(scenarios))
    contests = dict[str, Contest]()
    rows = list[list[str]]()
    notes = list[str]()
    for kind, scenario in scenarios.items():
        agents, words = train_agents(request, scenario, kind, labels, share_s)
        contests[kind] = contest(request, scenario, [*agents, *named(*BESIDE)], request.runs(8, 20))
        notes += [describe(kind, scenario), *contests[kind].notes(), *words]
        rows += _table1_rows(kind, contests[kind])
    return StudyResult(
        "agents with and without idle slots and features of the DAG's shape",
        "the average JCT of (1,1) is below that of (0,0) by 15.8% on the synthetic and by 10.6% on "
        "the mixed data set (Table I)",
        (
            "data set",
            "policy",
            "average JCT (s)",
            f"ratio to {PLAIN}",
            "p95 JCT (s)",
            "busy",
            "paper: JCT (s)",
            "paper: ratio",
        ),
        rows,
        {kind: outcome.to_json() for kind, outcome in contests.items()},
        [*_NOTES, *notes, *budget_notes(request)],
        partial(save, partial(_draw_bars, contests), (9.0, 3.6)),
        [
            less(
                f"{kind}: {label} below {PLAIN} ({_PUBLISHED[kind][label]:g} and "
                f"{_PUBLISHED[kind][PLAIN]:g} s)",
                outcome.results[label],
                outcome.results[PLAIN],
                paper=_PUBLISHED[kind][label] / _PUBLISHED[kind][PLAIN],
            )
            for kind, outcome in contests.items()
            for label in _PUBLISHED[kind]
            if label != PLAIN
        ],
    )


def _table1_rows(kind: str, outcome: Contest) -> list[list[str]]:
    rows = []
    published = _PUBLISHED[kind]
    for label, result in outcome.results.items():
        means = result.means()
        # The paper has values for its agents only, not for our heuristics.
        theirs = published.get(label)
        rows.append(
            [
                kind,
                label,
                with_half_width(result.average_jct_s),
                with_interval(result.ratio_to_first),
                f"{means['p95_jct_s']:,.1f}",
                f"{means['utilization']:.0%}",
                "" if theirs is None else f"{theirs:g}",
                "" if theirs is None else f"{theirs / published[PLAIN]:.3f}",
            ]
        )
    return rows


def _draw_bars(contests: Mapping[str, Contest], figure: Any) -> None:
    axes = figure.subplots(1, len(contests))
    for axis, (kind, outcome) in zip(axes, contests.items(), strict=True):
        bar_panel(axis, outcome.averages, f"average JCT (s), {kind}")


def _over_loads(
    request: StudyRequest,
    scenarios: Mapping[float, Scenario],
    kind: str,
    labels: Sequence[str],
    share_s: float,
) -> tuple[dict[float, Contest], list[str]]:
    """Train agents at the highest load and measure them at all loads; ratios are to the first."""
    # One training at the highest load serves all loads.
    hardest = scenarios[max(scenarios)]
    agents, notes = train_agents(request, hardest, kind, labels, share_s)
    contenders = [*agents, *named(*BESIDE)]
    contests = {
        load: contest(request, scenario, contenders, request.runs(6, 20))
        for load, scenario in scenarios.items()
    }
    return contests, [
        *(describe(f"{kind}, load {load:.0%}", scenario) for load, scenario in scenarios.items()),
        *notes,
    ]


def _load_rows(kind: str, contests: Mapping[float, Contest]) -> list[list[str]]:
    return [
        [
            kind,
            f"{load:.0%}",
            label,
            with_half_width(result.average_jct_s),
            with_interval(result.ratio_to_first),
            f"{result.means()['utilization']:.0%}",
        ]
        for load, outcome in contests.items()
        for label, result in outcome.results.items()
    ]


_LOAD_COLUMNS = (
    "data set",
    "load",
    "policy",
    "average JCT (s)",
    f"ratio to {PLAIN}",
    "busy in these runs",
)
_LOAD_NOTES = (
    "agents are trained once, at the highest load, and measured at all loads",
    "load: for TPC-H and mixed jobs the share of busy executors under fair sharing, including "
    "delays and work inflation; for one-stage jobs the work that arrives / the executors' capacity",
    "busy in these runs: includes the beginning and the end of a run, when few jobs are present",
)


def _draw_loads(contests: Mapping[str, Mapping[float, Contest]], figure: Any) -> None:
    axes = figure.subplots(1, len(contests), squeeze=False)[0]
    for axis, (kind, by_load) in zip(axes, contests.items(), strict=True):
        lines = {
            label: [outcome.results[label].average_jct_s for outcome in by_load.values()]
            for label in next(iter(by_load.values())).results
        }
        interval_lines(axis, list(by_load), lines)
        # Absolute times: the axis starts at 0.
        axis.set_ylim(bottom=0)
        tidy(axis, ("load", "average JCT (s)"), kind)


def fig3(request: StudyRequest) -> StudyResult:
    """Average JCT over the load on TPC-H jobs, with and without features and idle slots.

    Source: Duan & Wu, Figure 3.
    """
    require_agents(request, ("real-world",), (PLAIN, WHOLE))
    loads = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) if request.is_full else (0.5, 0.75)
    scenarios = {load: real_scenario(request, load) for load in loads}
    contests, notes = _over_loads(
        request, scenarios, "real-world", (PLAIN, WHOLE), request.budget_s / 2
    )
    return StudyResult(
        "average JCT over the load, TPC-H jobs",
        "(1,1) is below (0,0) at every load up to 80% (Figure 3)",
        _LOAD_COLUMNS,
        _load_rows("real-world", contests),
        {f"{load:g}": outcome.to_json() for load, outcome in contests.items()},
        [*_NOTES, *_LOAD_NOTES, *notes, *contests[loads[-1]].notes(), *budget_notes(request)],
        partial(save, partial(_draw_loads, {"real-world": contests}), (7.0, 4.2)),
        [
            less(
                f"load {load:.0%}: {WHOLE} below {PLAIN}",
                outcome.results[WHOLE],
                outcome.results[PLAIN],
            )
            for load, outcome in contests.items()
        ],
    )


def fig4(request: StudyRequest) -> StudyResult:
    """Average JCT over the load on synthetic and mixed jobs, with all, some and no features.

    Source: Duan & Wu, Figure 4.
    """
    loads = (0.3, 0.45, 0.6, 0.75) if request.is_full else (0.5, 0.75)
    labels = (PLAIN, "(1,0)", "(0,1)", "(0.5,1) critical path", "(0.5,1) average width", WHOLE)
    require_agents(request, ("synthetic", "mixed"), labels)
    share_s = request.budget_s / (2 * len(labels))
    sets = {
        "synthetic": {load: synthetic_scenario(request, load) for load in loads},
        "mixed": {load: mixed_scenario(request, load) for load in loads},
    }
    contests = dict[str, dict[float, Contest]]()
    rows = list[list[str]]()
    notes = list[str]()
    for kind, scenarios in sets.items():
        contests[kind], words = _over_loads(request, scenarios, kind, labels, share_s)
        rows += _load_rows(kind, contests[kind])
        notes += [*words, *contests[kind][loads[-1]].notes()]
    return StudyResult(
        "agents with all, some and no features over the load",
        "with features and idle slots the average JCT is lowest; learning beats tuned weighted "
        "fair, especially under heavy load (Figure 4)",
        _LOAD_COLUMNS,
        rows,
        {
            kind: {f"{load:g}": outcome.to_json() for load, outcome in by_load.items()}
            for kind, by_load in contests.items()
        },
        [*_NOTES, *_LOAD_NOTES, *notes, *budget_notes(request)],
        partial(save, partial(_draw_loads, contests), (11.0, 4.4)),
    )
