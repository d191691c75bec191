"""Folding reports into facts: what a report adds to what the job machine was told, as events in a fixed order.

Pure: no socket, clock or journal. What the machine was told (`Told`) is rebuilt from the journal, so after a restart of
the coordinator nothing is told twice. A beat that changes nothing gives no event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from zrun.coordinator.table import NodeSeen, Table, completed
from zrun.core.deck import Phase
from zrun.core.rows import RankRow, RowFlag
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointsPruned,
    Command,
    CoordinatorStarted,
    DurationOver,
    Event,
    NodeGone,
    NodeHeard,
    NodeSilent,
    ProgressVerified,
    RankEnded,
    RollCalled,
    SaveFailed,
    Suspected,
    Suspended,
)
from zrun.machine.waiting import differing
from zrun.wire.report import Doing, JobReport

VERIFY_EVERY_S: Final = 10.0
"""Progress is journaled at most this often while an attempt runs."""
ALIVE_S: Final = 5.0
"""A script without steps counts as started after this much life."""
NOT_BY_ITSELF: Final = "did not exit within"
"""How an agent says that it had to end a process whose script was over."""
NOT_KILLED: Final = "cannot be killed"
"""How an agent says that a process outlived its end."""
IDLE: Final = JobReport(doing=Doing.IDLE, attempt=0, seen=0)
_NEWS_FIRST: Final = frozenset({Doing.SETUP, Doing.STARTING, Doing.RUNNING})
"""Where the state is news and evidence follows; in the other states the evidence has to be known first."""
_OVER: Final = frozenset({Doing.FAILED, Doing.FINISHED, Doing.IDLE})


@dataclass(slots=True)
class Told:
    """What one job's machine was told so far; changed by `note` alone."""

    heard: dict[str, NodeHeard] = field(default_factory=dict)
    held_off: dict[str, str] = field(default_factory=dict)
    """Nodes told as gone though connected (another job holds them), with their boot."""
    silent: set[str] = field(default_factory=set)
    failures: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    started: int = 0
    alive: int = 0
    """The newest attempt that was called begun, with or without a step."""
    running_since: dict[int, float] = field(default_factory=dict)
    """Attempt -> machine time at which all its nodes ran; not journaled, only delays."""
    verified: tuple[int, int] = (0, 0)
    verified_at: float = 0.0
    saved: set[tuple[int, int, str]] = field(default_factory=set)
    save_failed: set[tuple[int, int, str]] = field(default_factory=set)
    pruned: set[tuple[int, int]] = field(default_factory=set)
    suspected: Suspected | None = None
    suspended: bool = False
    rolled: int = 0
    """The newest attempt of which a roll call told why a rank failed."""
    duration_over: bool = False

    def note(self, event: Event, at: float) -> None:
        """Remember that the machine was told this; called for live and for replayed events alike."""
        match event:
            case NodeHeard():
                self.heard[event.node] = event
                self.held_off.pop(event.node, None)
                self.silent.discard(event.node)
            case NodeGone():
                self.heard.pop(event.node, None)
                self.held_off[event.node] = event.boot
            case NodeSilent():
                self.heard.pop(event.node, None)
                self.silent.add(event.node)
            case CoordinatorStarted():
                self.heard.clear()
                self.silent.clear()
            case RankEnded():
                self.failures[event.node, event.attempt] = event.failures
            case AttemptStarted():
                # With step 0 it only lives: a script without steps, or one whose imports take long. Steps may follow.
                self.started = event.attempt if event.first_step else self.started
                self.alive = event.attempt
                self.running_since.clear()
            case ProgressVerified():
                self.verified, self.verified_at = (event.attempt, event.step), at
            case CheckpointCommitted():
                self.saved.add((event.attempt, event.step, event.tier))
            case SaveFailed():
                self.save_failed.add((event.attempt, event.step, event.error))
            case CheckpointsPruned():
                self.pruned |= {(event.attempt, step) for step in event.steps}
            case Suspected():
                self.suspected = None if event.cleared else event
            case RollCalled():
                self.rolled = event.attempt
            case Suspended():
                self.suspended = event.stopped
            case DurationOver():
                self.duration_over = True
            case Command(what="resume"):
                self.duration_over = False
            case _:
                pass

    def forget_before(self, attempt: int) -> None:
        """Details of attempts older than the last one are not reported again."""
        self.failures = {key: v for key, v in self.failures.items() if key[1] >= attempt - 1}
        self.saved = {key for key in self.saved if key[0] >= attempt - 1}
        self.save_failed = {key for key in self.save_failed if key[0] >= attempt - 1}
        self.pruned = {key for key in self.pruned if key[0] >= attempt - 1}


@dataclass(frozen=True, slots=True)
class Seats:
    """The newest attempt and the nodes it was given to."""

    attempt: int
    nodes: tuple[str, ...]


def facts(job: str, told: Told, seen: NodeSeen, table: Table, seats: Seats, now: float) -> list[Event]:
    """What this node's newest report adds, in the order in which the machine has to hear it."""
    said = seen.job(job) or IDLE
    rows = table.rows(job, seats.attempt, seats.nodes) if seen.node in seats.nodes else None
    found: list[Event] = []
    if said.attempt:
        found += _saves(told, said)
    if rows and said.attempt == seats.attempt:
        found += _progress(job, told, said, rows, table, seats, now)
    if said.failures and told.failures.get((seen.node, said.attempt)) != said.failures:
        found.append(RankEnded(seen.node, said.attempt, said.failures, _age(seen, said)))
    if said.failures and said.attempt == seats.attempt != told.rolled:
        found += _roll(job, table, seats)
    heard = _heard(job, seen, said)
    if _matters(told.heard.get(seen.node), heard):
        found.insert(0 if said.doing in _NEWS_FIRST else len(found), heard)
    return found


