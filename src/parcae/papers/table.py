"""The table of all studies: a row for each figure and table of the papers that is repeated here.

The papers: Decima (Mao et al., SIGCOMM 2019), idle slots (Duan & Wu), DeepRM (Mao et al.,
HotNets'16) and A2cScheduler (Liang et al., 2019).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial

from parcae.base.errors import ConfigError, suggestion
from parcae.base.texts import MS_PER_S
from parcae.decima.graph.layout import DecimaSettings, Limits
from parcae.decima.learning.recipes import Recipe
from parcae.papers import critical_path, drawing, figures
from parcae.papers.contenders import Part, named
from parcae.papers.figures import BEST, GRAPHENE, PLAIN, WHOLE, Variants, setting
from parcae.papers.runner import CLUSTER, JCT, Claim, Measure, Study
from parcae.rigid.a2c.layout import Architecture
from parcae.rigid.deeprm.learner import RECIPES
from parcae.rigid.layout import Cost
from parcae.simulation.config import SimulationConfig
from parcae.simulation.objectives import Objective
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.workload import Workload

#: Load of a recorded trace in studies of executor classes, as a share of what these can serve.
TRACE_LOAD = 0.8
#: If the jobs have less work than this on average, the cluster is small and its delays are short.
_SMALL_JOB_MS = 100 * MS_PER_S
_SMALL_CLUSTER = SimulationConfig(num_executors=20, moving_delay_ms=200, warmup_delay_ms=100)
#: Minutes of training in the studies of idle slots, which train up to a dozen agents.
_IDLE_MINUTES = 10.0
_BATCH = frozenset({"arrivals"})
_ONE_RUN = frozenset({"runs"})
_OWN_DAGS = frozenset({"workload", "arrivals", "runs", "recipe"})


def paper_setting(workload: Workload) -> tuple[Workload, SimulationConfig]:
    """A cluster whose size and delays fit the workload's jobs.

    Jobs of minutes run on the paper's cluster (50 executors, moving delay 2 s, warm-up delay 1 s).
    The small jobs of the bundled profile have tasks of fractions of a second. They run on 20
    executors with a tenth of the delays, and get the measured slowdown of the paper's cluster at
    high parallelism.
    """
    if workload.mean_work_ms >= _SMALL_JOB_MS:
        return workload, SimulationConfig()
    return with_parallelism_model(workload, "decima-cluster"), _SMALL_CLUSTER


def find_study(name: str) -> Study:
    """The study with a name."""
    if name in STUDIES:
        return STUDIES[name]
    raise ConfigError(f"unknown study {name!r}; {suggestion(name, STUDIES, 'choose one of')}")


def _jct(*over: str) -> Measure:
    return Measure(JCT, "average JCT (s)", over=over)


#: The measures of trainings.
_TRAINED = (
    Measure("best", "best ratio to fair", 3),
    Measure("last", "last ratio to fair", 3),
    Measure("parameters", "parameters", 0),
    Measure("iterations", "iterations", 0),
    Measure("training_s", "seconds of training", 0),
)
#: Every kind of policy; the network of the corrector corrects the rule.
_KINDS: Variants = {
    "tuned": {"kind": "tuned"},
    "corrector": {"kind": "corrector", "over": ("tuned",)},
    "decima": {},
}
_DECIMA_ALONE: Variants = {"decima": {}}

#: Figure 13: in a quarter of the time of a case its rule is tuned. Rules learn faster.
_RULE: Mapping[str, object] = {"kind": "tuned", "share": 0.25}
_NETWORK: Mapping[str, object] = {"share": 0.75}
_MAKESPAN = {"objective": Objective.MAKESPAN}
_FREELY = {"rule for (b)": _RULE, "decima for (b)": _NETWORK}
_MOVING = {
    "rule for (a)": _RULE,
    "decima for (a)": _NETWORK,
    "rule for (c)": {**_RULE, **_MAKESPAN},
    "decima for (c)": {**_NETWORK, **_MAKESPAN},
}
#: Figure 14: Decima without one of its parts.
_ABLATIONS: Variants = {
    "decima": {},
    "without parallelism control": {"network": DecimaSettings(limits=Limits.NONE)},
    "without graph embedding": {"network": DecimaSettings(has_graph=False)},
    "trained on batches": {},
    "decima, Algorithm 1": {"recipe": Recipe.DECIMA_2019},
    # Deviation: the paper's variant gives every rollout another job sequence (section 7.4). Here
    # those of a group still share theirs, and only their baseline does not look at the time.
    "Algorithm 1 without aligned baseline": {
        "recipe": Recipe.DECIMA_2019,
        "changes": {"is_aligned": False},
    },
}
#: The ablations that leave nothing out.
_COMPLETE = ("decima", "decima, Algorithm 1")
_INPUT = "limit as an input (Decima)"
_ENCODINGS: Variants = {
    _INPUT: {"network": DecimaSettings(limits=Limits.INPUT)},
    "one output for each limit": {"network": DecimaSettings(limits=Limits.OUTPUTS)},
    "limits of stages": {"network": DecimaSettings(limits=Limits.STAGE)},
}
#: Every way of training. The rule and the network that corrects it need minutes, Decima hours.
_WAYS: Variants = {
    "rule": {"kind": "tuned", "share": 0.08},
    "rule, then corrector": {"kind": "corrector", "share": 0.17, "over": ("rule",)},
    "decima, imitation first": {"share": 0.2, "recipe": Recipe.IMITATION},
    "decima, fast, alone": {"share": 0.2, "recipe": Recipe.FAST},
    "decima, decima-2019": {"share": 0.35, "recipe": Recipe.DECIMA_2019},
}
#: The objectives, by the measure that shows each.
_OBJECTIVES = {
    JCT: Objective.AVERAGE_JCT,
    "makespan_s": Objective.MAKESPAN,
    "p95_jct_s": Objective.P95_JCT,
    "mean_slowdown": Objective.MEAN_SLOWDOWN,
    "missed_deadlines": Objective.MISSED_DEADLINES,
}
_FIRST_RULES: Variants = {
    f"first rule for {one}": {"kind": "tuned", "objective": one} for one in Objective
}
#: A rule for each objective; its search starts at the best of the first ones.
_RULES_OF: Variants = {
    f"rule for {one}": {"kind": "tuned", "objective": one, "over": tuple(_FIRST_RULES)}
    for one in Objective
}
_BLIND = "decima without durations"
_TABLE2 = {
    BEST: (91.2,),
    figures.SAME_GAP: (65.4,),
    figures.SLOW_GAP: (104.8,),
    figures.MIX: (82.3,),
    figures.KNOWING: (76.6,),
}
#: Executors of the largest class.
_LARGEST = "smallest 20%: memory 1"


def _printed(
    values: Mapping[str, tuple[float, ...]], where: str = "", keys: tuple[str, ...] = (JCT,)
) -> tuple[Claim, ...]:
    """The measures that a paper prints in a table, by policy."""
    return tuple(
        Claim(label, where=where, key=key, paper=value)
        for label, row in values.items()
        for key, value in zip(keys, row, strict=True)
    )


_DECIMA = (
    Study(
        "decima-fig3",
        "schedules of random jobs",
        "Decima beats FIFO and fair sharing, and SJF's makespan (Figure 3, section 2.3)",
        setting("batch", (10, 10), named("fifo", "sjf-cp", "fair", "decima"), _DECIMA_ALONE),
        drawing.gantt,
        claims=(
            Claim("decima", "fifo", paper=0.55),
            Claim("decima", "fair", paper=0.81),
            Claim("decima", "sjf-cp", key="makespan_s", paper=0.7),
        ),
        notes=("the picture shows the first run",),
        given="replaces",
        ignores=_BATCH,
        ships=True,
    ),
    Study(
        "decima-fig9a",
        "average JCT of batches of jobs",
        "fair sharing beats SJF-CP, and Decima beats all others (Figure 9a, section 7.2)",
        setting(
            "batch",
            (20, 20),
            named(
                *("weighted-fair:oracle", "fifo", "sjf-cp", "fair", "naive-weighted-fair"),
                *sorted(_KINDS),
            ),
            _KINDS,
        ),
        drawing.cdf,
        claims=(
            Claim("sjf-cp", "fifo", paper=1 / 1.6),
            Claim("fair", "fifo", paper=1 / 2.5),
            Claim("weighted-fair:oracle", "fair", paper=0.89),
            Claim("decima", "weighted-fair:oracle", paper=0.79),
        ),
        notes=(
            "weighted-fair:oracle uses the best exponent in hindsight for every batch, as the "
            "paper's opt. weighted fair does",
        ),
        given="replaces",
        ignores=_BATCH,
        ships=True,
    ),
    Study(
        "decima-fig9b",
        "continuous arrivals: which policies keep up, and how fast jobs complete",
        "of the heuristics, only optimally weighted fair keeps up (Figure 9b, section 7.2)",
        setting(
            "",
            (200, 1_000),
            named(*(BEST, "fair", "sjf-cp", "fifo", "naive-weighted-fair"), *sorted(_KINDS)),
            _KINDS,
        ),
        drawing.over_time,
        (6, 20),
        (*CLUSTER, Measure("mean_jobs", "jobs in the system")),
        (Claim("decima", BEST, paper=0.71),),
        notes=(
            "the stream has a finite number of jobs, so a policy that cannot keep up has a long "
            "average JCT, not an infinite one; the same work takes a different time here than on "
            "the paper's cluster",
        ),
        per_run=figures.stream_facts,
        given="replaces",
        ships=True,
    ),
    Study(
        "decima-fig10",
        "one stream over time: busy periods, small jobs, work inflation",
        "Decima completes jobs faster in the busiest hours, because it gives small jobs more "
        "executors at about the same total work (Figure 10, section 7.2)",
        setting("", (200, 1_000), named(BEST, "decima"), _DECIMA_ALONE),
        partial(drawing.over_time, panels=("jobs", "jct", "size", "share", "inflation")),
        (1, 1),
        (
            _jct(),
            Measure("mean_jobs", "mean jobs"),
            Measure("most_jobs", "most jobs", 0),
            Measure("slowest_eighth_jct_s", "JCT in the busiest eighth (s)"),
            Measure("small_jct_s", "JCT of the smallest fifth (s)"),
            Measure("small_executors", "their executors"),
            Measure("inflation", "executor time / the first's", 3),
        ),
        (
            Claim("decima", BEST, key="slowest_eighth_jct_s", paper=0.5),
            Claim("decima", BEST, key="small_jct_s"),
        ),
        per_run=figures.stream_facts,
        given="replaces",
        ignores=_ONE_RUN,
        ships=True,
    ),
    Study(
        "decima-fig11",
        "executors of several sizes: average JCT compared with every baseline",
        "Decima beats Graphene* on Alibaba's trace, and on TPC-H with drawn memory by more; its "
        "memory fragmentation is within 4% to 13% of that of Tetris (Figure 11, section 7.3)",
        figures.class_parts,
        drawing.bars,
        (10, 40),
        claims=(
            Claim("decima (TPC-H)", GRAPHENE, "TPC-H", paper=0.57, source="Figure 11b"),
            Claim("decima (alibaba)", GRAPHENE, "alibaba", paper=0.68, source="Figure 11a"),
            Claim("decima (alibaba)", "tetris", "alibaba", paper=0.48),
        ),
        given="replaces",
        has_classes=True,
    ),
    Study(
        "decima-fig12",
        f"completion times by job size, and executors on the smallest jobs, over {GRAPHENE}",
        "Decima gives small jobs more of the largest executors (Figure 12, section 7.3)",
        figures.class_parts,
        partial(drawing.bars, shown=None),
        (6, 20),
        (
            Measure("*: JCT", "", over=(GRAPHENE,), has_value=False),
            Measure("smallest 20%: memory *", "", over=(GRAPHENE,), has_value=False),
            Measure("smallest 20%: all *", "", over=(GRAPHENE,), has_value=False),
        ),
        (
            Claim("decima (TPC-H)", GRAPHENE, "TPC-H", key="smallest 20%: JCT"),
            Claim("decima (alibaba)", GRAPHENE, "alibaba", key="smallest 20%: JCT"),
            Claim(GRAPHENE, "decima (alibaba)", "alibaba", key=_LARGEST, paper=1 / 1.39),
        ),
        notes=(
            "sizes are fifths of the workload's jobs by work; executors: number of different "
            "executors that ran tasks of a job, averaged over the jobs of a size",
        ),
        per_run=figures.sizes,
        given="replaces",
        has_classes=True,
    ),
    Study(
        "decima-fig13",
        "policies for other objectives and for free moving",
        "Decima learns to move executors often where that is free, and for makespan to complete "
        "many jobs together at the end (Figure 13, section 7.4)",
        figures.several(
            setting("batch", (10, 20), named("fair", *_MOVING), _MOVING, "moving costs time"),
            setting(
                "batch",
                (10, 20),
                named("fair", *_FREELY),
                _FREELY,
                "moving is free",
                moving_delay_ms=0,
            ),
        ),
        drawing.gantt,
        claims=(
            Claim("decima for (a)", "decima for (c)"),
            Claim("decima for (c)", "decima for (a)", key="makespan_s"),
            Claim("decima for (a)", "decima for (b)", key="moves"),
        ),
        notes=(
            "(a) average JCT, moving costs time; (b) average JCT, moving is free; (c) makespan, "
            "moving costs time. Free moving means no moving delay; the first tasks of a new "
            "executor are still slow",
        ),
        ignores=_BATCH,
        takes_decima=True,
    ),
    Study(
        "decima-fig14",
        "the contribution of each of Decima's parts",
        "without parallelism control, or without the graph embedding, Decima cannot keep up; "
        "without any part it is worse than weighted fair (Figure 14, section 7.4)",
        partial(
            figures.load_parts,
            loads=((0.4, 0.7), (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
            variants_of=_ABLATIONS,
        ),
        partial(drawing.lines, is_ratio=True),
        (4, 10),
        claims=(
            Claim("decima", BEST, "each"),
            *(Claim(BEST, label, "last") for label in _ABLATIONS if label not in _COMPLETE),
        ),
        notes=(
            "load: mean work that arrives / the executors' capacity with mean durations; executors "
            "are busier than that, because of delays and work inflation",
            "the variant without aligned baseline uses one baseline for all decisions of a group "
            "of runs instead of one for each point in time; it is trained by Algorithm 1, as is a "
            "complete Decima for comparison. In the paper's variant the runs of a group have "
            "different job sequences",
        ),
        ignores=_BATCH,
    ),
    Study(
        "decima-fig15a",
        "learning curves of three encodings of parallelism",
        "limits as an input learn fastest; an iteration takes 5 s (Figure 15a, section 7.4)",
        setting("", (100, 200), named(*_ENCODINGS), _ENCODINGS),
        drawing.curves,
        (4, 10),
        (_jct(), *_TRAINED),
        tuple(Claim(_INPUT, other) for other in _ENCODINGS if other != _INPUT),
    ),
    Study(
        "decima-fig15b",
        "the latency of a decision and the time between scheduling events",
        "a decision takes far less than the time between events (Figure 15b, section 7.4)",
        setting("", (100, 1_000), named("fair", "decima"), _DECIMA_ALONE),
        partial(drawing.cdf, scale="log"),
        (1, 1),
        (
            Measure("latency_ms", "latency (ms)", 3),
            Measure("latency_p99_ms", "p99 latency (ms)", 3),
            Measure("interval_ms", "interval (ms)", 0),
            Measure("interval_median_ms", "median interval (ms)", 0),
            Measure("interval / latency", "interval / latency", 0),
        ),
        (
            Claim("decima", key="latency_ms", most=15, paper=15),
            Claim("decima", key="interval / latency", paper=50),
        ),
        notes=(
            "latency is the wall time to observe and to decide; the interval is the simulated time "
            "between scheduling events; at one event the policy may make several decisions",
        ),
        play=figures.latencies,
        given="replaces",
        ignores=_ONE_RUN,
        ships=True,
    ),
    Study(
        "decima-fig16",
        "serving the critical path first is not optimal if branches join",
        "28 + 3 epsilon seconds, and 20 + 3 epsilon for the best schedule (Figure 16, Appendix A)",
        figures.join_parts,
        figures.draw_join,
        (2, 2),
        (Measure("makespan_s", "makespan (s)", over=(figures.LEAST,)),),
        (
            Claim("critical path", key="makespan_s", paper=28 + 3 * figures.EPSILON_S),
            Claim("fair", key="makespan_s", paper=20 + 3 * figures.EPSILON_S),
        ),
        notes=(
            "the text of the paper does not define the DAG of its picture: this DAG is ours and "
            "gives the numbers of the text, 90 task-seconds in the right branch (orange), 10 in "
            "the left one (green), and a join as its last stage; "
            f"epsilon is {figures.EPSILON_S:g} s, and there are no delays",
            "no schedule is shorter than the lower bound, so one that meets it is the best",
        ),
        play=figures.with_bound,
        ignores=_OWN_DAGS | {"budget", "seed"},
    ),
    Study(
        "decima-fig19",
        "the critical path, learned by embeddings with two transforms and with one",
        "with two transforms the accuracy on unseen DAGs is nearly perfect after about 150 "
        "iterations; with one transform it never becomes high and stable (Figure 19, Appendix E)",
        lambda _: [Part("", None, {})],
        partial(drawing.curves, y="accuracy on unseen DAGs", by_iteration=True),
        (1, 1),
        (
            Measure("accuracy", "accuracy (last tests)", is_share=True),
            Measure("best_accuracy", "best accuracy", is_share=True),
            Measure("error", "mean error of the path", is_share=True),
            Measure("iterations", "iterations", 0),
        ),
        notes=(
            f"unseen random DAGs of up to {critical_path.SHAPE.max_depth} layers of up to "
            f"{critical_path.SHAPE.max_width} stages; only DAGs with several stages without "
            "parents count, because with one the answer is trivial",
            "both embeddings are those of the shipped network with a linear readout; the paper "
            "does not state its DAGs or its loss; ours is the squared error of every stage's "
            "critical path",
        ),
        play=critical_path.critical_paths,
        ignores=_OWN_DAGS,
    ),
    Study(
        "decima-fig20",
        "one run over time: busy periods, and executors for each job",
        "in busy periods Decima gives each job more executors than Graphene*, finishes jobs faster "
        "and keeps fewer of them in the system (Figure 20, Appendix G)",
        figures.class_parts,
        partial(drawing.over_time, panels=("jobs", "executors", "jct")),
        (1, 1),
        (
            _jct(),
            Measure("mean_jobs", "mean jobs"),
            Measure("most_jobs", "most jobs", 0),
            Measure("busy_jobs", "jobs when busy"),
            Measure("busy_executors", "executors per job then"),
            Measure("busy_jct_s", "JCT of arrivals then (s)"),
        ),
        notes=("busy: the eighth of the time in which the first policy has most jobs",),
        per_run=figures.stream_facts,
        given="replaces",
        ignores=_ONE_RUN,
        has_classes=True,
    ),
    Study(
        "decima-fig21",
        f"executors of each class by job size, over {GRAPHENE}",
        "Decima tends to assign more executors to a job than Graphene*, and more large ones to "
        "small jobs (Figure 21, Appendix G)",
        figures.class_parts,
        partial(drawing.bars, shown=None),
        (6, 20),
        (Measure("*", "", over=(GRAPHENE,), has_value=False),),
        play=figures.parts_by_size,
        per_run=figures.sizes,
        given="replaces",
        has_classes=True,
    ),
    Study(
        "decima-fig22",
        "a simplified setting in which an exhaustive search finds the best order of the jobs",
        "SJF-CP beats weighted fair, the search SJF-CP, Decima the search (Figure 22, Appendix H)",
        figures.order_parts,
        drawing.bars,
        (10, 100),
        (_jct(figures.SEARCH),),
        (
            Claim("sjf-cp", BEST),
            Claim(figures.SEARCH, "sjf-cp"),
            Claim("decima (made here)", figures.SEARCH, paper=0.91),
        ),
        notes=(
            "every task takes its stage's mean duration and executors move without delay; an order "
            "gives all executors to the first job that can use them, with stages by critical path; "
            "the search finds the best of all orders and knows the batch in advance, the policies "
            "do not",
        ),
        play=figures.with_search,
        given="replaces",
        ignores=_BATCH,
        takes_decima=True,
    ),
    Study(
        "decima-fig23",
        "jobs whose task durations are unknown",
        "without durations Decima still beats the best heuristic (Figure 23, Appendix J)",
        figures.several(
            setting(
                "batch", (20, 20), named(BEST, "fair", "decima"), {"decima": {}}, "durations known"
            ),
            setting(
                "batch",
                (20, 20),
                {
                    **named(_BLIND),
                    "decima trained with durations, run without": "decima",
                    **named("fair"),
                },
                {_BLIND: {}},
                "durations unknown",
                unknown_share=1.0,
            ),
        ),
        drawing.bars,
        measures=(_jct(BEST), *CLUSTER[1:]),
        claims=(
            Claim("decima", _BLIND),
            Claim(_BLIND, BEST),
        ),
        notes=(
            f"ratios are to {BEST} with all durations known; fair sharing uses no durations",
            "durations unknown: every job's durations are hidden from the policy "
            "(unknown_share = 1); the jobs and their real durations are the same",
        ),
        ignores=_BATCH,
        takes_decima=True,
    ),
    Study(
        "decima-table2",
        "trained on other arrivals than those of the test",
        "at a mean gap of 45 s, Decima beats weighted fair unless trained on 75 s (Table 2)",
        figures.gap_parts,
        drawing.bars,
        (6, 20),
        claims=(
            Claim(figures.SAME_GAP, BEST),
            Claim(BEST, figures.SLOW_GAP),
            Claim(figures.MIX, BEST),
            Claim(figures.KNOWING, figures.MIX),
            Claim(figures.SAME_GAP, figures.MIX),
            *_printed(_TABLE2),
        ),
        takes_decima=True,
    ),
    Study(
        "decima-table3",
        "trained small, tested large",
        "trained with 15 times fewer jobs or 10 times fewer executors than in the test setting of "
        "150 jobs and 10,000 executors, Decima is hardly worse (Table 3, Appendix I)",
        figures.scale_parts,
        drawing.bars,
        (10, 40),
        claims=tuple(
            Claim(figures.SMALLER, figures.SAME_SIZE, where, 1.1, paper=paper)
            for where, paper in (("all jobs at once", 3_540 / 3_290), ("arrivals", 630 / 610))
        ),
        notes=(
            "the paper's two pairs have different JCTs, but the paper does not say how their tests "
            "differ: here the number of jobs is tested with all jobs at once, and the number of "
            "executors with arrivals",
        ),
        has_classes=True,
    ),
    Study(
        "objectives",
        "one policy per objective, measured on every objective",
        "Decima learns qualitatively different policies for different objectives "
        "(section 7.4, Figure 13, section 8)",
        setting("", (20, 60), named(*_RULES_OF), {**_FIRST_RULES, **_RULES_OF}),
        partial(drawing.bars, shown=None),
        (100, 400),
        tuple(
            Measure(key, str(one), over=(f"rule for {one}",), has_value=False)
            for key, one in _OBJECTIVES.items()
        ),
        ignores=frozenset({"recipe"}),
    ),
    Study(
        "shifts",
        "learned policies in settings that they were not trained for",
        "trained with a mix of workloads, Decima beats the best heuristic on an unseen one by 10% "
        "(Table 2); trained on fewer jobs or a smaller cluster, it stays within 3% to 7% of a "
        "policy trained for the setting (Table 3)",
        figures.shifted_parts,
        drawing.dots,
        measures=(
            _jct(*figures.HEURISTICS),
            Measure(JCT, "average JCT", over=("fair",), has_value=False),
        ),
        notes=("ratios are to the heuristic that is best in the setting, tuned for it",),
        given="replaces",
        ignores=frozenset({"arrivals", "recipe", "budget"}),
    ),
    Study(
        "learning-curves",
        "learning curves of all training methods, on batches",
        "Decima trains for at least 50,000 iterations (Appendix C) of 1.5 s (Appendix C) to 5 s "
        "(section 7.4), which takes 21 hours to 3 days",
        setting("batch", (20, 20), named(BEST, "fair", *_WAYS), _WAYS),
        drawing.curves,
        (20, 200),
        (_jct("fair"), *_TRAINED),
        notes=(
            "curves: average JCT / that of fair sharing on the selection runs, which no training "
            "uses; the time of the network corrector includes that of the rule it corrects; one "
            "training each",
        ),
        ignores=frozenset({"arrivals", "recipe"}),
        takes_decima=True,
    ),
    Study(
        "applications",
        "several applications on an unmodified cluster manager, over the length of tasks",
        "moving executors between jobs, Decima beats weighted fair by 21% on a modified Spark "
        "(Figure 9a, section 7.2)",
        figures.application_parts,
        partial(drawing.lines, x="length of tasks / 0.75 s", is_ratio=True),
        (6, 30),
        (_jct("FairScheduler"), Measure("executors_started", "executors started", 1)),
        (Claim("split that lends", "FairScheduler", "each", paper=0.79),),
        notes=(
            "world of cores; four applications that have a quarter of the jobs each, by work; an "
            "executor starts in 3 s (sigma 0.5) and goes after 3 s without a task; FairScheduler: "
            "dynamic allocation with fast preemption; the split that lends is the rule of "
            "`parcae serve --scope cluster`; one application orders by accounts between them",
        ),
        play=figures.between_applications,
        ignores=frozenset({"recipe", "budget"}),
    ),
)

_AGENT_NOTES = (
    "an agent (f, i): f = 1 adds the features critical path and average width (0.5: one of them); "
    f"i = 1 adds idle slots of 0 to {figures.NUM_LENGTHS}/{figures.NUM_LENGTHS} of the stage's "
    "length; otherwise it is Decima's network, with the same training and time for all. The load "
    "grows over the first half of a training",
    "srpt-cap is shortest remaining work first, which for one-stage jobs is shortest job first; "
    "idle-theory is the same with the idle slots that the theory of two jobs prescribes",
)
_LOAD_NOTES = (
    *_AGENT_NOTES,
    "load: for TPC-H and mixed jobs the share of busy executors under fair sharing, including "
    "delays and work inflation; for one-stage jobs the work that arrives / the executors' capacity",
)
#: Table I: average JCT in s.
_IDLE_TABLE1 = {
    "synthetic": {WHOLE: (46.3,), "(0,1)": (52.7,), "(1,0)": (53.5,), PLAIN: (55.0,)},
    "mixed": {WHOLE: (69.4,), "(0,1)": (75.2,), "(1,0)": (74.5,), PLAIN: (77.6,)},
}
_idle = partial(
    Study,
    measures=(_jct(PLAIN), *CLUSTER[1:]),
    notes=_AGENT_NOTES,
    given="agents",
    ignores=_BATCH,
    takes_decima=True,
    minutes=_IDLE_MINUTES,
)
_IDLE = (
    _idle(
        "idle-table1",
        "agents with and without idle slots and features of the DAG's shape",
        "idle slots and features of the DAG lower the average JCT (Table I)",
        partial(
            figures.idle_parts,
            kinds=("synthetic", "mixed"),
            agents=(PLAIN, "(1,0)", "(0,1)", WHOLE),
        ),
        drawing.bars,
        (8, 20),
        claims=tuple(
            claim
            for kind, values in _IDLE_TABLE1.items()
            for claim in (
                *(Claim(label, PLAIN, kind) for label in values if label != PLAIN),
                *_printed(values, kind),
            )
        ),
    ),
    _idle(
        "idle-fig3",
        "average JCT over the load, TPC-H jobs",
        "(1,1) is below (0,0) at every load up to 80% (Figure 3)",
        partial(
            figures.idle_parts,
            kinds=("real-world",),
            agents=(PLAIN, WHOLE),
            loads=((0.5, 0.75), (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
        ),
        drawing.lines,
        (6, 20),
        claims=(Claim(WHOLE, PLAIN, "each"),),
        notes=_LOAD_NOTES,
    ),
    _idle(
        "idle-fig4",
        "agents with all, some and no features over the load",
        "features and idle slots are best; all learning beats tuned weighted fair (Figure 4)",
        partial(
            figures.idle_parts,
            kinds=("synthetic", "mixed"),
            loads=((0.5, 0.75), (0.3, 0.45, 0.6, 0.75)),
        ),
        drawing.lines,
        (6, 20),
        claims=(Claim(WHOLE, PLAIN, "each"), Claim(WHOLE, BEST, "last")),
        notes=_LOAD_NOTES,
    ),
    _idle(
        "idle-fig5",
        "machines by length of the job, and learned idle slots compared with the theory",
        "agents give smaller jobs more machines than tuned weighted fair (Figure 5); on one-stage "
        "jobs the learned idle slots are close to those of the theory (section VI)",
        figures.slot_parts,
        partial(drawing.bars, shown=None),
        (4, 10),
        measures=(
            _jct(PLAIN),
            Measure("*: machines", "", 2),
            Measure("slot_s", "slot (s)"),
            Measure("expected_jct_s", "expected average JCT of the pair (s)", 2),
        ),
        notes=(
            "machines per job: executor time of its tasks / time in the system, by fifths of the "
            "jobs by work",
            "pairs: one machine, a one-stage job and, after an exponential gap, a job of 10 s; the "
            "slot of Theorem 2 is the best if it always lasts to its end; 'decided anew' is the "
            "best if the next arrival ends it, as in this cluster and in the paper's section IV-B; "
            "the expected times are for the latter case",
        ),
        play=figures.with_slots,
        per_run=figures.machines,
        takes_decima=False,
    ),
)

_SLOWDOWN = Measure("slowdown", "slowdown", 2, over=("tetris*",))
_RULES = {name: name for name in ("tetris*", "sjf", "packer", "random")}
_DEEPRM_NOTES = (
    "the paper's labels of loads are matched with the rates of the released code. The demands are "
    "those of the code (5 to 10 and 1 to 2 of 10 units), because with those of the text no load "
    "above 92% is possible; at low loads some sequences have no job and are left out",
    "the paper does not state the knob of Tetris*: here it is the best of about two dozen from 0 "
    "to 1 on other sequences",
    "deeprm draws its actions at random, as in the paper; greedy takes the most probable one",
)
#: Rates of the paper's loads of 70%, 110% and 130%.
_RATE_70 = 0.4
_RATE_110 = 0.6
_RATE_130 = 0.7
_DEEPRM = {"deeprm": {"kind": "deeprm"}}
_deeprm = partial(
    Study,
    runs=(100, 100),
    notes=_DEEPRM_NOTES,
    given="agents",
    ships=True,
    is_rigid=True,
    recipe="fresh",
)
_DEEPRM_STUDIES = (
    _deeprm(
        "deeprm-fig4",
        "average job slowdown by load",
        "DeepRM is comparable to and often better than all others (Figure 4, section 4.2)",
        partial(
            figures.rate_parts,
            rates=tuple(round(0.1 * k, 1) for k in range(1, 11)),
            names=_RULES,
            trainings=_DEEPRM,
        ),
        partial(drawing.lines, x="load (%, the paper's labels)"),
        measures=(_SLOWDOWN,),
        claims=(
            Claim("sjf", "packer", "last", key="slowdown"),
            Claim("tetris*", "sjf", "last", key="slowdown"),
            Claim("deeprm", "tetris*", "last", key="slowdown"),
        ),
    ),
    _deeprm(
        "deeprm-fig5",
        "two objectives at a load of 130%",
        "DeepRM is the best on the objective that it is trained for (Figure 5, section 4.2)",
        partial(
            figures.rate_parts,
            rates=(_RATE_130,),
            names={**_RULES, "tetris* for completion": "tetris* for completion"},
            trainings={
                "deeprm for slowdown": {"kind": "deeprm"},
                "deeprm for completion": {"kind": "deeprm", "cost": Cost.COMPLETION},
            },
        ),
        partial(drawing.bars, shown=2),
        measures=(
            _SLOWDOWN,
            Measure("completion", "completion time (steps)", 2, over=("tetris* for completion",)),
        ),
        claims=(
            Claim("deeprm for slowdown", "tetris*", key="slowdown"),
            Claim("deeprm for completion", "tetris* for completion", key="completion"),
        ),
    ),
    _deeprm(
        "deeprm-fig6",
        "learning curves at a load of 70%",
        "the first policy is no better than random; the gap between the best and the mean reward "
        "narrows towards iteration 1,000 (Figure 6, section 4.3)",
        partial(
            figures.rate_parts,
            rates=(_RATE_70,),
            trainings={
                f"deeprm, {recipe}": {"kind": "deeprm", "recipe": recipe} for recipe in RECIPES
            },
            names=_RULES,
            is_watched=True,
        ),
        partial(drawing.curves, y="average job slowdown", by_iteration=True),
        measures=(
            _SLOWDOWN,
            Measure("training_s", "seconds of training", 0),
            Measure("passed *", "", 0),
        ),
        claims=(Claim("deeprm, paper", key="passed tetris* in iteration", most=200, paper=200),),
        notes=(
            "recipe paper: the same 100 sequences in all iterations; fresh: 100 new sequences in "
            "each iteration; fast: as fresh, with Adam, and the only actions are to start a job "
            "now or to let time pass; every sequence is run 20 times",
            "a training passes a policy at the first of three measured iterations in a row that "
            "are below it; the table shows the checkpoints that were best on the selection runs",
            *_DEEPRM_NOTES,
        ),
        play=figures.with_crossings,
        given="",
        ignores=frozenset({"recipe"}),
        ships=False,
    ),
    _deeprm(
        "deeprm-fig7",
        "which jobs are withheld at a load of 110%, and which jobs gain",
        "DeepRM withholds almost only large jobs, to the advantage of small ones (Figure 7, "
        "section 4.3)",
        partial(
            figures.rate_parts,
            rates=(_RATE_110,),
            names={"tetris*": "tetris*"},
            trainings=_DEEPRM,
        ),
        partial(drawing.bars, shown=None),
        measures=(
            Measure("withheld", "steps with a job withheld", is_share=True),
            Measure("withheld_of_waiting", "of steps with jobs waiting", is_share=True),
            Measure("large_of_withheld", "large among the withheld", is_share=True),
            Measure("slowdown, small jobs", "slowdown of small jobs", 2, over=("tetris*",)),
            Measure("slowdown, large jobs", "slowdown of large jobs", 2, over=("tetris*",)),
        ),
        claims=(
            Claim("deeprm", key="withheld", paper=0.234),
            Claim("deeprm", "tetris*", key="slowdown, small jobs"),
            Claim("tetris*", "deeprm", key="slowdown, large jobs"),
        ),
        notes=(
            "withheld: time passed although a waiting job fitted; a job counts once for each step "
            "in which it is withheld; small jobs take up to 3 steps, large ones 10 or more",
            *_DEEPRM_NOTES,
        ),
        play=figures.withheld,
        given="replaces",
    ),
)

#: The paper's policies by our labels. Its Tetris orders jobs "by a combined score of preferences
#: for the short jobs and resource packing" (section 4.4), whose weights it does not give: ours are
#: tuned. Its random policy starts any job that fits.
_RIVALS = {
    "random": "random-greedy",
    "random, any action": "random",
    "packer": "packer",
    "tetris": "tetris*",
    "sjf": "sjf",
}
_A2C_KEYS = ("slowdown", "completion", "waiting")
#: Tables 1 and 2 by rate, and Table 4: slowdown, completion and waiting time of random, tetris,
#: sjf and a2c.
_A2C_TABLES = {
    "rate 0.9": ((5.5, 12.51, 8.22), (2.9, 8.61, 3.32), (1.81, 7.42, 2.21), (2.03, 7.2, 2.2)),
    "rate 0.8": ((6.2, 14.21, 9.15), (3.25, 8.5, 1.93), (2.52, 6.5, 2.12), (2.3, 6.2, 2.1)),
    "rate 0.7": ((5.05, 13.15, 8.32), (3.32, 10.02, 4.51), (2.14, 7.66, 2.53), (1.91, 6.1, 1.82)),
    "rate 0.6": ((3.22, 10.0, 8.32), (1.82, 5.5, 1.48), (1.56, 5.5, 1.48), (1.36, 5.5, 1.5)),
    "each": ((3.52, 10.2, 6.32), (1.82, 5.55, 1.25), (1.61, 5.51, 1.21), (1.01, 2.58, 0.01)),
}


def _a2c_claims(*places: str) -> tuple[Claim, ...]:
    """For every measure and every two policies that differ in the paper, which is below which; and
    the measures.
    """
    claims: list[Claim] = []
    for where in places:
        values = dict(zip(("random", "tetris", "sjf", "a2c"), _A2C_TABLES[where], strict=True))
        for column, key in enumerate(_A2C_KEYS):
            for pair in itertools.combinations(values, 2):
                better, worse = sorted(pair, key=lambda label: values[label][column])
                if values[better][column] < values[worse][column]:
                    claims.append(Claim(better, worse, where, key=key))
        claims += _printed(values, where, _A2C_KEYS)
    return tuple(claims)


_a2c = partial(
    Study,
    draw=drawing.bars,
    runs=(100, 100),
    measures=(
        Measure("slowdown", "slowdown", 2, over=("sjf",)),
        Measure("completion", "completion time", 2),
        Measure("waiting", "waiting time", 2),
    ),
    notes=(
        "no setting that we tried gives the published values, and they are inconsistent: "
        "completion time minus waiting time is the mean duration, which is equal for all policies "
        "on the same jobs, but in the paper it differs (rate 0.9: 4.29, 5.29, 5.21 and 5.00); "
        "compare orderings, not values",
        "tetris: a score of short jobs and packing together, as the paper says (section 4.4) "
        "without their weights; the weight of packing is the one of about two dozen, from 0 (sjf) "
        "to 1 (packer), that is best on other sequences. random starts any job that fits, as the "
        "paper's baselines do; a2c draws its actions at random, greedy takes the most probable "
        "ones. It chooses among the jobs that can start, and has a hidden layer unless the "
        "settings say otherwise; the paper chooses any of the N jobs, and names no hidden layer",
    ),
    given="agents",
    is_rigid=True,
)
# Deviation: A2cScheduler 4.3 decides against pooling. The shipped policy of tables 1 and 2 has it,
# because with it a training plays twice as many decisions in the same time.
_A2C_TRAINING = {
    "a2c": {
        "kind": "a2c",
        "options": ("architecture=conv3-16",),
        "select_every": 20,
        "num_selection": 200,
    }
}


def _rates(number: int, rates: tuple[float, float]) -> Study:
    """Table 1 or 2 of A2cScheduler."""
    return _a2c(
        f"a2c-table{number}",
        f"A2cScheduler and its baselines at job rates of {rates[0]:g} and {rates[1]:g}",
        f"A2cScheduler is best or close to it at every rate (Table {number}, section 4.5)",
        partial(
            figures.rate_parts,
            rates=rates,
            names=_RIVALS,
            trainings=_A2C_TRAINING,
            by_load=False,
        ),
        claims=_a2c_claims(*(f"rate {rate:g}" for rate in rates)),
        ships=True,
    )


_A2C = (
    _rates(1, (0.9, 0.8)),
    _rates(2, (0.7, 0.6)),
    _a2c(
        "a2c-table3",
        "five architectures of A2cScheduler at a job rate of 0.7",
        "a fully connected layer does not converge; 3x3 convolutions do, better without pooling; "
        "16 filters are fastest (Table 3)",
        partial(
            figures.rate_parts,
            rates=(0.7,),
            trainings={
                one.value: {
                    "kind": "a2c",
                    "options": (f"architecture={one.value}",),
                    "num_selection": 200,
                }
                for one in Architecture
            },
            by_load=False,
            has_greedy=False,
        ),
        draw=partial(drawing.curves, y="slowdown on the selection's runs"),
        measures=(
            Measure("slowdown", "slowdown", 2),
            Measure("parameters", "parameters", 0),
            Measure("converged_iteration", "converged after iterations", 0),
            Measure("converged_s", "after seconds", 0),
            Measure("decisions_per_s", "decisions/s", 0),
        ),
        claims=(
            *(
                Claim(better, worse, key="slowdown")
                for better, worse in (
                    ("conv3-16", "fc"),
                    ("conv3-32", "fc"),
                    ("conv3-16", "conv3-16-pool"),
                    ("conv3-32", "conv3-32-pool"),
                )
            ),
            *_printed(
                {
                    "conv3-16": (500,),
                    "conv3-32": (1_100,),
                    "conv3-16-pool": (700,),
                    "conv3-32-pool": (900,),
                },
                keys=("converged_iteration",),
            ),
        ),
        notes=(
            "converged: the mean slowdown of the last quarter of the measurements is at least 10% "
            "below that of the first iteration and at most 5% below that of the quarter before; "
            "it converged at the first measurement from which on all are within 5% of that mean; "
            "there must be at least 8 measurements, each on the same 200 runs, which are used "
            "neither for training nor for evaluation. The paper does not define its criterion",
            "all architectures are trained for the same time, so a slower one has fewer iterations",
        ),
        play=figures.with_convergence,
        given="",
    ),
    _a2c(
        "a2c-table4",
        "A2cScheduler on a real log",
        "A2cScheduler reduces the waiting time to almost 0 (Table 4, section 4.5)",
        partial(figures.log_parts, names=_RIVALS),
        claims=_a2c_claims("each"),
        needs_log=True,
    ),
)

#: All studies by name.
STUDIES: dict[str, Study] = {
    study.name: study for study in (*_DECIMA, *_IDLE, *_DEEPRM_STUDIES, *_A2C)
}
