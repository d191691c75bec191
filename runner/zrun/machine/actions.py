"""What the job machine wants done; the coordinator's loop carries it out. Counterpart of events.py.

Every action carries `because`, the number of the event that caused it.
"""

from dataclasses import dataclass
from typing import Any

from zrun.core.states import FaultClass, JobState
from zrun.wire.order import JobOrder


@dataclass(frozen=True, slots=True)
class Give:
    """Node `node` in its life `boot` shall be in this state; the loop repeats it until the report agrees."""

    node: str
    boot: str
    order: JobOrder
    because: int


@dataclass(frozen=True, slots=True)
class Note:
    """State or reason changed: log, events.jsonl, page."""

    state: JobState
    reason: str
    because: int


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """A fault was seen; evidence goes to incidents/NNNN. `suspicion` true: named, nothing ended yet."""

    number: int
    attempt: int
    fault: FaultClass
    headline: str
    suspicion: bool
    because: int


@dataclass(frozen=True, slots=True)
class UpdateIncident:
    """Something about an open incident is now known (verdict, what followed): write incident.json again."""

    number: int
    because: int


@dataclass(frozen=True, slots=True)
class CloseIncident:
    """Recovered, given up, or a false alarm, in `resolution`."""

    number: int
    resolution: str
    because: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: verdict.json is final, agents are released."""

    state: JobState
    reason: str
    timed_out: bool
    because: int


@dataclass(frozen=True, slots=True)
class Record:
    """A line for events.jsonl that changes no state."""

    what: str
    fields: dict[str, Any]
    because: int


Action = Give | Note | OpenIncident | UpdateIncident | CloseIncident | Finish | Record
