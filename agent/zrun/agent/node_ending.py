"""The node machine's way to end an attempt: save and stop together, then TERM, then KILL; never by ranks agreeing.

Pure. Evidence that was asked for is awaited before anything here is called.
"""

from typing import Final

from zrun.agent.node_actions import SignalRanks, WriteOrderPages
from zrun.agent.node_state import NodeState
from zrun.agent.rank_story import RankStory
from zrun.agent.stop_step import Place, StopAsk, follow, propose
from zrun.core.deck import Flag, StopKind
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import End, Ending
from zrun.wire.report import Doing

IDLE_TERM_S: Final = 5.0
"""From TERM to KILL where the order names no time."""
LAST_GRACE_S: Final = 1.0
SAVE_WAIT_S: Final = 60.0
"""How long a rank waits at the save step for the word that all others have seen it."""


def wanted_ending(state: NodeState) -> Ending | None:
    """How the processes here are to be ended, by what is newest; None: not at all."""
    order, record = state.order, state.record
    if state.doing == Doing.IDLE:
        return None
    if state.leave:
        return Ending(End.KILL, 0.0, state.leave)
    if record.cut_off:
        return Ending(End.KILL, 0.0, record.cut_off)
    if order is None:
        return record.ending
    if order.release:
        return Ending(End.KILL, 0.0, "the job is over")
    if order.ending is not None and order.attempt == record.attempt:
        return order.ending
    ordered = order.run.attempt if order.run is not None else order.attempt
    if ordered > record.attempt:
        return Ending(End.KILL, 0.0, f"attempt {ordered} takes its place")
    if order.run is None and order.ending is None and record.ending is None:
        return Ending(End.TERM, IDLE_TERM_S, order.why or "ordered to be idle")
    return record.ending


def cut_off(state: NodeState, why: str, unix: float) -> None:
    """Nobody may be asked, and others may go on without this node: what runs here is ended now."""
    record = state.record
    if state.doing in (Doing.IDLE, Doing.FINISHED) or record.cut_off:
        return
    record.cut_off, record.lost_launch = why, None
    if state.doing != Doing.STOPPING and record.failed_at is None:
        record.node_failure = Failure(rank=-1, node=state.node, kind=FailureKind.NODE, at=unix, message=why)


def begin_ending(state: NodeState, ending: Ending) -> None:
    record = state.record
    if record.ending is None or record.ending.how != ending.how:
        record.ending_since = state.now
    record.ending = ending
    record.ending_until = record.ending_since + ending.within_s
    if state.doing != Doing.STOPPING:
        state.move(Doing.STOPPING)


def drive_ending(state: NodeState, ending: Ending) -> None:
    record = state.record
    if record.ending != ending or state.doing != Doing.STOPPING:
        begin_ending(state, ending)
    if record.killing:
        return
    living = record.living
    if ending.how == End.KILL or not living:
        state.kill(ending.why)
    elif record.termed_at is not None:
        record.kill_at = min(record.kill_at, max(record.ending_until, record.termed_at + LAST_GRACE_S))
        if state.now >= record.kill_at:
            state.kill(f"{ending.why} (alive {state.now - record.termed_at:.1f} s after TERM)")
    elif ending.how == End.SAVE and _obey_together(state, living) and state.now < record.ending_until:
        drive_stop(state, StopKind.STOP, max(0.0, record.ending_until - state.now), ending.why)
    else:
        _term(state, living, ending)


def _obey_together(state: NodeState, stories: list[RankStory]) -> bool:
    """Every rank obeys stop requests and none has failed: otherwise a common step will not come."""
    return all(Flag.SESSION in story.flags for story in stories) and not state.failures(failing=False)


def _term(state: NodeState, living: list[RankStory], ending: Ending) -> None:
    record = state.record
    rest = max(record.ending_until - state.now, LAST_GRACE_S)
    record.termed_at, record.kill_at = state.now, state.now + rest
    if record.ask is None or record.ask.kind != StopKind.STOP:
        # A rank takes TERM for a preemption unless its order page asks it to stop.
        record.ask = StopAsk(StopKind.STOP, record.next_sequence(), 0)
        state.out.append(WriteOrderPages(record.ask, rest, ending.why))
    state.out.append(SignalRanks([story.rank for story in living], "TERM", ending.why))


def drive_stop(state: NodeState, kind: StopKind, within_s: float, why: str) -> None:
    """One turn of the protocol in stop_step.py."""
    record = state.record
    places = [
        Place(story.deck.step, story.deck.ack_seq)
        for story in record.stories.values()
        if story.alive and story.deck is not None and Flag.STOPPED_SAFE not in story.flags
    ]
    if not places:
        return
    before = record.ask
    if before is None or before.kind != kind:
        record.ask = propose(places, kind, record.next_sequence())
    else:
        record.ask = follow(before, places)
    if record.ask != before:
        record.sequence = record.ask.sequence
        state.out.append(WriteOrderPages(record.ask, within_s, why))


def drive_save(state: NodeState) -> None:
    """A save asked for in the order: one at a time, the newest wish last."""
    record, wanted = state.record, state.order.save if state.order else 0
    if state.doing != Doing.RUNNING or not _obey_together(state, list(record.stories.values())):
        return
    if wanted > state.save_taken and not record.saving:
        state.save_taken = wanted
        record.saving, record.ask = True, None
    if record.saving:
        drive_stop(state, StopKind.SAVE, SAVE_WAIT_S, "a save was asked for")
