"""The service for live applications, with any policy of the world of cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parcae.api.checks import check_cluster, check_workload
from parcae.policies.own import PolicyLike, name_of, policy_object
from parcae.service.policies import LivePolicy, with_new_memory
from parcae.service.serve import serve as run
from parcae.service.serve import settings_of
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.workload import Workload


def serve(
    policy: PolicyLike,
    workload: Workload,
    cluster: SimulationConfig | None = None,
    *,
    on_ready: Callable[[int, int | None], None] = lambda port, admin_port: None,
    **settings: Any,
) -> None:
    """Plan for live applications until SIGTERM or Ctrl-C, or for `for_s` seconds.

    Args:
        policy: a name, a policy object, or a function over a `SchedulerView`.
        workload: the profile in which the durations of arriving jobs are looked up.
        cluster: its number of cores is what the service expects; 50 unless given.
        on_ready: called with the port and the admin side's port once clients may connect.
        **settings: other fields of `parcae.service.serve.ServeSettings` (`port`, `for_s`, ...);
            paths and the scope may be given as text.

    Raises:
        PolicyError: no such policy, or one of Decima's world.
        ConfigError: something else than a workload or a cluster, settings that do not exist or
            have invalid values, or a thread with an event loop, such as that of a notebook: serve
            in a thread of its own there.
        OSError: settings that do not work on this machine.
    """
    check_workload(workload)
    expected = cluster or SimulationConfig(world=WorldName.CORES)
    check_cluster(expected)
    made = policy_object(policy, workload, expected)
    given = settings_of(name_of(policy), expected.total_executors, settings)
    if isinstance(made, str):
        run(given, workload, on_ready)
    else:
        # Every cluster gets a policy of its own, whose memory is that cluster's.
        run(given, workload, on_ready, lambda num_cores: LivePolicy(with_new_memory(made)))
