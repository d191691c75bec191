"""What may happen to one job on one node; counterpart of node_actions.py. Plain data, times come beside the event."""

from dataclasses import dataclass, field
from typing import Any

from zrun.core.deck_reader import DeckState
from zrun.core.failure import Failure
from zrun.wire.order import JobOrder


@dataclass(frozen=True, slots=True)
class OrderReceived:
    """The coordinator's newest wish for this job (also if it is the same as before)."""

    order: JobOrder


@dataclass(frozen=True, slots=True)
class KeeperReady:
    """A keeper holds the node's lock and has ended whatever an earlier agent left."""

    left: list[str]


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper died: nobody watches the processes any more."""


@dataclass(frozen=True, slots=True)
class KeeperEnds:
    """This agent stood still for so long that its keeper is ending the workers, since `unix`."""

    stood_s: float
    unix: float


@dataclass(frozen=True, slots=True)
class SetupEnded:
    """None: the setup commands succeeded."""

    failure: Failure | None


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """The job as the coordinator now has it; `setup`: set-up commands this node has not run yet."""

    setup: bool
    setup_s: float | None
    exit_s: float


@dataclass(frozen=True, slots=True)
class LaunchRefused:
    """The workers cannot be started, and trying again would not help."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Launched:
    """torchrun is being started; these are the ranks it will have on this node."""

    ranks: list[int]


@dataclass(frozen=True, slots=True)
class RankSeen:
    """torchrun started the process of this rank."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """Its notes and output were read to the end before this was said."""

    rank: int
    pid: int
    exit_code: int | None
    signal: str | None
    unix: float
    last_lines: list[str]
    oom: bool = False


@dataclass(frozen=True, slots=True)
class TorchrunExited:
    exit_code: int | None
    signal: str | None
    unix: float
    address_in_use: bool
    last_lines: list[str]


@dataclass(frozen=True, slots=True)
class DecksRead:
    """One look at every deck of the attempt, by rank."""

    decks: dict[int, DeckState]


@dataclass(frozen=True, slots=True)
class NoteRead:
    """One note of one rank (core/notes.py)."""

    rank: int
    note: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal that ends is about to be sent to these ranks, as ordered by an action."""

    ranks: list[int]
    unix: float


@dataclass(frozen=True, slots=True)
class CollectEnded:
    """The evidence for this incident is on disk, as far as it could be had. `places`: rank -> the user's own line."""

    incident: int
    places: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Swept:
    """No process of the job is alive on this node (but `left`), and its shared memory is gone."""

    left: list[str]


@dataclass(frozen=True, slots=True)
class PreemptAsked:
    """The agent itself got a signal that means: this job is to leave soon."""


@dataclass(frozen=True, slots=True)
class LeaveNow:
    """The agent ends: whatever the order says, nothing of the job may stay."""

    why: str


@dataclass(frozen=True, slots=True)
class TimeUp:
    """`deadline()` came."""


NodeEvent = (
    OrderReceived | KeeperReady | KeeperLost | KeeperEnds | SetupEnded | SpecChanged | LaunchRefused | Launched
    | RankSeen | RankExited | TorchrunExited | DecksRead | NoteRead | Signalled | CollectEnded | Swept | PreemptAsked
    | LeaveNow | TimeUp
)  # fmt: skip