def _roll(job: str, table: Table, seats: Seats) -> list[Event]:
    """A rank has failed: do the places of all ranks tell by themselves why?"""
    told = [table.nodes[node].standings(job) for node in seats.nodes if node in table.nodes]
    because = differing({rank: at for of_node in told for rank, at in of_node.items()})
    return [RollCalled(seats.attempt, list(because))] if because else []


def busy(told: Told, seen: NodeSeen, holder: str) -> list[Event]:
    """The node belongs to another job for now."""
    if seen.node in told.heard and told.held_off.get(seen.node) != seen.boot:
        return [NodeGone(seen.node, seen.boot, f"busy with {holder}")]
    return []


def _heard(job: str, seen: NodeSeen, said: JobReport) -> NodeHeard:
    rows = seen.rows_of(job, said.attempt) if said.attempt else []
    return NodeHeard(
        node=seen.node, boot=seen.boot, doing=said.doing, attempt=said.attempt, seen=said.seen, settled=said.settled,
        collected=said.collected, stopped_at=said.stopped_at, saved_at=said.saved_at, term_seen=said.term_seen,
        leaving_in_s=seen.report.leaving_in_s if seen.report else None,
        step=min((completed(row) for row in rows), default=0), ranks=len(rows),
        warned=tuple(words[:300] for words in said.warnings if NOT_BY_ITSELF in words)[:8],
        stuck=tuple(words[:300] for words in said.left_behind if NOT_KILLED in words)[:8],
        swept=tuple(words[:300] for words in said.swept),
        address=seen.report.address if seen.report else "", peer_port=seen.report.peer_port if seen.report else 0,
        master_port=said.master_port,
    )  # fmt: skip


def _matters(old: NodeHeard | None, new: NodeHeard) -> bool:
    """Steps and a shrinking time to leave are beats, all else is news."""
    if old is None:
        return True
    return _without_beats(old) != _without_beats(new)


def _without_beats(heard: NodeHeard) -> tuple[object, ...]:
    return (
        heard.boot, heard.doing, heard.attempt, heard.seen, heard.settled, heard.collected, heard.stopped_at,
        heard.saved_at, heard.term_seen, heard.stuck, heard.swept, heard.leaving_in_s is None,
        heard.address, heard.peer_port, heard.master_port,
    )  # fmt: skip


def _saves(told: Told, said: JobReport) -> list[Event]:
    found: list[Event] = [
        CheckpointCommitted(said.attempt, kept.step, kept.batch, kept.path, kept.bytes, kept.seconds, kept.tier)
        for kept in said.checkpoints
        if (said.attempt, kept.step, kept.tier) not in told.saved
    ]
    for lost in said.save_failures:
        step, error = _whole(lost.get("step")), str(lost.get("error", ""))
        if (said.attempt, step, error) not in told.save_failed:
            found.append(SaveFailed(said.attempt, step, error, bool(lost.get("disk_full"))))
    pruned = [step for step in said.pruned if (said.attempt, step) not in told.pruned]
    if pruned:
        found.append(CheckpointsPruned(said.attempt, pruned))
    return found


def _progress(
    job: str, told: Told, said: JobReport, rows: dict[str, list[RankRow]], table: Table, seats: Seats, now: float
) -> list[Event]:
    found: list[Event] = []
    ranks = [row for of_node in rows.values() for row in of_node]
    if told.started != seats.attempt:
        started = _started(job, told, ranks, table, seats, now)
        if started:
            found.append(started)
    done = min(completed(row) for row in ranks)
    if done and told.verified < (seats.attempt, done):
        first = told.verified[0] != seats.attempt
        if first or said.doing in _OVER or now - told.verified_at >= VERIFY_EVERY_S:
            found.append(ProgressVerified(seats.attempt, done))
    return found


def _started(
    job: str, told: Told, ranks: Sequence[RankRow], table: Table, seats: Seats, now: float
) -> AttemptStarted | None:
    said = [report for node in seats.nodes if (report := table.nodes[node].job(job))]
    resumed = next((report for report in said if report.resumed_step is not None), None)
    stepping = all(RowFlag.STEPPING in row.flags for row in ranks)
    if not stepping and told.alive == seats.attempt:
        return None
    if stepping and resumed is None and any(RowFlag.SESSION in row.flags for row in ranks):
        return None  # the decks were read a moment after the notes: where it went on comes with the next report
    if not stepping:
        has_steps = any((RowFlag.SESSION | RowFlag.STEPPING) & row.flags for row in ranks)
        alive = all(row.phase is not Phase.BOOT for row in ranks) and all(r.doing is Doing.RUNNING for r in said)
        if has_steps or not alive:
            told.running_since.pop(seats.attempt, None)
            return None
        if now - told.running_since.setdefault(seats.attempt, now) < ALIVE_S:
            return None
    return AttemptStarted(
        attempt=seats.attempt,
        first_step=(resumed.resumed_step or 0) + 1 if resumed else int(stepping),
        resumed_step=resumed.resumed_step if resumed else None,
        resumed_from=resumed.resumed_from if resumed else None,
        resumed_tier=resumed.resumed_tier if resumed else "",
        skipped=resumed.skipped if resumed else [],
    )


def _age(seen: NodeSeen, said: JobReport) -> float | None:
    """How long ago the first of the failures happened, both times by the node's own clock."""
    times = [at for failure in said.failures if isinstance(at := failure.get("at"), int | float)]
    return max(0.0, seen.report.at - min(times)) if times and seen.report else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
