"""Every error that Parcae raises on purpose.

    ParcaeError
    |-- InputError            something given from outside is wrong: exit code 2, one clear line
    |   |-- WorkloadError     a job, a DAG or a duration that cannot be
    |   |-- FormatError       a file that is torn, of another format or of another version
    |   |-- ConfigError       a setting that does not exist or does not fit
    |   |-- PolicyError       an unknown policy, or one that gave a decision that cannot be carried out
    |   +-- ProtocolError     a message to the service that cannot be, or that does not fit what it knows
    |-- DivergedError         a training that went astray: the best policy so far is kept
    +-- InvariantError        a state that our own code must never reach (our bug, not the user's)

A message says what is wrong, where (path:line for readers), what was expected, and what to do.
"""


class ParcaeError(Exception):
    """Base of every error that Parcae raises on purpose."""


class InputError(ParcaeError):
    """Something given from outside is wrong."""


class WorkloadError(InputError):
    """A job, a DAG or a duration that cannot be."""


class FormatError(InputError):
    """A file that is torn, of another format or of another version."""


class ConfigError(InputError):
    """A setting that does not exist or does not fit."""


class PolicyError(InputError):
    """An unknown policy, or a decision that cannot be carried out."""


class ProtocolError(InputError):
    """A message to the service that cannot be, or that does not fit what it knows; `code` is what the client is told."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DivergedError(ParcaeError):
    """A training that went astray: weights or losses that are not finite, queues that grow without bound."""


class InvariantError(ParcaeError):
    """A state that our own code must never reach."""
