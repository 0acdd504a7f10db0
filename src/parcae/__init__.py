"""Parcae learns how to schedule the jobs of a data-processing cluster.

    import parcae

    cluster = parcae.Cluster(cores=50)
    jobs = parcae.workload("tpch").draw(100, "load:0.85", cluster, seed=1)
    run = parcae.simulate(jobs, "fair", cluster)
    print(run.average_jct_s)
    print(parcae.compare(jobs, ["fair", "srpt"], cluster, seeds=20).to_frame())

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parcae.api.catalog import list_policies, read_event_logs, workload
    from parcae.api.cluster import Cluster
    from parcae.api.comparing import compare, report
    from parcae.api.learning import learn, train
    from parcae.api.runs import Run, simulate
    from parcae.api.serving import serve
    from parcae.base.errors import ParcaeError
    from parcae.cluster.observation import Decision, Observation
    from parcae.cluster.orders import Orders, first_come
    from parcae.environments.models import ModelPolicy
    from parcae.evaluation.comparison import Comparison
    from parcae.policies.own import JobView, SchedulerView, StageView
    from parcae.workloads.workload import JobSequence, Workload

from parcae.base.texts import __version__

__all__ = [
    "Cluster",
    "Comparison",
    "Decision",
    "JobSequence",
    "JobView",
    "ModelPolicy",
    "Observation",
    "Orders",
    "ParcaeError",
    "Run",
    "SchedulerView",
    "StageView",
    "Workload",
    "__version__",
    "compare",
    "first_come",
    "learn",
    "list_policies",
    "read_event_logs",
    "report",
    "serve",
    "simulate",
    "train",
    "workload",
]

_MODULE_OF = {
    "Cluster": "parcae.api.cluster",
    "Comparison": "parcae.evaluation.comparison",
    "Decision": "parcae.cluster.observation",
    "JobSequence": "parcae.workloads.workload",
    "JobView": "parcae.policies.own",
    "ModelPolicy": "parcae.environments.models",
    "Observation": "parcae.cluster.observation",
    "Orders": "parcae.cluster.orders",
    "ParcaeError": "parcae.base.errors",
    "Run": "parcae.api.runs",
    "SchedulerView": "parcae.policies.own",
    "StageView": "parcae.policies.own",
    "Workload": "parcae.workloads.workload",
    "compare": "parcae.api.comparing",
    "first_come": "parcae.cluster.orders",
    "learn": "parcae.api.learning",
    "list_policies": "parcae.api.catalog",
    "read_event_logs": "parcae.api.catalog",
    "report": "parcae.api.comparing",
    "serve": "parcae.api.serving",
    "simulate": "parcae.api.runs",
    "train": "parcae.api.learning",
    "workload": "parcae.api.catalog",
}


def __getattr__(name: str) -> object:
    """Load a name of the front door when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'parcae' has no attribute {name!r}")
    from parcae.base.extensions import naming_extras

    with naming_extras():
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The front door's names, loaded or not."""
    return sorted({*globals(), *__all__})
