"""The catalogue of the executors world: every policy by name.

`make_policy` makes a policy from its name. The catalogue of the world of cores is
`parcae.policies.orders.catalog`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from parcae.base.errors import PolicyError
from parcae.decima.heuristics.kernels.decisions import HeuristicKind
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.policies.registry import Catalogue, PolicyEntry, refuse_argument, refused


def _number(text: str, argument: str, default: float | None = None) -> float:
    """The argument as a number. `text` is the whole policy, for error messages."""
    if not argument and default is not None:
        return default
    try:
        value = float(argument)
    except ValueError:
        raise PolicyError(
            f"policy {text!r}: the argument must be a number, not {argument!r}"
        ) from None
    if math.isnan(value):
        raise PolicyError(f"policy {text!r}: the argument must be a number, not {argument!r}")
    return value


def _count(text: str, argument: str, default: int | None = None) -> int:
    """The argument as a number of executors."""
    value = _number(text, argument, default)
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise PolicyError(
            f"policy {text!r}: the argument must be a whole number of executors >= 1, "
            f"not {argument!r}"
        )
    return min(int(value), _LARGEST_COUNT)


#: More executors than any run grants; the kernels can double it.
_LARGEST_COUNT = 1 << 60
#: Parameters are float64, which holds larger whole numbers only by rounding them.
_LARGEST_SEED = (1 << 53) - 1
#: With larger exponents, powers of a job's work would exceed float64.
_LARGEST_ALPHA = 15.0


def _alpha(text: str, value: float) -> float:
    """The exponent of a job's work, checked. `text` is the whole policy, for error messages."""
    if abs(value) > _LARGEST_ALPHA:
        raise PolicyError(
            f"policy {text!r}: the exponent of the work must be from -{_LARGEST_ALPHA:g} to "
            f"{_LARGEST_ALPHA:g}, not {value:g}"
        )
    return value


#: Arguments that stand for a tuned value; `parcae.evaluation.tuning` makes such policies.
TUNED_WORDS = ("tuned", "oracle")


def _tuned_first(text: str) -> PolicyError:
    return PolicyError(
        f"policy {text!r} must be tuned on a workload first: use it in `parcae compare` or "
        "`parcae simulate`"
    )


