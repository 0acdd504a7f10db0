"""The accounts of users: who has had more, or less, than an equal split of the cores.

S is what a user's tasks have received since the user was last idle, and A what an equal split of
the cores would have given: both in ms of one core. The order then serves by

    max(rem + factor (S - A), floor rem)        least first, ties by arrival

where rem is a job's remaining work as the policy states it. Sizes count within a user; between
users only what was measured does. Where all jobs are of one user, the policy's order stays.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import NOTHING, deferred, inlined, kernel
from parcae.cluster.kernels.tables import active_jobs, waiting_tasks
from parcae.cluster.state import NOT_YET

#: A user who has received this much more than the split, in ms of one core, is not overdrawn.
SETTLED_MS = 0.001
#: While jobs of two users are in the system, orders are planned again after this time.
PLAN_AGAIN_MS = 200
#: The factor and the floor of the order, and the unit of tiers that state work itself.
FACTOR = 1.5
FLOOR = 0.1
IS_WORK = 0.0
#: The unit of tiers that state -1 / work.
IS_RECIPROCAL = -1.0
_LARGEST_EXPONENT = 700.0


@kernel
def enter_account(state, job, user, weight):  # type: ignore[no-untyped-def]
    """Give a job that arrives the account of its user, which is opened if there is none."""
    now = state.now
    accounts = state.accounts
    row = now.num_accounts[0]
    for other in range(now.num_accounts[0]):
        if accounts.is_open[other] and accounts.user[other] == user:
            row = other
            break
        if not accounts.is_open[other] and row == now.num_accounts[0]:
            row = other
    if row == accounts.shape[0]:
        row = _without_jobs(state)
    if row == now.num_accounts[0]:
        now.num_accounts[0] += 1
        accounts.is_open[row] = 0
    if not accounts.is_open[row] or accounts.user[row] != user:
        accounts.is_open[row] = 1
        accounts.user[row] = user
        accounts.received_ms[row] = 0.0
        accounts.split_ms[row] = 0.0
    accounts.weight[row] = weight
    state.jobs.account[job] = row


@kernel
def _without_jobs(state):  # type: ignore[no-untyped-def]
    """An account whose user has no job: as many users with jobs as rows cannot be."""
    _count_tasks(state)
    row = 0
    while state.accounts.num_jobs[row] > 0:
        row += 1
    return row


@kernel
def _count_tasks(state):  # type: ignore[no-untyped-def]
    """Count every user's jobs, running and waiting tasks. Returns (all running, all waiting)."""
    accounts = state.accounts
    jobs = state.jobs
    all_running = 0
    all_waiting = 0
    for row in range(state.now.num_accounts[0]):
        accounts.num_jobs[row] = 0
        accounts.num_running[row] = 0
        accounts.num_waiting[row] = 0
    for job in active_jobs(state):
        row = jobs.account[job]
        accounts.num_jobs[row] += 1
        accounts.num_running[row] += jobs.num_attached[job]
        all_running += jobs.num_attached[job]
        if jobs.num_schedulable[job] > 0:
            waiting = waiting_tasks(state, job)
            accounts.num_waiting[row] += waiting
            all_waiting += waiting
    return all_running, all_waiting


@kernel
def _close_settled(state):  # type: ignore[no-untyped-def]
    """Close the accounts of users who have no job and are not overdrawn."""
    accounts = state.accounts
    for row in range(state.now.num_accounts[0]):
        is_settled = accounts.split_ms[row] >= accounts.received_ms[row] - SETTLED_MS
        if accounts.num_jobs[row] == 0 and is_settled:
            accounts.is_open[row] = 0
    while state.now.num_accounts[0] > 0 and not accounts.is_open[state.now.num_accounts[0] - 1]:
        state.now.num_accounts[0] -= 1


@inlined
def _is_overdrawn(accounts, row):  # type: ignore[no-untyped-def]
    return accounts.split_ms[row] < accounts.received_ms[row] - SETTLED_MS


