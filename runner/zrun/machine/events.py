"""What may happen to a job: the journaled facts, and nothing else, that the job machine decides on.

Counterpart of actions.py. Every event is plain data (msgspec), so that the journal can hold it and replay it.
Times arrive beside the event as `now`, seconds since the journal's first event.
"""

from typing import Any

import msgspec

from zrun.wire.report import Doing


class _Event(msgspec.Struct, frozen=True, tag_field="e", tag=lambda name: name):
    pass


class Submitted(_Event, frozen=True):
    """A job was handed in. `spec` is JobSpec as JSON; `run_dir` absolute; `env_dropped` for the log."""

    job: str
    spec: dict[str, Any]
    run_dir: str
    fresh: bool = False


class NodeHeard(_Event, frozen=True):
    """A node's report about this job changed in a way that matters (never merely a beat)."""

    node: str
    boot: str
    doing: Doing
    attempt: int
    seen: int
    settled: bool = True
    collected: int = 0
    stopped_at: int | None = None
    saved_at: int | None = None
    term_seen: bool = False
    leaving_in_s: float | None = None
    step: int = 0
    """The smallest completed step of the node's ranks in `attempt`."""
    ranks: int = 0
    """How many ranks the node has told of in `attempt`; 0 = not known yet."""
    warned: tuple[str, ...] = ()
    """What the agent had to do for a rank to be over, for example end it after watchdog.exit."""
    stuck: tuple[str, ...] = ()
    """Processes of the job that cannot be ended (state D), in words."""
    swept: tuple[str, ...] = ()
    """What dead processes of `attempt` had left outside its folders, in words."""
    address: str = ""
    peer_port: int = 0
    master_port: int = 0
    """Where the store of `attempt` listens, if this node hosts it."""


class NodeGone(_Event, frozen=True):
    """The agent said goodbye or its connection was closed for good; a lease may still run."""

    node: str
    boot: str
    why: str


class NodeSilent(_Event, frozen=True):
    """Nothing was heard of the node for a lease, on the coordinator's virtual clock."""

    node: str
    boot: str


class RankEnded(_Event, frozen=True):
    """New or better evidence about how ranks of an attempt ended badly: all failures so far, by time."""

    node: str
    attempt: int
    failures: list[dict[str, Any]]
    age_s: float | None = None
    """How long ago the first of them happened when it was reported, on the node's own clock."""


class AttemptStarted(_Event, frozen=True):
    """Every rank of the attempt has completed a step (or, without steps, its bootstrap and 5 s of life)."""

    attempt: int
    first_step: int
    resumed_step: int | None
    resumed_from: str | None = None
    skipped: list[dict[str, str]] = []
    resumed_tier: str = ""
    """disk or memory; empty (in older journals too) means disk."""


class ProgressVerified(_Event, frozen=True):
    """All ranks have completed `step`; at most every 10 s a job, and once at the end of each attempt."""

    attempt: int
    step: int


class CheckpointCommitted(_Event, frozen=True):
    attempt: int
    step: int
    batch: str
    path: str
    bytes: int
    seconds: float = 0.0
    tier: str = "disk"


class CheckpointsPruned(_Event, frozen=True):
    """These steps were removed from the disk as checkpoint.keep says."""

    attempt: int
    steps: list[int]


class SaveFailed(_Event, frozen=True):
    attempt: int
    step: int
    error: str
    disk_full: bool = False


class Suspected(_Event, frozen=True):
    """The hang judge's verdict over the table (machine/hang.py); `cleared`: it moves again."""

    attempt: int
    ranks: list[int]
    kind: str
    provable: bool
    roll_call: str
    because: list[str]
    step: int | None = None
    batch: str | None = None
    collective: str | None = None
    where: str | None = None
    node: str | None = None
    cleared: bool = False
    blind_s: float = 0.0
    """How long nothing had moved when this was said."""
    busy: bool = False
    """A suspect reads or writes files, saves or compiles: named all the same, but ending it waits."""
    confidence: str = ""
    """proved | likely | unsure: how far the name can be trusted."""


class RollCalled(_Event, frozen=True):
    """Where the ranks stood when one failed tells by itself why: different collectives or sizes at one place."""

    attempt: int
    because: list[str]


class Suspended(_Event, frozen=True):
    """All ranks are stopped (a scheduler's suspend, a debugger), or run again."""

    attempt: int
    stopped: bool


class Command(_Event, frozen=True):
    """A person's or program's wish: stop, stop_now, preempt, restart, resume, save."""

    what: str
    who: str = ""
    within_s: float | None = None
    """For preempt: seconds until the processes must be gone."""
    options: dict[str, Any] = {}


class DurationOver(_Event, frozen=True):
    """`max_duration` ran out on the wall clock."""


class CoordinatorStarted(_Event, frozen=True):
    """A coordinator began (again) on this journal: no verdict about nodes until they had time to come back."""


class TimerFired(_Event, frozen=True):
    """The machine's own deadline came."""


Event = (
    Submitted | NodeHeard | NodeGone | NodeSilent | RankEnded | AttemptStarted | ProgressVerified
    | CheckpointCommitted | CheckpointsPruned | SaveFailed | Suspected | RollCalled | Suspended | Command | DurationOver
    | CoordinatorStarted | TimerFired
)  # fmt: skip
