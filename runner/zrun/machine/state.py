"""What the job machine remembers of one job: plain data, rebuilt by replay, read by machine/view.py.

Two rules: only the machine changes it, and nothing here decides anything. Ranks' rows (phase, step, age) are not here:
they live in the coordinator's table and never enter the machine.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from zrun.core.failure import Failure
from zrun.core.ids import JobId
from zrun.core.states import FaultClass, JobState
from zrun.machine.blame import Verdict
from zrun.machine.events import Suspected
from zrun.machine.moves import OVER, SHOWN, Stage
from zrun.spec.job import JobSpec
from zrun.wire.order import End, JobOrder
from zrun.wire.report import Doing

Outcome = Literal["fault", "finished", "stopped", "preempted"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A node's place in an attempt; `boot` is the life of its agent that was ordered."""

    node: str
    boot: str
    node_rank: int
    address: str = ""
    peer_port: int = 0
    """Where its agent was when the attempt was ordered."""


@dataclass(slots=True)
class Member:
    """One node as this job last heard of it."""

    name: str
    boot: str = ""
    past_boots: set[str] = field(default_factory=set)
    """Earlier lives of its agent: what they say is not believed any more."""
    doing: Doing = Doing.IDLE
    attempt: int = 0
    seen: int = 0
    settled: bool = True
    collected: int = 0
    stopped_at: int | None = None
    saved_at: int | None = None
    step: int = 0
    leaving_in_s: float | None = None
    heard_at: float = 0.0
    fresh: bool = False
    """Heard since this coordinator began; before that its word is old."""
    silent: bool = False
    """Nothing was heard for a lease (or it said goodbye and its lease ran out)."""
    warned: tuple[str, ...] = ()
    """What its agent had to do for a rank to be over."""
    stuck: tuple[str, ...] = ()
    """Processes there that cannot be ended; they may hold GPUs, ports and files."""
    swept: tuple[str, ...] = ()
    address: str = ""
    peer_port: int = 0
    gone: str = ""
    """Why it said goodbye, or which other job holds it; empty while connected."""
    order: JobOrder | None = None
    """What it was told last, and the life of the agent that was told."""
    order_boot: str = ""


@dataclass(slots=True)
class AttemptRecord:
    """One incarnation of all workers."""

    number: int
    seats: tuple[Seat, ...]
    cause: str
    """ZRUN_RESTART_CAUSE; empty for the first."""
    ordered_at: float
    best_before: int = 0
    """The newest verified step when it was ordered: going past it is progress."""
    started_at: float | None = None
    """When every rank had completed a step."""
    ended_at: float | None = None
    first_step: int | None = None
    resumed_step: int | None = None
    resumed_from: str | None = None
    resumed_tier: str | None = None
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Checkpoints passed over at the resume."""
    completed: int = 0
    """The newest step known to be completed by every rank."""
    last_step: int | None = None
    """The newest step known to have begun."""
    outcome: Outcome | None = None
    incident: int | None = None
    """The incident that ended it."""
    quarantined: tuple[str, ...] = ()
    """Batches it was told to skip."""
    setup_done: frozenset[str] = frozenset()
    """Nodes that need no setup commands any more."""
    resume: str = "auto"
    """What it was told to begin from: auto | never | a path."""
    fresh: bool = False
    """It was told that other checkpoints in the folder do not count."""
    master_port: int = 0
    """Where its store listens, as the node with node rank 0 told; 0 = not known yet."""
    ranks: dict[str, int] = field(default_factory=dict)
    """How many ranks each of its nodes has told of."""
    ends: dict[str, list[Failure]] = field(default_factory=dict)
    """By node, how its ranks ended badly, as it was last told before everything was down."""
    down: bool = False
    """Proved: every process of it is gone (or its node out of lease)."""

    @property
    def reached(self) -> int:
        """The newest step known to be done on some rank: what is lost is counted from here."""
        return max(self.completed, (self.last_step or 0) - 1)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(seat.node for seat in self.seats)

    @property
    def world(self) -> int | None:
        """The number of its ranks; None until each node has told of its own."""
        counts = [self.ranks.get(seat.node, 0) for seat in self.seats]
        return sum(counts) if all(counts) else None

    def seat_of(self, node: str) -> Seat | None:
        return next((seat for seat in self.seats if seat.node == node), None)


@dataclass(slots=True)
class Incident:
    """A fault with its evidence, verdict, resolution and cost."""

    number: int
    attempt: int
    fault: FaultClass
    opened_at: float
    headline: str
    suspicion: bool = False
    """Named, nothing ended yet."""
    suspected: Suspected | None = None
    patience_left_s: float | None = None
    """Of a suspicion whose suspect is busy with files: patience still to be had once it is not."""
    failures: list[Failure] = field(default_factory=list)
    """All that ended badly, by time."""
    lost_nodes: list[str] = field(default_factory=list)
    roll: tuple[str, ...] = ()
    """What the roll call at the moment of a failure tells of its reason."""
    verdict: Verdict | None = None
    decision: str = ""
    """What was decided after it, and why."""
    resolution: str | None = None
    closed_at: float | None = None
    detected_s: float | None = None
    recovered_s: float | None = None
    steps_lost: int | None = None

    @property
    def open(self) -> bool:
        return self.closed_at is None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A committed checkpoint, as the ranks told it."""

    attempt: int
    step: int
    batch: str
    path: str
    bytes: int
    seconds: float
    tier: str


