"""The node machine's wish that ranks keep their state before they are ended, and how long it is waited for. Pure.

At a fault each rank that can puts the state of its last whole step into memory: the raising one as it leaves, the
others when asked, wherever they stand. Nobody is waited for who cannot answer.
"""

from typing import Final

from zrun.agent.node_actions import WriteOrderPages
from zrun.agent.node_state import NodeState
from zrun.agent.rank_story import RankStory
from zrun.agent.stop_step import StopAsk
from zrun.core.deck import StopKind
from zrun.wire.order import Ending
from zrun.wire.report import Doing

HOLD_S: Final = 0.8
"""To begin with the copy: a rank whose optimizer steps gets to the step's end meanwhile."""
BYTES_PER_S: Final = 250e6
"""A copy with its digests is faster by far; so slow it may be beside other ranks' copies on few cores."""
LONGEST_S: Final = 60.0


def drive_hold(state: NodeState, ending: Ending | None) -> None:
    """Ask once an attempt, when it has failed or is to be ended for a fault elsewhere."""
    record = state.record
    failed = state.doing == Doing.FAILED or (ending is not None and ending.keep and state.doing == Doing.RUNNING)
    if not failed or record.hold_until is not None or record.killing:
        return
    able = [story for story in record.living if story.holds]
    record.hold_until = state.now + HOLD_S if able else state.now
    if able:
        record.ask = StopAsk(StopKind.HOLD, record.next_sequence(), 0)
        state.out.append(WriteOrderPages(record.ask, HOLD_S, "something has failed: keep the state of the last step"))


def holding(state: NodeState) -> bool:
    """Is somebody's copy still worth waiting for?"""
    until = hold_time(state)
    return until is not None and state.now < until


def hold_time(state: NodeState) -> float | None:
    """When nobody's copy is waited for any longer; None: nobody's is."""
    record = state.record
    if record.hold_until is None or record.killing or state.leave or record.cut_off:
        return None
    waited = [story for story in record.living if _may_answer(state, story)]
    if not waited:
        return None
    sizes = [story.holding_bytes for story in waited if story.holding_bytes]
    more_s = min(LONGEST_S, max(sizes) / BYTES_PER_S) if sizes else 0.0
    return record.hold_until + more_s


def _may_answer(state: NodeState, story: RankStory) -> bool:
    if not story.holds or story.held is not None:
        return False
    return story.holding_bytes > 0 or story.answers(state.now)
