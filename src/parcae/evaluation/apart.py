"""A policy of one's own in a process of its own: it gets what a scheduler sees, and sends orders.

The simulator stays in the caller's process, and with it all that no scheduler knows: jobs to come,
durations, seeds. The caller checks every answer and times it by its own clock, so that nothing that
the policy does to its process changes a result. The process has limits on its time and memory; it
is no sandbox: files and the network are open to it.

The caller's messages are pickled: what to load, then one observation after another. Each is
answered by orders, or by a text after `_ERROR`, as bytes that run no code.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parcae.base.errors import InputError, PolicyError
from parcae.base.extensions import load
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, Remembers
from parcae.cluster.state import JOB_ORDER, MAX_POOLS, POOL, STAGE_ORDER
from parcae.policies.own import FunctionPlanner, instance

_DONE, _ERROR = b"D", b"E"
#: The process may need so long to import Parcae on a busy machine, before any of the policy's code.
_IMPORT_S = 120.0
#: Time between two looks at the clock, and the longest text that is taken from the process.
_LOOK_S = 0.05
_LONGEST = 2_000


class Allowance(NamedTuple):
    """What a policy may use: seconds for all its answers together, and MiB of memory."""

    seconds: float
    memory_mib: int


class PolicyApart:
    """A policy in a process of its own, as a policy that plans; a context that ends the process.

    Args:
        name: the policy, as "module:attribute".
        job_names: the names of the workload's recurring jobs, by profile.
        allowance: what it may use.

    Raises:
        PolicyError: the policy cannot be loaded, or plans nothing.
    """

    def __init__(self, name: str, job_names: Sequence[str], allowance: Allowance) -> None:
        self.name = name
        self._allowed = allowance
        self._left_s = _IMPORT_S
        self._end_s = math.inf
        self._is_late = False
        self._is_new = True
        theirs, mine = os.pipe(), os.pipe()
        # In the import path the current folder comes last, as for every policy of one's own.
        program = f"from {__name__} import answer; answer({theirs[0]}, {mine[1]})"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            pass_fds=(theirs[0], mine[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs[0])
        os.close(mine[1])
        self._messages = Connection(theirs[1], readable=False)
        self._answers = Connection(mine[0], writable=False)
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            self._ask(pickle.dumps(None))
            self._left_s = allowance.seconds
            self._ask(pickle.dumps([name, list(job_names), *allowance]))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> PolicyApart:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._kill()
        self._process.wait()
        self._messages.close()
        self._answers.close()

    def restart(self) -> None:
        """A new run begins."""
        self._is_new = True

    def plan(self, observation: Observation) -> Orders:
        """The orders that the policy answers; who puts them into force checks them."""
        rows = (len(observation.jobs), len(observation.stages))
        stages = rows[0] * JOB_ORDER.itemsize
        wake = stages + rows[1] * STAGE_ORDER.itemsize
        pools = wake + 8
        view = pickle.dumps((observation, self._is_new))
        self._is_new = False
        answer = bytearray(self._ask(view, pools + MAX_POOLS * POOL.itemsize))
        if len(answer) <= pools or (len(answer) - pools) % POOL.itemsize:
            raise self._error(f"its answer is no orders for {rows[0]} jobs")
        return Orders(
            np.frombuffer(answer, JOB_ORDER, rows[0]).view(np.recarray),
            np.frombuffer(answer, STAGE_ORDER, rows[1], stages).view(np.recarray),
            np.frombuffer(answer, POOL, offset=pools).view(np.recarray),
            np.frombuffer(answer, np.int64, 1, wake),
        )

    def _ask(self, message: bytes, most: int = 0) -> bytes:
        began_s = time.monotonic()
        self._end_s = began_s + self._left_s
        try:
            self._messages.send_bytes(message)
            said = self._answers.recv_bytes(max(most, _LONGEST) + 1)
        except (EOFError, OSError):
            raise self._error(self._how_it_ended()) from None
        finally:
            self._left_s -= time.monotonic() - began_s
            self._end_s = math.inf
        if said[:1] != _DONE:
            raise self._error(said[1:_LONGEST].decode(errors="replace"))
        return said[1:]

    def _watch(self) -> None:
        """End the process if it takes too long: whoever reads from it then hears of it."""
        while not self._is_over.wait(_LOOK_S):
            if time.monotonic() > self._end_s:
                self._is_late = True
                self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _how_it_ended(self) -> str:
        if self._is_late:
            return f"it took longer than its {self._allowed.seconds:g} s for all its answers"
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return f"its process ended ({how})"
        return "its answer is no orders"

    def _error(self, why: str) -> PolicyError:
        named = f"policy {self.name!r}"
        return PolicyError(why if why.startswith(named) else f"{named}: {why}")


def answer(reading: int, writing: int) -> None:
    """Answer the messages of one pipe on another; all that the policy's own process does."""
    messages = Connection(reading, writable=False)
    answers = Connection(writing, readable=False)
    policy: Any = None
    with suppress(EOFError):
        while True:
            message = messages.recv()
            try:
                found = b""
                if isinstance(message, list):
                    policy = _policy(*message)
                elif message is not None:
                    observation, is_new = message
                    for table in observation:
                        table.setflags(write=False)
                    if is_new and isinstance(policy, Remembers):
                        policy.restart()
                    found = _orders(policy, observation)
                answers.send_bytes(_DONE + found)
            except Exception as error:  # whatever the policy raises
                answers.send_bytes(_ERROR + _in_one_line(error).encode()[:_LONGEST])


def _policy(name: str, job_names: list[str], seconds: float, memory_mib: int) -> Any:
    """Limit this process, as far as the system can, and load the policy."""
    # Where the caller has died, nobody else would end a policy that never answers.
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds) + 10)
    _lower(resource.RLIMIT_CORE, 0)
    size = Path("/proc/self/statm")
    if size.exists():
        used = int(size.read_text().split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, used + (memory_mib << 20))
    made = instance(load(name, "policy"), name)
    if hasattr(made, "plan"):
        return made
    if hasattr(made, "play") or not callable(made):
        # What plays whole runs itself would see what no scheduler knows.
        raise PolicyError(f"{made!r} is neither a function nor an object with plan(observation)")
    return FunctionPlanner(made, job_names, name)


def _lower(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _orders(policy: Any, observation: Observation) -> bytes:
    """The policy's orders as bytes: jobs, stages, wake-up time, pools."""
    orders = policy.plan(observation)
    if not isinstance(orders, Orders):
        raise PolicyError(f"plan() returned {orders!r}; return Orders")
    tables = (
        np.asarray(orders.jobs, JOB_ORDER)[: len(observation.jobs)],
        np.asarray(orders.stages, STAGE_ORDER)[: len(observation.stages)],
        np.asarray(orders.wake_ms, np.int64)[:1],
        np.asarray(orders.pools, POOL),
    )
    return b"".join(table.tobytes() for table in tables)


def _in_one_line(error: Exception) -> str:
    """An error and where it was raised, for people."""
    if isinstance(error, InputError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