def _fixed(kind: HeuristicKind, *params: float) -> Callable[[str, str, int], HeuristicPolicy]:
    """A maker of policies without argument; without `params`, the parameter is the cluster size."""

    def make(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
        refuse_argument(text, argument)
        return HeuristicPolicy(text, kind, params or (float(num_executors),))

    return make


def _fair(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument not in ("", "active"):
        raise PolicyError(f"policy {text!r}: the argument is 'active' or nothing, not {argument!r}")
    return HeuristicPolicy(text, HeuristicKind.FAIR, (float(argument == "active"),))


def _weighted_fair(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument in TUNED_WORDS:
        raise _tuned_first(text)
    return _wfair(text, argument, num_executors)


def _wfair(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    alpha = _alpha(text, _number(text, argument))
    return HeuristicPolicy(text, HeuristicKind.WEIGHTED_FAIR, (alpha,))


def _tetris(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument in TUNED_WORDS:
        raise _tuned_first(text)
    knob = _number(text, argument, 0.0)
    if not 0.0 <= knob < math.inf:
        raise PolicyError(
            f"policy {text!r}: the weight of the remaining work must be a number >= 0, "
            "e.g. tetris:0.5"
        )
    return HeuristicPolicy(text, HeuristicKind.TETRIS, (knob,))


def _graphene(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument in TUNED_WORDS:
        raise _tuned_first(text)
    values = (
        [_number(text, part) for part in argument.split(":")] if argument else [-1.0, 0.5, 0.25]
    )
    if len(values) == 3:
        values.append(math.inf)
    if len(values) != 4 or values[3] < 0.0:
        raise PolicyError(
            f"policy {text!r}: write three numbers (alpha, LongScore, FragScore), e.g. "
            "graphene:-1:0.5:0.25, and optionally the longest time in seconds that executors may "
            "wait for a stage's parents (0: no waiting; inf, the default: no bound)"
        )
    _alpha(text, values[0])
    return HeuristicPolicy(text, HeuristicKind.GRAPHENE, tuple(values))


def _static(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument in TUNED_WORDS:
        raise _tuned_first(text)
    return HeuristicPolicy(text, HeuristicKind.STATIC, (float(_count(text, argument)),))


def _spark_static(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    return HeuristicPolicy(text, HeuristicKind.GRANTED, (float(_count(text, argument)),))


def _srpt_cap(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument in TUNED_WORDS:
        raise _tuned_first(text)
    default = max(1, round(num_executors / 5))
    return HeuristicPolicy(text, HeuristicKind.SRPT_CAP, (float(_count(text, argument, default)),))


def _idle_theory(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    if argument not in ("", "alone"):
        raise PolicyError(f"policy {text!r}: the argument is 'alone' or nothing, not {argument!r}")
    base = _srpt_cap("srpt-cap", "", num_executors)
    return HeuristicPolicy(
        text, HeuristicKind.IDLE_THEORY, (*base.params, float(argument == "alone"))
    )


def _random(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    seed = _number(text, argument, 0)
    if abs(seed) > _LARGEST_SEED or seed != int(seed):
        raise PolicyError(
            f"policy {text!r}: the argument is a seed, a whole number from -{_LARGEST_SEED:,} to "
            f"{_LARGEST_SEED:,}, e.g. random:1"
        )
    return HeuristicPolicy(text, HeuristicKind.RANDOM, (seed,))


def _order(text: str, argument: str, num_executors: int) -> HeuristicPolicy:
    try:
        order = [int(part) for part in argument.split("-")]
    except ValueError:
        order = []
    if sorted(order) != list(range(len(order))) or not order:
        raise PolicyError(
            f"policy {text!r}: the argument must name every job once, e.g. order:2-0-1"
        )
    return order_policy(order)


def order_policy(order: Sequence[int]) -> HeuristicPolicy:
    """Return the policy that gives all executors to the first job of a given order.

    Source: Decima, Appendix H.

    Example: `order_policy([2, 0, 1])` runs the third job first.
    """
    rank = [0.0] * len(order)
    for position, job in enumerate(order):
        rank[job] = float(position)
    return HeuristicPolicy("order:" + "-".join(map(str, order)), HeuristicKind.ORDER, tuple(rank))


_PAPER = "Decima, section 7.1"
_CODE = "Decima's released simulator"
_CLASSES = "decides about executor classes"
_GRANTS = "counts executors ever granted, but every plan grants all cores again"

#: Learned policies are made from checkpoints, see `parcae.policies.learned`.
_learned = refused("needs a workload: use it in `parcae compare` or `parcae simulate`")

#: The setting is the number of executors.
CATALOG: Catalogue[int] = Catalogue(
    "policy",
    "parcae policies",
    (
        PolicyEntry("fifo", "first job first, as many executors as it can use", f"{_PAPER}, 1",
                    _fixed(HeuristicKind.STATIC)),
        PolicyEntry("sjf-cp", "least total work first, stages by critical path", f"{_PAPER}, 2",
                    _fixed(HeuristicKind.SJF_CP, 0.0)),
        PolicyEntry("fair[:active]", "equal shares over jobs with demand for executors (or over "
                    "all active jobs)", f"{_PAPER}, 3", _fair),
        PolicyEntry("naive-weighted-fair", "shares in proportion to total work", f"{_PAPER}, 4",
                    _fixed(HeuristicKind.WEIGHTED_FAIR, 1.0)),
        PolicyEntry("weighted-fair:ALPHA|tuned|oracle", "shares in proportion to total work ^ "
                    "ALPHA; tuned: ALPHA swept on tuning seeds; oracle: best ALPHA per sequence",
                    f"{_PAPER}, 5", _weighted_fair),
        PolicyEntry("tetris[:KNOB|tuned|oracle]", "every executor class to the stage best "
                    "aligned with it; KNOB (default 0) weighs the job's remaining work against "
                    "the alignment", "Decima, Appendix F; Tetris", _tetris,
                    only_executors=_CLASSES),
        PolicyEntry("graphene[:ALPHA:LONG:FRAG[:AHEAD_S]|tuned|oracle]", "weighted fair shares, "
                    "best-fitting class first; stages with LongScore >= LONG or FragScore <= "
                    "FRAG run together", "Decima, Appendix F; Graphene, section 4.1", _graphene,
                    only_executors=_CLASSES),
        PolicyEntry("static:N|tuned|oracle", "first job first, at most N executors per job",
                    "control", _static),
        PolicyEntry("random[:SEED]", "a random stage with a random limit", "control", _random),
        PolicyEntry("srpt-cap[:N|tuned|oracle]", "shortest remaining work first, at most N "
                    "executors per job (default: a fifth of the cluster), leftover executors up "
                    "to 2 N", "Parcae", _srpt_cap),
        PolicyEntry("idle-theory[:alone]", "srpt-cap with idle slots before stages, by the "
                    "theory of two jobs (alone: as if on one machine)", "Duan & Wu, section IV-A",
                    _idle_theory, only_executors="decides about idle slots"),
        PolicyEntry("tuned[:VARIANT]", "least remaining work first, with terms tuned by CMA-ES; "
                    "in the world of executors, every job capped where another executor no "
                    "longer pays off", "Parcae", _learned),
        PolicyEntry("parcae[:VARIANT]", "a network over jobs that corrects the tuned rule",
                    "Parcae", _learned),
        PolicyEntry("decima[:VARIANT]", "Decima's graph neural network", "Decima, section 5",
                    _learned),
        PolicyEntry("plan[:BASE][:BUDGET][:THREADS]", "tries every decision of BASE (default: "
                    "parcae), and others, in simulated rollouts; BUDGET is the time of a "
                    "decision, such as 20ms, THREADS plays them on more cores, such as 2threads",
                    "Bertsekas & Castanon 1999", _learned),
        PolicyEntry("FILE.safetensors", "a checkpoint of `parcae tune`, `train` or `learn`",
                    "Parcae", _learned),
        PolicyEntry("order:I-J-...", "jobs in a given order, all executors to the first",
                    "Decima, Appendix H", _order,
                    only_executors="gives all executors to one job, as in Decima's Appendix H"),
        PolicyEntry("spark_fifo", "as fifo, counting all executors ever granted to a job", _CODE,
                    _fixed(HeuristicKind.GRANTED), only_executors=_GRANTS),
        PolicyEntry("spark_static_N", "as static:N, counting all executors ever granted to a job",
                    _CODE, _spark_static, prefix="spark_static_",
                    only_executors=_GRANTS),
        PolicyEntry("dynamic_partition", "the same as fair in the world of executors", _CODE,
                    _fixed(HeuristicKind.FAIR, 0.0)),
        PolicyEntry("wfair_ALPHA", "the same as weighted-fair:ALPHA", _CODE, _wfair,
                    prefix="wfair_"),
        PolicyEntry("sjf_cp", "the same as sjf-cp", _CODE, _fixed(HeuristicKind.SJF_CP, 0.0)),
    ),
)  # fmt: skip


def make_policy(text: str, num_executors: int) -> HeuristicPolicy:
    """Return the policy that `text` names: NAME or NAME:ARGUMENT.

    Example: `make_policy("weighted-fair:-1", num_executors=50)`.
    """
    policy: HeuristicPolicy = CATALOG.make(text, num_executors)
    return policy
