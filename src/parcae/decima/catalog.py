"""The policies of the world of executors by name.

Most of them only make decisions, so that they plan through an adapter in the world of cores, too
(`parcae.policies.catalog`).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from parcae.base.errors import PolicyError
from parcae.decima.heuristics.decisions import HeuristicKind
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.policies.learned import shipped_policy, variant_name
from parcae.policies.names import PolicyName, parse_name
from parcae.policies.parameter_search import Knobs, Values
from parcae.policies.registry import PolicyEntry, PolicySetting, make, refuse_argument, unknown
from parcae.simulation.config import SimulationConfig

#: More executors than any run grants; the kernels can double it.
_LARGEST_COUNT = float(1 << 60)
#: Parameters are float64, which holds larger whole numbers only by rounding them.
_LARGEST_SEED = (1 << 53) - 1
#: With larger exponents, powers of a job's work would exceed float64.
_LARGEST_ALPHA = 15.0

_Make = Callable[[PolicyName, PolicySetting], HeuristicPolicy]


class _Number(NamedTuple):
    """A number in a policy's argument."""

    what: str
    least: float
    most: float = sys.float_info.max
    is_whole: bool = False

    def read(self, name: PolicyName, text: str) -> float:
        """The number that a text gives."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most or (self.is_whole and value != int(value)):
            kind = "whole number" if self.is_whole else "number"
            most = "" if self.most > _LARGEST_COUNT else f" and <= {self.most:,.16g}"
            raise PolicyError(
                f"policy {name.name!r}: {self.what} must be a {kind} >= {self.least:,.16g}{most}, "
                f"not {text!r}"
            )
        return value


_ALPHA = _Number("the exponent of the work", -_LARGEST_ALPHA, _LARGEST_ALPHA)
_CAP = _Number("the number of executors", 1, is_whole=True)
_WEIGHT = _Number("the weight of the remaining work", 0)
_SEED = _Number("the seed", -_LARGEST_SEED, _LARGEST_SEED, is_whole=True)
_THRESHOLD = _Number("a threshold", -math.inf, math.inf)
_WAIT_S = _Number("the longest wait", 0, math.inf)


def _fixed(kind: HeuristicKind, *params: float) -> _Make:
    """A maker of policies without argument; without `params`, the parameter is the cluster size."""

    def make(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
        refuse_argument(name)
        return HeuristicPolicy(name.name, kind, params or (float(setting.config.total_executors),))

    return make


def _with(kind: HeuristicKind, number: _Number, default: str = "", prefix: str = "") -> _Make:
    """A maker of policies with a number, which may be a part of the name behind `prefix`."""

    def make(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
        text = name.name.removeprefix(prefix) if prefix else name.argument
        value = number.read(name, text or default)
        return HeuristicPolicy(name.name, kind, (min(value, _LARGEST_COUNT),))

    return make


def _is(name: PolicyName, word: str) -> float:
    """Whether the argument is a word (1) or nothing (0)."""
    if name.argument not in ("", word):
        raise PolicyError(
            f"policy {name.name!r}: the argument is {word!r} or nothing, not {name.argument!r}"
        )
    return float(name.argument == word)


def _fair(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
    return HeuristicPolicy(name.name, HeuristicKind.FAIR, (_is(name, "active"),))


def _graphene(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
    parts = (name.argument or "-1:0.5:0.25").split(":")
    if len(parts) not in (3, 4):
        raise PolicyError(
            f"policy {name.name!r}: write three numbers (alpha, LongScore, FragScore), e.g. "
            "graphene:-1:0.5:0.25, and optionally the longest time in seconds that executors may "
            "wait for a stage's parents (0: no waiting; inf, the default: no bound)"
        )
    numbers = (_ALPHA, _THRESHOLD, _THRESHOLD, _WAIT_S)
    values = tuple(
        number.read(name, part) for number, part in zip(numbers, [*parts, "inf"], strict=False)
    )
    return HeuristicPolicy(name.name, HeuristicKind.GRAPHENE, values)


def _usual_cap(setting: PolicySetting) -> int:
    return max(1, round(setting.config.total_executors / 5))


def _srpt_cap(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
    make = _with(HeuristicKind.SRPT_CAP, _CAP, default=str(_usual_cap(setting)))
    return make(name, setting)


def _idle_theory(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
    params = (float(_usual_cap(setting)), _is(name, "alone"))
    return HeuristicPolicy(name.name, HeuristicKind.IDLE_THEORY, params)


def _order(name: PolicyName, setting: PolicySetting) -> HeuristicPolicy:
    try:
        return order_policy([int(part) for part in name.argument.split("-")])
    except ValueError:
        raise PolicyError(
            f"policy {name.name!r}: the argument must name every job once, e.g. order:2-0-1"
        ) from None


def order_policy(order: Sequence[int]) -> HeuristicPolicy:
    """Return the policy that gives all executors to the first job of a given order.

    Source: Decima, Appendix H.

    Example: `order_policy([2, 0, 1])` runs the third job first.
    """
    if sorted(order) != list(range(len(order))):
        raise ValueError("an order names every job once")
    name = "order:" + "-".join(map(str, order))
    return HeuristicPolicy(name, HeuristicKind.ORDER, tuple(map(float, np.argsort(order))))


#: Decima, section 7.1: alpha from -2 to 2 in steps of 0.1.
ALPHAS = tuple(round(-2.0 + 0.1 * step, 1) for step in range(41))
#: Exponents beyond those of the paper: on some workloads the best one lies there.
WIDE_ALPHAS = (-10.0, -8.0, -6.0, -5.0, -4.0, -3.0, -2.5, *ALPHAS, 3.0, 5.0)
#: A sweep over the number of executors tries at most about this many values.
_MAX_COUNTS = 40
#: The sweep of Graphene*: first alpha in steps of 0.5 with every pair of thresholds (LongScore 2:
#: no task is long; FragScore -1: no stage is hard to pack) and with executors that wait for a
#: stage's parents or not; then finer steps of alpha and of the longest wait, in s.
_COARSE_ALPHAS = ALPHAS[::5]
_LONG = (0.2, 0.4, 0.6, 0.8, 2.0)
_FRAG = (-1.0, 0.2, 0.4, 0.6, 0.8)
_COARSE_WAITS_S = (0.0, math.inf)
_WAITS_S = (0.0, 2.0, 5.0, 10.0, 30.0, 100.0, math.inf)
_TETRIS_KNOBS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def _each(values: Sequence[float]) -> tuple[Values, ...]:
    return tuple((value,) for value in values)


def _counts(num_executors: int) -> tuple[Values, ...]:
    """Numbers of executors to try: every one in small clusters, logarithmically spaced in large."""
    if num_executors <= _MAX_COUNTS:
        return _each([float(n) for n in range(1, num_executors + 1)])
    return _each(np.unique(np.rint(np.geomspace(1, num_executors, _MAX_COUNTS))).tolist())


_ALPHA_KNOB = Knobs(("alpha",), lambda n: _each(WIDE_ALPHAS), open_ended=("alpha",))
_CAP_KNOB = Knobs(("cap",), _counts)
_TETRIS_KNOB = Knobs(
    ("weight of remaining work",),
    lambda n: _each(_TETRIS_KNOBS),
    open_ended=("weight of remaining work",),
)
_GRAPHENE_KNOBS = Knobs(
    ("alpha", "LongScore", "FragScore", "longest wait for parents"),
    lambda n: itertools.product(_COARSE_ALPHAS, _LONG, _FRAG, _COARSE_WAITS_S),
    lambda best: (
        (alpha, *best[1:3], wait_s)
        for alpha in ALPHAS
        if abs(alpha - best[0]) < 0.25
        for wait_s in _WAITS_S
    ),
    open_ended=("alpha",),
)

_PAPER = "Decima, section 7.1"
_CODE = "Decima's released simulator"
_CLASSES = "decides about executor classes"
_GRANTS = "counts executors ever granted, but every plan grants all cores again"
_DECIDES = ("executors", "cores")
_ONLY = ("executors",)

#: Policies that need the number of executors only.
HEURISTICS = (
    PolicyEntry("fifo", "first job first, as many executors as it can use", f"{_PAPER}, 1",
                _fixed(HeuristicKind.STATIC), _ONLY),
    PolicyEntry("sjf-cp", "least total work first, stages by critical path", f"{_PAPER}, 2",
                _fixed(HeuristicKind.SJF_CP, 0.0), _DECIDES),
    PolicyEntry("fair[:active]", "equal shares over jobs with demand for executors (or over "
                "all active jobs)", f"{_PAPER}, 3", _fair, _ONLY),
    PolicyEntry("naive-weighted-fair", "shares in proportion to total work", f"{_PAPER}, 4",
                _fixed(HeuristicKind.WEIGHTED_FAIR, 1.0), _DECIDES),
    PolicyEntry("weighted-fair:ALPHA|tuned|oracle", "shares in proportion to total work ^ "
                "ALPHA; tuned: ALPHA swept on tuning seeds; oracle: best ALPHA per sequence",
                f"{_PAPER}, 5", _with(HeuristicKind.WEIGHTED_FAIR, _ALPHA), _DECIDES,
                sweep=_ALPHA_KNOB),
    PolicyEntry("tetris[:KNOB|tuned|oracle]", "every executor class to the stage best "
                "aligned with it; KNOB (default 0) weighs the job's remaining work against "
                "the alignment", "Decima, Appendix F; Tetris",
                _with(HeuristicKind.TETRIS, _WEIGHT, "0"), _ONLY, why=_CLASSES, sweep=_TETRIS_KNOB),
    PolicyEntry("graphene[:ALPHA:LONG:FRAG[:AHEAD_S]|tuned|oracle]", "weighted fair shares, "
                "best-fitting class first; stages with LongScore >= LONG or FragScore <= "
                "FRAG run together", "Decima, Appendix F; Graphene, section 4.1", _graphene, _ONLY,
                why=_CLASSES, sweep=_GRAPHENE_KNOBS),
    PolicyEntry("static:N|tuned|oracle", "first job first, at most N executors per job",
                "control", _with(HeuristicKind.STATIC, _CAP), _DECIDES, sweep=_CAP_KNOB),
    PolicyEntry("random[:SEED]", "a random stage with a random limit", "control",
                _with(HeuristicKind.RANDOM, _SEED, "0"), _DECIDES),
    PolicyEntry("srpt-cap[:N|tuned|oracle]", "shortest remaining work first, at most N "
                "executors per job (default: a fifth of the cluster), leftover executors up "
                "to 2 N", "Parcae", _srpt_cap, _DECIDES, sweep=_CAP_KNOB),
    PolicyEntry("idle-theory[:alone]", "srpt-cap with idle slots before stages, by the "
                "theory of two jobs (alone: as if on one machine)", "Duan & Wu, section IV-A",
                _idle_theory, _ONLY, why="decides about idle slots"),
    PolicyEntry("order:I-J-...", "jobs in a given order, all executors to the first",
                "Decima, Appendix H", _order, _ONLY,
                why="gives all executors to one job, as in Decima's Appendix H"),
    PolicyEntry("spark_fifo", "as fifo, counting all executors ever granted to a job", _CODE,
                _fixed(HeuristicKind.GRANTED), _ONLY, why=_GRANTS),
    PolicyEntry("spark_static_N", "as static:N, counting all executors ever granted to a job",
                _CODE, _with(HeuristicKind.GRANTED, _CAP, prefix="spark_static_"), _ONLY,
                prefix="spark_static_", why=_GRANTS),
    PolicyEntry("dynamic_partition", "the same as fair in the world of executors", _CODE,
                _fixed(HeuristicKind.FAIR, 0.0), _DECIDES),
    PolicyEntry("wfair_ALPHA", "the same as weighted-fair:ALPHA", _CODE,
                _with(HeuristicKind.WEIGHTED_FAIR, _ALPHA, prefix="wfair_"), _DECIDES,
                prefix="wfair_"),
    PolicyEntry("sjf_cp", "the same as sjf-cp", _CODE, _fixed(HeuristicKind.SJF_CP, 0.0),
                _DECIDES),
)  # fmt: skip

POLICIES = (
    *HEURISTICS,
    PolicyEntry("corrector[:VARIANT]", "a network over jobs that corrects the tuned rule",
                "Parcae", shipped_policy, _DECIDES, in_words=variant_name, formerly="parcae"),
    PolicyEntry("decima[:VARIANT]", "Decima's graph neural network", "Decima, section 5",
                shipped_policy, _DECIDES, in_words=variant_name),
    PolicyEntry("plan[:BASE][:BUDGET][:THREADS]", "tries every decision of BASE (default: "
                "corrector), and others, in simulated rollouts; BUDGET is the time of a decision, "
                "such as 20ms, THREADS plays them on more cores, such as 2threads",
                "Bertsekas & Castanon 1999", "parcae.decima.rollouts.policy:rollout_policy", _ONLY,
                why="tries single decisions in rollouts",
                in_words="parcae.decima.rollouts.policy:base_in_words"),
)  # fmt: skip


def make_policy(text: str, num_executors: int) -> HeuristicPolicy:
    """Return the heuristic that `text` names: NAME or NAME:ARGUMENT. It needs no workload.

    Example: `make_policy("weighted-fair:-1", num_executors=50)`.
    """
    name = parse_name(text)
    if not any(entry.matches(name) for entry in HEURISTICS):
        if not (any(entry.matches(name) for entry in POLICIES) or name.is_checkpoint):
            raise unknown(name, "executors")
        raise PolicyError(
            f"policy {text!r} needs a workload: use it in `parcae compare` or `parcae simulate`"
        )
    # Heuristics look at the cluster only.
    setting = PolicySetting(None, SimulationConfig(num_executors=num_executors))  # type: ignore[arg-type]
    policy: HeuristicPolicy = make(name, setting)
    return policy
