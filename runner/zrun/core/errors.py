"""The errors zrun raises on purpose, each with the way out and the exit code of the command line.

A rank's death is not an exception but a `Failure` value (core/failure.py).
"""

from enum import IntEnum


class Exit(IntEnum):
    """What the command line ends with (SURFACE, "Commands")."""

    DONE = 0
    OWN_FAILURE = 1
    WRONG_USE = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    FAILED = 100
    NOT_FINISHED = 101
    NOT_FOUND = 102
    STOPPED = 103
    TIMED_OUT = 104
    PREEMPTED = 105
    INTERRUPTED = 130


class ZrunError(Exception):
    """Something a person can mend: `str(error)` says what is wrong, `hint` the way out."""

    exit_code: Exit = Exit.OWN_FAILURE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SpecError(ZrunError):
    """job.yaml is wrong; `problems` holds one rendered text for each mistake."""

    exit_code = Exit.WRONG_USE

    def __init__(self, message: str, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.problems = problems


class UsageError(ZrunError):
    """The command was used wrongly."""

    exit_code = Exit.WRONG_USE


class UnreachableError(ZrunError):
    """The coordinator does not answer."""

    exit_code = Exit.UNREACHABLE


class NotAllowedError(ZrunError):
    """The token is missing, wrong, or of too small a scope."""

    exit_code = Exit.NOT_ALLOWED


class NotFoundError(ZrunError):
    """No such job, attempt, rank or incident."""

    exit_code = Exit.NOT_FOUND


class ProtocolError(ZrunError):
    """A frame between agent and coordinator that this version does not understand."""


class CheckpointError(ZrunError):
    """A checkpoint that cannot be written, found, verified or loaded."""


class StoreError(CheckpointError, OSError):
    """An object store that refuses or does not answer. For who reads and writes files, an OSError as any other."""


class DamagedError(CheckpointError):
    """Its bytes were read, and they are not the ones that were written."""


class BadLossError(ZrunError):
    """Raised in a rank by `data.on_bad_loss`: the loss is not finite, or far above what it was."""


class LaunchError(ZrunError):
    """The processes of a job could not be started on this node."""
