"""What the node machine wants done; the job's loop carries it out. Counterpart of node_events.py.

Every action says why in words; those that end processes say whose fault or wish it was.
"""

from dataclasses import dataclass

from zrun.agent.stop_step import StopAsk
from zrun.wire.order import LaunchPlan


@dataclass(frozen=True, slots=True)
class EnsureKeeper:
    """A keeper that holds the node's lock; answered by KeeperReady, also if there is one already."""

    why: str


@dataclass(frozen=True, slots=True)
class StartSetup:
    """Run the job's setup commands; answered by SetupEnded."""

    why: str


@dataclass(frozen=True, slots=True)
class EndSetup:
    """They took too long: end them; answered by SetupEnded with a failure."""

    why: str


@dataclass(frozen=True, slots=True)
class ShareFolder:
    """The first node leaves a sign in checkpoint.dir, the others look for it; answered by FolderShared."""

    plan: LaunchPlan
    why: str


@dataclass(frozen=True, slots=True)
class StartTorchrun:
    """Folders, decks, a fresh port, then standbys or torchrun; answered by RankSeen, TorchrunExited, LaunchRefused."""

    plan: LaunchPlan
    launch: int
    """Counts the launches of this attempt from 1: a port may be taken."""
    why: str


@dataclass(frozen=True, slots=True)
class WriteOrderPages:
    """Into the decks of all ranks. `within_s`: how long a rank may wait for the others' word."""

    ask: StopAsk
    within_s: float
    why: str


@dataclass(frozen=True, slots=True)
class SignalRanks:
    ranks: list[int]
    signal: str
    """Without SIG: TERM."""
    why: str


@dataclass(frozen=True, slots=True)
class KillAll:
    """Everything of the job, torchrun too, then its shared memory; answered by Swept."""

    why: str


@dataclass(frozen=True, slots=True)
class Collect:
    """Evidence to disk; 0 = into the attempt's own folder, belongs to no incident. Answered by CollectEnded."""

    incident: int
    why: str


@dataclass(frozen=True, slots=True)
class TellRank:
    """The last line of its own log: what or whose fault ended it. The rank is dead."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class BuildRecorder:
    """Compile recorder.cpp for the ranks' torch, in the background; the next attempt takes it."""

    why: str


@dataclass(frozen=True, slots=True)
class PrepareStandbys:
    """One process a rank that imports all there is to import and waits; answered by StandbyReady or StandbyLost."""

    why: str


@dataclass(frozen=True, slots=True)
class DropStandbys:
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Forget the job; nothing of it is alive."""

    why: str


@dataclass(frozen=True, slots=True)
class Say:
    """For the agent's log."""

    text: str


NodeAction = (
    EnsureKeeper
    | StartSetup
    | EndSetup
    | ShareFolder
    | StartTorchrun
    | WriteOrderPages
    | SignalRanks
    | KillAll
    | Collect
    | TellRank
    | BuildRecorder
    | PrepareStandbys
    | DropStandbys
    | Release
    | Say
)
