"""Sixty small wrong changes, of the kind that a tired engineer makes, and the tests that notice.

A fault is found by its text, wherever the code lies. Its snippet must occur exactly once.
"""

from __future__ import annotations

from typing import NamedTuple

AREAS = (
    "cores",
    "executors",
    "rigid",
    "importer",
    "orders",
    "decima",
    "service",
    "plugin",
    "statistics",
    "sizing",
    "checkpoints",
)


class Fault(NamedTuple):
    """One wrong change."""

    name: str
    area: str  # one of AREAS
    right: str  # the text as it should be
    wrong: str
    tests: str  # arguments of pytest, paths relative to tests/


FAULTS = (
    # The world of cores: transitions, dispatcher, event loop, faults, elastic clusters.
    Fault(
        "share-times-weight",
        "cores",
        "return state.jobs.num_attached[job] / weight if weight > 0.0 else 0.0",
        "return state.jobs.num_attached[job] * weight if weight > 0.0 else 0.0",
        "cluster/test_cores.py -k over_weight",
    ),
    Fault(
        "job-limit-counts-starts-only",
        "cores",
        "room = min(room, state.job_orders.limit[job] - state.jobs.num_attached[job])",
        "room = min(room, state.job_orders.limit[job])",
        "oracle/test_cores_against_oracle.py -k orders_of_tiers",
    ),
    Fault(
        "stage-limit-counts-starts-only",
        "cores",
        "room = min(room, state.stage_orders.limit[stage] - state.stages.num_bound[stage])",
        "room = min(room, state.stage_orders.limit[stage])",
        "oracle/test_cores_against_oracle.py -k orders_of_tiers",
    ),
    Fault(
        "no-plan-when-a-stage-is-exhausted",
        "cores",
        "state.jobs.num_unstarted[state.stages.job[stage]] -= 1\n    state.now.is_plan_due[0] = 1",
        "state.jobs.num_unstarted[state.stages.job[stage]] -= 1",
        "cluster/test_cores.py -k plan_is_due",
    ),
    Fault(
        "needy-pool-at-its-share",
        "cores",
        "is_needy_1 = running_1 < min_1",
        "is_needy_1 = running_1 <= min_1",
        "golden oracle/test_cores_against_oracle.py -k 'minimum_share or inside_pools'",
    ),
    Fault(
        "task-set-names-as-numbers",
        "cores",
        "while first >= 10 * scale_1:",
        "while first > 10 * scale_1:",
        "cluster/test_cores.py -k by_name",
    ),
    Fault(
        "stalled-with-running-tasks",
        "cores",
        "could_run = now.num_idle[0] == now.num_executors[0] and now.num_schedulable[0] > 0",
        "could_run = now.num_idle[0] > 0 and now.num_schedulable[0] > 0",
        "cluster/test_cores.py",
    ),
    Fault(
        "late-wake-up",
        "cores",
        "max(state.now.wake_ms[0], state.now.clock_ms[0] + 1))",
        "max(state.now.wake_ms[0], state.now.clock_ms[0] + 1000))",
        "simulation/test_orders.py",
    ),
    Fault(
        "elastic-needs-rounded-down",
        "cores",
        "return (tasks + cores - 1) // cores",
        "return tasks // cores",
        "oracle/test_elastic_against_oracle.py -k 'random_sets and fair'",
    ),
    Fault(
        "idle-since-the-first-core",
        "cores",
        "idle_ms = max(idle_ms, future.core_idle_ms[core])",
        "idle_ms = min(idle_ms, future.core_idle_ms[core])",
        "oracle/test_elastic_against_oracle.py -k 'random_sets and fair'",
    ),
    Fault(
        "one-failure-too-many",
        "cores",
        "is_last = num_failures >= faults.max_failures[0] - 1",
        "is_last = num_failures >= faults.max_failures[0]",
        "simulation/test_faults.py",
    ),
    Fault(
        "median-of-all-tasks",
        "cores",
        "future.fault_stages.first_row[stage] + state.stages.num_finished[stage] // 2",
        "future.fault_stages.first_row[stage] + state.stages.num_tasks[stage] // 2",
        "oracle/test_faults_against_oracle.py -k 'of_the_oracle and speculation'",
    ),
    # The world of executors: tables, moves, waves, idle slots, event queue, draws.
    Fault(
        "demand-without-moving-executors",
        "executors",
        "return waiting - stages.num_committed[stage] - stages.num_moving[stage]",
        "return waiting - stages.num_committed[stage]",
        "simulation/test_oracle.py -k random_decisions",
    ),
    Fault(
        "latest-idle-executor-first",
        "executors",
        "sources.idle_tail[row] = executor\n    sources.num_idle[row] += 1",
        "sources.num_idle[row] += 1",
        "cluster/test_transitions.py -k queue",
    ),
    Fault(
        "last-runnable-stage-first",
        "executors",
        "if rank >= 0 and (best == NO_STAGE or rank < best_rank) and is_schedulable(state, stage):",
        "if rank >= 0 and (best == NO_STAGE or rank > best_rank) and is_schedulable(state, stage):",
        "simulation/test_oracle.py -k 'same_tasks and fair and batch'",
    ),
    Fault(
        "events-without-push-order",
        "executors",
        "(relative << (_KEY_BITS - TIME_BITS)) | (counter << slot_bits) | executor",
        "(relative << (_KEY_BITS - TIME_BITS)) | executor",
        "simulation/test_draws_and_events.py",
    ),
    Fault(
        "waves-swapped",
        "executors",
        "(_REST if previous == stage else _FIRST)",
        "(_FIRST if previous == stage else _REST)",
        "golden -k first_wave",
    ),
    Fault(
        "hold-left-in-the-gap",
        "executors",
        "state.holds[row] = state.holds[state.now.num_holds[0]]\n            ",
        "",
        "cluster/test_transitions.py",
    ),
    Fault(
        "slot-for-more-executors-than-tasks",
        "executors",
        "stage_ms = stages.task_ms[stage] * left / max(1, min(limit, left))",
        "stage_ms = stages.task_ms[stage] * left / max(1, limit)",
        "cluster/test_transitions.py -k idle_slot",
    ),
    Fault(
        "global-pool-not-offered",
        "executors",
        "if position > now.num_active[0] or now.num_schedulable[0] == 0:",
        "if position >= now.num_active[0] or now.num_schedulable[0] == 0:",
        "cluster golden",
    ),
    # Rigid jobs: placing, costs, backfilling.
    Fault(
        "as-coded-horizon",
        "rigid",
        "last = horizon - length - rules.as_coded",
        "last = horizon - length",
        "packing/test_speed_and_cost.py -k 'horizon or quirks'",
    ),
    Fault(
        "backlog-from-its-beginning",
        "rigid",
        "state.backlog[(clock.first_backlog + clock.num_backlog) % state.backlog.shape[0]]",
        "state.backlog[clock.num_backlog % state.backlog.shape[0]]",
        "packing/test_against_plain.py",
    ),
    Fault(
        "makespan-before-the-first-arrival",
        "rigid",
        "if is_busy and clock.num_arrived > 0:",
        "if is_busy:",
        "packing/test_speed_and_cost.py -k makespan_counts",
    ),
    Fault(
        "backfilled-job-must-end-before",
        "rigid",
        "if view.head[0].now + view.jobs.estimate[row] <= view.points[shadow]:",
        "if view.head[0].now + view.jobs.estimate[row] < view.points[shadow]:",
        "policies/packing/test_catalog.py packing/test_against_plain.py",
    ),
    Fault(
        "reservation-of-one-point-less",
        "rigid",
        "while last < plan.num_points[0] and plan.points[last] < end:",
        "while last + 1 < plan.num_points[0] and plan.points[last] < end:",
        "policies/packing/test_catalog.py packing/test_against_plain.py",
    ),
    # The reader of Spark's event logs.
    Fault(
        "nearest-level-by-difference",
        "importer",
        "key=lambda level: abs(math.log(level / max(num_slots, 1)))",
        "key=lambda level: abs(level - max(num_slots, 1))",
        "workloads/test_spark_event_log.py workloads/test_spark_event_log_dag.py",
    ),
    Fault(
        "slot-that-was-free-longest",
        "importer",
        "key=lambda slot: (slot.stage_id == stage_id, slot.free_ms)",
        "key=lambda slot: (slot.stage_id == stage_id, -slot.free_ms)",
        "workloads/test_spark_event_log_dag.py",
    ),
    Fault(
        "end-of-the-attempt-read-last",
        "importer",
        "self.completion_ms = max(self.completion_ms, other.completion_ms)",
        "self.completion_ms = other.completion_ms",
        "workloads/test_spark_event_log_dag.py",
    ),
    Fault(
        "attempt-launched-first",
        "importer",
        "np.lexsort((tasks.finish_ms[succeeded], tasks.task_index[succeeded]))",
        "np.lexsort((tasks.launch_ms[succeeded], tasks.task_index[succeeded]))",
        "workloads/test_spark_event_log_dag.py",
    ),
    Fault(
        "skipped-parent-is-dropped",
        "importer",
        "        elif info:\n            pending += info.parents or ()\n    return executed",
        "    return executed",
        "workloads/test_spark_event_log_dag.py",
    ),
    Fault(
        "first-run-of-any-application",
        "importer",
        "first.setdefault(ordered.run.application, ordered)",
        'first.setdefault("", ordered)',
        "workloads/test_spark_event_log_dag.py workloads/test_spark_event_log.py",
    ),
    # Orders: formulas, the rule and the network of the world of cores.
    Fault(
        "late-jobs-last",
        "orders",
        "            orders.jobs.tier[job] = -1.0\n",
        "            orders.jobs.tier[job] = 1e11\n",
        "policies/test_order_catalog.py -k outlives",
    ),
    Fault(
        "half-of-running-tasks-forgotten",
        "orders",
        "attained_ms += 0.5 * stages.num_bound[stage] * task_ms",
        "attained_ms += stages.num_bound[stage] * task_ms",
        "policies/test_order_catalog.py -k attained",
    ),
    Fault(
        "smallest-index-first",
        "orders",
        "orders.jobs.tier[job] = -_gittins_index(view, tables, job)",
        "orders.jobs.tier[job] = _gittins_index(view, tables, job)",
        "policies/test_order_catalog.py -k gittins",
    ),
    Fault(
        "estimate-without-correction",
        "orders",
        "left_ms = unstarted_ms(state, job) * correction(state, job)",
        "left_ms = unstarted_ms(state, job)",
        "cluster/test_cores.py",
    ),
    Fault(
        "one-probe-too-many",
        "orders",
        "if facts.num_started < probes:",
        "if facts.num_started <= probes:",
        "spark/test_guest_java.py -k orders_are_those_of_the_kernels",
    ),
    Fault(
        "rank-without-the-last",
        "orders",
        "row[OrderFeature.RANK] = place / count",
        "row[OrderFeature.RANK] = (place + 1) / count",
        "policies/test_order_network.py",
    ),
    # Decima's network, rule and heuristics.
    Fault(
        "fair-cap-rounded-down",
        "decima",
        "cap = (view.now.num_executors[0] + num_jobs - 1) // num_jobs",
        "cap = view.now.num_executors[0] // num_jobs",
        "policies/test_multi_resource.py -k rounded_up",
    ),
    Fault(
        "shortest-path-first",
        "decima",
        "or (runnable == best_runnable and path > best_path)",
        "or (runnable == best_runnable and path < best_path)",
        "policies/test_multi_resource.py -k longest_path",
    ),
    Fault(
        "dearest-level",
        "decima",
        "cost = rule.stretch[row, column] * (1.0 + scale * levels[column])",
        "cost = rule.stretch[row, column] * (1.0 + scale * column)",
        "policies/test_rule.py -k price_counts",
    ),
    Fault(
        "graph-forgets-who-ended",
        "decima",
        "has_changed = not (is_same and has_same_number)",
        "has_changed = not is_same",
        "learning/test_networks.py -k kept_embeddings",
    ),
    # The live service.
    Fault(
        "same-number-twice",
        "service",
        "if message.seq <= self._last_seq:",
        "if message.seq < self._last_seq:",
        "service/test_session.py -k 'numbers_and_clocks or old_number'",
    ),
    Fault(
        "wakes-a-moment-late",
        "service",
        "self.clock_ms >= max(wake_ms, self._planned_ms + 1):",
        "self.clock_ms > max(wake_ms, self._planned_ms + 1):",
        "service/test_mirror.py",
    ),
    Fault(
        "frame-that-ends-the-buffer-waits",
        "service",
        "if len(self._buffer) < end:",
        "if len(self._buffer) <= end:",
        "service/test_protocol.py",
    ),
    Fault(
        "one-connection-too-many",
        "service",
        "if self.server.num_welcomed >= self.server.most_welcomed:",
        "if self.server.num_welcomed > self.server.most_welcomed:",
        "service/test_server.py -k one_client_too_many",
    ),
    Fault(
        "recording-never-full",
        "service",
        "file.size += len(whole)",
        "file.size = len(whole)",
        "service/test_record_and_replay.py",
    ),
    Fault(
        "one-sample-for-many-tasks",
        "service",
        "samples += [round(event.executed_ms / event.finished)] * event.finished",
        "samples += [round(event.executed_ms / event.finished)]",
        "service/test_record_and_replay.py",
    ),
    Fault(
        "part-of-an-executor-not-wanted",
        "service",
        "needed = -(-int(tasks[rows].sum()) // self.executor_cores)",
        "needed = int(tasks[rows].sum()) // self.executor_cores",
        "service/test_sharing.py",
    ),
    # The plugin in Spark.
    Fault(
        "query-ends-between-its-jobs",
        "plugin",
        "if (query.jobs().isEmpty() && !executions.containsKey(key)) {",
        "if (query.jobs().isEmpty()) {",
        "spark/test_maven.py spark/test_plugin_link.py -k 'in_java_pass or step_by_step'",
    ),
    Fault(
        "limit-lets-one-more-start",
        "plugin",
        "|| job.running() < job.order.limit;",
        "|| job.running() <= job.order.limit;",
        "spark/test_maven.py -k in_java_pass",
    ),
    Fault(
        "running-tasks-count-whole",
        "plugin",
        "(row.tasks - row.started + 0.5 * row.running()) * row.taskMs;",
        "(row.tasks - row.started + row.running()) * row.taskMs;",
        "spark/test_maven.py -k in_java_pass",
    ),
    Fault(
        "busy-executors-leave-first",
        "plugin",
        ".thenComparing(tasksOn::get));",
        ".thenComparing(one -> -tasksOn.get(one)));",
        "spark/test_maven.py -k in_java_pass",
    ),
    # Statistics.
    Fault(
        "spread-without-bessel",
        "statistics",
        "spread = residuals.std(axis=-1, ddof=1) / mean_below",
        "spread = residuals.std(axis=-1) / mean_below",
        "evaluation/test_statistics.py",
    ),
    Fault(
        "one-degree-too-many",
        "statistics",
        "stdtrit(count - 1, (1 + CONFIDENCE) / 2)",
        "stdtrit(count, (1 + CONFIDENCE) / 2)",
        "evaluation/test_statistics.py",
    ),
    Fault(
        "long-tail-on-the-wrong-side",
        "statistics",
        "up, down = _studentized(",
        "down, up = _studentized(",
        "evaluation/test_statistics.py",
    ),
    # Sizing.
    Fault(
        "smallest-size-with-a-gap",
        "sizing",
        "itertools.takewhile(lambda one: one.meets(target), ",
        "filter(lambda one: one.meets(target), ",
        "evaluation/test_sizing.py",
    ),
    Fault(
        "load-of-another-size",
        "sizing",
        "offered_load(question.workload, config, arrivals) for",
        "offered_load(question.workload, question.config, arrivals) for",
        "evaluation/test_sizing.py",
    ),
    Fault(
        "minutes-for-hours",
        "sizing",
        'runs["makespan_ms"] / MS_PER_HOUR / question',
        'runs["makespan_ms"] / MS_PER_HOUR * 60 / question',
        "evaluation/test_sizing.py",
    ),
    # Checkpoints.
    Fault(
        "newer-features-pass",
        "checkpoints",
        "if self.feature_version != feature_version:",
        "if self.feature_version < feature_version:",
        "policies/test_checkpoint.py",
    ),
    Fault(
        "one-finite-weight-is-enough",
        "checkpoints",
        "for name, array in weights.items():\n        if not np.isfinite(array).all():",
        "for name, array in weights.items():\n        if not np.isfinite(array).any():",
        "policies/test_checkpoint.py",
    ),
)
