"""The exceptions that Parcae raises on purpose.

    ParcaeError
    |-- InputError            invalid input from outside: exit code 2, one clear line
    |   |-- WorkloadError     an invalid job, DAG or duration
    |   |-- FormatError       a file that is damaged, or of an unknown format or version
    |   |-- ConfigError       a setting that does not exist or has an invalid value
    |   |-- PolicyError       an unknown policy, or one whose decision cannot be carried out
    |   |-- MissingExtraError a library that is not installed, with the extra that brings it
    |   +-- ProtocolError     a message to the service that is invalid or contradicts its state
    |-- DivergedError         a training that diverged; the best policy so far is kept
    +-- InvariantError        a state that Parcae must never reach: a bug of Parcae

A message says what is wrong, where (path:line for readers), what was expected, and what to do.
"""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any


class ParcaeError(Exception):
    """Base class of all exceptions that Parcae raises on purpose."""


class InputError(ParcaeError):
    """The input from outside is invalid."""


class WorkloadError(InputError):
    """A job, a DAG or a duration is invalid."""


class FormatError(InputError):
    """A file is damaged, or its format or version is unknown."""


def saved_by_older_version() -> FormatError:
    """The error for a saved training that this version cannot continue."""
    return FormatError(
        "the training was saved by an older version of Parcae: resume it with that version, or "
        "train again"
    )


class ConfigError(InputError):
    """A setting does not exist or has an invalid value."""


class PolicyError(InputError):
    """The policy is unknown, or its decision cannot be carried out."""


class MissingExtraError(InputError):
    """A library that this use needs is not installed; the message names the extra."""


class ProtocolError(InputError):
    """A message to the service is invalid or contradicts what the service knows.

    Args:
        code: the error code that is sent to the client.
        message: the text of the error.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DivergedError(ParcaeError):
    """A training diverged: weights or losses are not finite, or queues grow without bound."""


class InvariantError(ParcaeError):
    """The state violates an invariant, which is a bug of Parcae."""


def suggestion(name: str, known: Iterable[str], otherwise: str = "known are") -> str:
    """Return the end of a message about a name that does not exist: "did you mean 'fair'?"."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"{otherwise} {', '.join(names) or 'none'}"


def no_cluster(value: object) -> ConfigError:
    """The error for something else in place of a cluster, such as a number of cores."""
    return ConfigError(
        f"cluster is {reprlib.repr(value)}: describe one first, as in "
        "cluster = parcae.Cluster(cores=50)"
    )


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse settings that do not exist, with a similar one as a hint."""
    names = list(known)
    for key in given:
        if key not in names:
            raise ConfigError(f"setting {key!r} does not exist; {suggestion(key, names)}")


def refused_settings(details: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> ConfigError:
    """The error for settings that pydantic refused, in one line."""
    problems = []
    for detail in details:
        key = ".".join(names.get(str(part), str(part)) for part in detail["loc"])
        problems.append(
            f"setting {key} = {detail['input']!r}: {problem(detail)}" if key else problem(detail)
        )
    return ConfigError("; ".join(problems))


def problem(detail: Mapping[str, Any]) -> str:
    """What is wrong, from one of the errors that pydantic lists: its message.

    Where a check of Parcae's own failed, pydantic begins its message with words for programmers.
    """
    return str(detail["msg"]).removeprefix("Value error, ")


def first_problem(error: Any, whole: str) -> str:
    """The place and the problem of the first error that pydantic lists; `whole` if it has none."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {problem(first)}"
