"""What may happen to one job on one node; counterpart of node_actions.py. Plain data, times come beside the event."""

from dataclasses import dataclass, field
from typing import Any

from zrun.agent.rank_story import NOTHING_FOUND, PostMortem
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
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeftBefore:
    """An earlier agent had this job here: processes of it may be alive, with or without their keeper."""


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
    standby_bytes: int = 0
    """The most memory that a standby may take; 0: none are wanted."""


@dataclass(frozen=True, slots=True)
class FolderShared:
    """None: checkpoint.dir is the same folder here as on the first node of this attempt."""

    attempt: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class LaunchRefused:
    """The workers cannot be started, and trying again would not help."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Launched:
    """torchrun is being started; these are the ranks it will have on this node."""

    ranks: list[int]
    port: int = 0
    """Where the store will listen, if this node hosts it for others."""


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
    after: PostMortem = NOTHING_FOUND


@dataclass(frozen=True, slots=True)
class StandbyReady:
    """A process that waits to become this rank has everything imported, and takes so much memory."""

    rank: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StandbyLost:
    """It ended; `left_out`: because of this package, which the next one does not import."""

    rank: int
    left_out: str


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
    """No process of the job is alive on this node (but `left`), and what they left outside their folders is gone."""

    left: list[str]
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Freed:
    """A process that could not be ended has ended after all; `left` is what still could not."""

    left: list[str]
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PreemptAsked:
    """The agent itself got a signal that means: this job is to leave soon."""


@dataclass(frozen=True, slots=True)
class LeaveNow:
    """The agent ends: whatever the order says, nothing of the job may stay."""

    why: str


@dataclass(frozen=True, slots=True)
class CutOff:
    """Neither the coordinator nor all other nodes of the attempt can be reached: others may begin the next attempt."""

    why: str
    unix: float


@dataclass(frozen=True, slots=True)
class NoticeRead:
    """Somebody outside says why ranks are being taken away from this node."""

    text: str


@dataclass(frozen=True, slots=True)
class TimeUp:
    """`deadline()` came."""


NodeEvent = (
    OrderReceived | LeftBefore | KeeperReady | KeeperLost | KeeperEnds | SetupEnded | SpecChanged | FolderShared
    | LaunchRefused | Launched | RankSeen | RankExited | TorchrunExited | DecksRead | NoteRead | Signalled
    | CollectEnded | Swept | PreemptAsked | Freed | LeaveNow | CutOff | NoticeRead
    | StandbyReady | StandbyLost | TimeUp
)  # fmt: skip