@dataclass(frozen=True, slots=True)
class Wish:
    """An end (or a new attempt) that somebody asked for and that is under way."""

    what: Literal["stop", "preempt", "restart"]
    how: End
    within_s: float
    why: str
    timed_out: bool = False
    by_force: bool = False
    """A person said at once: a silent node is given up."""

    def at_once(self) -> "Wish":
        """The same, but nothing more is expected of the processes."""
        return Wish(self.what, End.KILL, 2.0, self.why, self.timed_out, self.by_force)


@dataclass(slots=True)
class Spent:
    """Budgets used since they were last filled, and what deterministic failures are told by."""

    by_class: dict[FaultClass, int] = field(default_factory=dict)
    restarts: int = 0
    """Charged restarts, job-wide, since the last verified progress."""
    without_progress: int = 0
    """Failed attempts in a row that went no further than an earlier one."""
    same_as: str = ""
    """Key of the last failure."""
    batch_strikes: dict[str, int] = field(default_factory=dict)
    """`batch@rank` -> attempts that ended there."""
    poison_frame: str = ""
    """Exception and place of the failure whose batch was quarantined last; its step and attempt follow."""
    poison_step: int = 0
    poison_attempt: int = 0


@dataclass(slots=True)
class Job:
    """Everything known of one job but the ranks' rows."""

    job: JobId
    stage: Stage = Stage.WAITING
    reason: str = "not submitted yet"
    spec: JobSpec | None = None
    run_dir: str = ""
    fresh: bool = False
    resume: str = "auto"
    """What the next attempt begins from; auto again once this launch has a checkpoint of its own."""
    launched_after: int = 0
    """Attempts before the newest launch or resume."""
    timed_out: bool = False
    submitted_at: float = 0.0
    ended_at: float | None = None
    attempts: list[AttemptRecord] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    save_failures: list[dict[str, Any]] = field(default_factory=list)
    nodes: dict[str, Member] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    restarts: int = 0
    """Attempts begun after the first, whatever the cause."""
    best_step: int = 0
    """The newest step verified on all ranks, over all attempts."""
    quarantined: list[str] = field(default_factory=list)
    quarantine_lifted: list[str] = field(default_factory=list)
    setup_done: set[str] = field(default_factory=set)
    """Nodes whose setup commands ran."""
    wish: Wish | None = None
    save: int = 0
    """Grows with each `save` asked for."""
    pauses: int = 0
    longest_pause_s: float = 0.0
    """Suspicions that cleared by themselves: what patience is learned from."""
    timers: dict[str, float] = field(default_factory=dict)
    """Name -> when; the only deadlines there are."""

    @property
    def stuck(self) -> list[str]:
        """Processes that outlived their end, in words that name their nodes."""
        return [f"{words} on {node.name}" for node in self.nodes.values() if not node.silent for words in node.stuck]

    @property
    def state(self) -> JobState:
        return SHOWN[self.stage]

    @property
    def over(self) -> bool:
        return self.stage in OVER

    @property
    def current(self) -> AttemptRecord | None:
        """The newest attempt, alive or not."""
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt(self) -> int:
        """Its number; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def open_incident(self) -> Incident | None:
        """At most one is open at a time."""
        last = self.incidents[-1] if self.incidents else None
        return last if last is not None and last.open else None

    @property
    def due(self) -> float:
        """The earliest deadline; inf if there is none."""
        return min(self.timers.values(), default=math.inf)
