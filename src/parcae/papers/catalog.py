"""All studies by name, and `reproduce`, which runs one and writes its result."""

from __future__ import annotations

import time
from dataclasses import replace

from parcae.base.errors import ConfigError, suggestion
from parcae.base.texts import MS_PER_S
from parcae.learning.scenario import check_search_seed
from parcae.papers import a2c, idle
from parcae.papers.a2c import table3, table4
from parcae.papers.ablations import fig14, fig15a
from parcae.papers.batch import fig3, fig9a
from parcae.papers.cross_objectives import cross_objectives
from parcae.papers.curves import learning_curves
from parcae.papers.deeprm import fig4, fig5, fig6, fig7
from parcae.papers.idle_lengths import fig5 as idle_fig5
from parcae.papers.join import fig16
from parcae.papers.latency import fig15b
from parcae.papers.multi_resource import fig11
from parcae.papers.multi_resource_scale import table3 as scale_table3
from parcae.papers.multi_resource_sizes import fig12, fig21
from parcae.papers.multi_resource_time import fig20
from parcae.papers.objectives import fig13
from parcae.papers.orders import fig22
from parcae.papers.robustness import fig23, table2
from parcae.papers.shifts import shifts
from parcae.papers.stream import fig9b, fig10
from parcae.papers.study import (
    FULL_MINUTES,
    QUICK_MINUTES,
    Origin,
    PackingRequest,
    PackingStudy,
    Study,
    StudyFiles,
    StudyRequest,
    StudyResult,
    settings_of,
    write_study,
)
from parcae.papers.supervised import fig19
from parcae.simulation.config import SimulationConfig
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.job import Workload

STUDIES: dict[str, Study] = {
    "decima-fig3": fig3,
    "decima-fig9a": fig9a,
    "decima-fig9b": fig9b,
    "decima-fig10": fig10,
    "decima-fig11": fig11,
    "decima-fig12": fig12,
    "decima-fig13": fig13,
    "decima-fig14": fig14,
    "decima-fig15a": fig15a,
    "decima-fig15b": fig15b,
    "decima-fig16": fig16,
    "decima-fig19": fig19,
    "decima-fig20": fig20,
    "decima-fig21": fig21,
    "decima-fig22": fig22,
    "decima-fig23": fig23,
    "decima-table2": table2,
    "decima-table3": scale_table3,
    "idle-table1": idle.table1,
    "idle-fig3": idle.fig3,
    "idle-fig4": idle.fig4,
    "idle-fig5": idle_fig5,
    "objectives": cross_objectives,
    "shifts": shifts,
    "learning-curves": learning_curves,
}

#: Studies of executor classes. They use Decima's classes unless the request has others.
CLASS_STUDIES = ("decima-fig11", "decima-fig12", "decima-fig20", "decima-fig21", "decima-table3")
#: Load of a recorded trace in these studies, as a share of what the classes can serve.
TRACE_LOAD = 0.8

#: Studies whose trainings all go with any settings of Decima's network. The others compare parts of
#: the network, train with executor classes, or train no network.
DECIMA_SETTINGS_STUDIES = (
    "decima-fig13",
    "decima-fig22",
    "decima-fig23",
    "decima-table2",
    "idle-table1",
    "idle-fig3",
    "idle-fig4",
    "learning-curves",
)

#: Studies of one DAG, or of random DAGs, of their own.
_OWN_DAGS = ("decima-fig16", "decima-fig19")
#: By the field of a request, the studies that do not use it.
UNUSED: dict[str, tuple[str, ...]] = {
    "workload": _OWN_DAGS,
    "config": _OWN_DAGS,
    "num_jobs": _OWN_DAGS,
    # They have batches, loads of their own, or a load that keeps a share of the executors busy.
    "stream": (
        *("decima-fig3", "decima-fig9a", "decima-fig13", "decima-fig14", *_OWN_DAGS),
        *("decima-fig22", "decima-fig23", "shifts", "learning-curves"),
        *("idle-table1", "idle-fig3", "idle-fig4", "idle-fig5"),
    ),
    # They compare trainings with each other.
    "policies": (
        *("decima-fig13", "decima-fig14", "decima-fig15a", *_OWN_DAGS, "decima-fig23"),
        *("decima-table2", "decima-table3", "objectives", "learning-curves", "a2c-table3"),
        "deeprm-fig6",
    ),
    # They show one run.
    "num_runs": ("decima-fig10", "decima-fig15b", *_OWN_DAGS, "decima-fig20"),
    "recipe": (*_OWN_DAGS, "objectives", "shifts", "learning-curves", "deeprm-fig6"),
    # They train nothing.
    "budget_s": ("decima-fig16", "shifts"),
    # It shows one DAG, whose durations are fixed.
    "seed": ("decima-fig16",),
    "is_full": ("decima-fig16",),
}

