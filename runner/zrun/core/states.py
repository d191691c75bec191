"""The states of a job and what each means at the end of a command; knows nothing about how one leads to another."""

from enum import StrEnum
from typing import Final

from zrun.core.errors import Exit


class JobState(StrEnum):
    """What a person sees (SURFACE, "States"); the reason beside it is free text."""

    PENDING = "PENDING"
    SETUP = "SETUP"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    RECOVERING = "RECOVERING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    PREEMPTED = "PREEMPTED"


FINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.PREEMPTED})


class FaultClass(StrEnum):
    """Which budget an incident is charged to."""

    CRASH = "crash"
    HANG = "hang"
    NODE = "node"
    PREEMPTION = "preemption"
    OOM = "oom"
    POISON = "poison"
    SETUP = "setup"
    DISK = "disk"
    MEMBERSHIP = "membership"


def exit_code_of(state: JobState, *, timed_out: bool = False) -> Exit:
    """The exit code of `launch`, `resume` and `wait` for a job in this state."""
    match state:
        case JobState.SUCCEEDED:
            return Exit.DONE
        case JobState.FAILED:
            return Exit.FAILED
        case JobState.STOPPED:
            return Exit.TIMED_OUT if timed_out else Exit.STOPPED
        case JobState.PREEMPTED:
            return Exit.PREEMPTED
        case _:
            return Exit.NOT_FINISHED