@kernel
def _split(state, cores):  # type: ignore[no-untyped-def]
    """Split the cores by weight. No account gets more than its running and waiting tasks can use;
    one that is overdrawn takes what it can get, for there the split is behind what has happened.
    """
    accounts = state.accounts
    weights = 0.0
    for row in range(state.now.num_accounts[0]):
        asked = accounts.num_running[row] + accounts.num_waiting[row]
        accounts.asked[row] = math.inf if _is_overdrawn(accounts, row) else float(asked)
        accounts.rate[row] = -1.0 if accounts.is_open[row] else 0.0
        weights += accounts.weight[row] if accounts.is_open[row] else 0.0
    left = float(cores)
    goes_on = True
    while goes_on:
        goes_on = False
        share = left / weights
        for row in range(state.now.num_accounts[0]):
            if accounts.rate[row] < 0.0 and accounts.asked[row] <= share * accounts.weight[row]:
                accounts.rate[row] = accounts.asked[row]
                left -= accounts.asked[row]
                weights -= accounts.weight[row]
                goes_on = weights > 0.0
    for row in range(state.now.num_accounts[0]):
        if accounts.rate[row] < 0.0:
            accounts.rate[row] = share * accounts.weight[row]


@deferred(NOTHING)
def _advance(state, time_ms):  # type: ignore[no-untyped-def]
    """Bring the accounts to a later time, by the tasks that have run and waited since.

    While a task waits, an idle core is one that nobody may use: it is owed to nobody.
    """
    accounts = state.accounts
    all_running, all_waiting = _count_tasks(state)
    _close_settled(state)
    cores = all_running if all_waiting > 0 else max(state.now.num_executors[0], all_running)
    left_ms = float(time_ms - state.now.clock_ms[0])
    while left_ms > 0.0 and state.now.num_accounts[0] > 0:
        _split(state, cores)
        step_ms = left_ms
        for row in range(state.now.num_accounts[0]):
            step_ms = min(step_ms, _ms_to_settle(accounts, row))
        for row in range(state.now.num_accounts[0]):
            settles = _ms_to_settle(accounts, row) <= step_ms
            accounts.received_ms[row] += accounts.num_running[row] * step_ms
            accounts.split_ms[row] += accounts.rate[row] * step_ms
            if settles:
                accounts.split_ms[row] = accounts.received_ms[row]
        left_ms -= step_ms


@inlined
def _ms_to_settle(accounts, row):  # type: ignore[no-untyped-def]
    """Time until an overdrawn account is even with the split; infinite if it gets no closer."""
    gains = accounts.rate[row] - accounts.num_running[row]
    if not accounts.is_open[row] or gains <= 0.0 or not _is_overdrawn(accounts, row):
        return math.inf
    return (accounts.received_ms[row] - accounts.split_ms[row]) / gains


@inlined
def move_clock(state, time_ms):  # type: ignore[no-untyped-def]
    """Set the clock, which never goes back, and bring the accounts to it where they are kept."""
    if state.now.keeps_accounts[0] and time_ms > state.now.clock_ms[0]:
        _advance(state, time_ms)
    state.now.clock_ms[0] = time_ms


@kernel
def advance_clock(state, time_ms):  # type: ignore[no-untyped-def]
    """As `move_clock`, for a live cluster."""
    move_clock(state, time_ms)


@inlined
def has_two_users(state):  # type: ignore[no-untyped-def]
    """Whether jobs of more than one user are in the system."""
    for position in range(1, state.now.num_active[0]):
        if state.jobs.account[state.active[position]] != state.jobs.account[state.active[0]]:
            return True
    return False


@deferred(NOTHING)
def charge_orders(state):  # type: ignore[no-untyped-def]
    """Let what users have received count in the orders that the policy has just written."""
    now = state.now
    accounts = state.accounts
    tiers = state.job_orders.tier
    if not has_two_users(state):
        return
    for job in active_jobs(state):
        left_ms = tiers[job]
        if now.tier_unit_ms[0] > 0.0:
            left_ms = math.exp(min(left_ms, _LARGEST_EXPONENT)) * now.tier_unit_ms[0]
        elif now.tier_unit_ms[0] < 0.0:
            left_ms = -1.0 / left_ms
        row = state.jobs.account[job]
        overdraft_ms = accounts.received_ms[row] - accounts.split_ms[row]
        charged_ms = left_ms + now.account_factor[0] * overdraft_ms
        tiers[job] = max(charged_ms, now.account_floor[0] * left_ms)
    wake_ms = now.clock_ms[0] + PLAN_AGAIN_MS
    if now.wake_ms[0] == NOT_YET or wake_ms < now.wake_ms[0]:
        now.wake_ms[0] = wake_ms