#: Studies whose learned policies ship, so that they train only where the request says so, or where
#: none ships for a setting.
_WITH_SHIPPED = (
    *("decima-fig3", "decima-fig9a", "decima-fig9b", "decima-fig10", "decima-fig15b"),
    *("deeprm-fig4", "deeprm-fig5", "deeprm-fig7", "a2c-table1", "a2c-table2"),
)

#: Studies that train nothing where the request names policies.
REPLACED_BY_POLICIES = (
    *("decima-fig3", "decima-fig9a", "decima-fig9b", "decima-fig10", "decima-fig11"),
    *("decima-fig12", "decima-fig15b", "decima-fig20", "decima-fig21", "decima-fig22"),
    "deeprm-fig7",
)

#: Packing studies, which take a `PackingRequest`.
PACKING_STUDIES: dict[str, PackingStudy] = {
    "deeprm-fig4": fig4,
    "deeprm-fig5": fig5,
    "deeprm-fig6": fig6,
    "deeprm-fig7": fig7,
    "a2c-table1": a2c.table1,
    "a2c-table2": a2c.table2,
    "a2c-table3": table3,
    "a2c-table4": table4,
}

#: Default arrivals of studies with continuous arrivals. On the profile of Decima's authors this is
#: a mean gap of 25 s, as in their released code.
DEFAULT_STREAM = "load:0.7"
#: Minutes of training in the studies of idle slots, which train up to a dozen agents.
_IDLE_MINUTES = 10.0
#: If the jobs have less work than this on average, the cluster is small and its delays are short.
_SMALL_JOB_MS = 100 * MS_PER_S
_SMALL_CLUSTER = SimulationConfig(num_executors=20, moving_delay_ms=200, warmup_delay_ms=100)


def paper_setting(workload: Workload) -> tuple[Workload, SimulationConfig]:
    """A cluster whose size and delays fit the workload's jobs.

    Jobs of minutes run on the paper's cluster (50 executors, moving delay 2 s, warm-up delay 1 s).
    The small jobs of the bundled profile have tasks of fractions of a second. They run on 20
    executors with a tenth of the delays, and get the measured slowdown of the paper's cluster at
    high parallelism.
    """
    # Jobs of minutes.
    if workload.mean_work_ms >= _SMALL_JOB_MS:
        return workload, SimulationConfig()
    return with_parallelism_model(workload, "decima-cluster"), _SMALL_CLUSTER


def training_minutes(name: str, is_full: bool) -> float:
    """Default minutes for all trainings of a study together."""
    return FULL_MINUTES if is_full else _IDLE_MINUTES if name.startswith("idle-") else QUICK_MINUTES


def find_study(name: str) -> Study | PackingStudy:
    """The study with a name."""
    known: dict[str, Study | PackingStudy] = {**STUDIES, **PACKING_STUDIES}
    if name in known:
        return known[name]
    hint = suggestion(name, known, "choose one of")
    raise ConfigError(f"unknown study {name!r}; {hint}")


def _trains(name: str, request: StudyRequest | PackingRequest) -> bool:
    """Whether it is certain that a study will train; its seed is then that of trainings."""
    if request.policies or name in UNUSED["budget_s"]:
        return False
    return request.trains_anew or name not in _WITH_SHIPPED


def _run(name: str, request: StudyRequest | PackingRequest) -> StudyResult:
    # The study gets its own folder for checkpoints; the result goes to the request's folder.
    folder = request.output / f"{name}-policies"
    if isinstance(request, PackingRequest) and name in PACKING_STUDIES:
        return PACKING_STUDIES[name](replace(request, output=folder))
    if isinstance(request, StudyRequest) and name in STUDIES:
        return STUDIES[name](replace(request, output=folder))
    raise ConfigError(
        f"study {name!r} takes a {'PackingRequest' if name in PACKING_STUDIES else 'StudyRequest'}"
    )


def reproduce(
    name: str, request: StudyRequest | PackingRequest, command: str = ""
) -> tuple[StudyResult, StudyFiles]:
    """Run a study and write its table, picture and numbers into the request's folder.

    Trained policies are written to the subfolder NAME-policies.

    Example: `reproduce("decima-fig16", request)` writes decima-fig16.md, .png and .json.
    """
    find_study(name)
    if _trains(name, request):
        check_search_seed(request.seed)
    request.output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    result = _run(name, request)
    origin = Origin(name, time.perf_counter() - began, command, settings_of(request))
    return result, write_study(result, origin, request.output)
