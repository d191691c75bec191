"""The node machine's wish for standbys: once the ranks of an attempt step, and again when one is lost. Pure."""

from typing import Final

from zrun.agent import node_events as e
from zrun.agent.node_actions import DropStandbys, PrepareStandbys
from zrun.agent.node_state import NodeState
from zrun.wire.report import Doing

TRIES: Final = 8
"""Sets of standbys between two launches: each may have to leave out one more package."""
UNSEEN_S: Final = 60.0
"""After so long a script whose steps nobody sees is taken to be at work."""


def drive_standbys(state: NodeState) -> None:
    """Never before the ranks have made a step: their imports come first, and teach which modules are wanted."""
    record = state.record
    if state.doing != Doing.RUNNING:
        return
    if record.running_since is None:
        record.running_since = state.now
    alone = record.plan is not None and record.plan.nnodes == 1
    if not state.standby_bytes or not alone or state.standbys_asked or state.standby_tries >= TRIES:
        return
    stories = record.stories.values()
    stepping = all(story.alive and story.deck is not None and story.deck.completed > 0 for story in stories)
    if stepping or state.now >= record.running_since + UNSEEN_S:
        state.standbys_asked = True
        state.standby_tries += 1
        state.out.append(PrepareStandbys("the ranks step: their successors get ready"))


def take(state: NodeState, event: e.StandbyReady | e.StandbyLost) -> None:
    match event:
        case e.StandbyReady(_, size):
            if size > state.standby_bytes:
                _give_up(state, size)
        case e.StandbyLost(rank, left_out):
            state.standbys_asked = False
            why = f"the standby of rank {rank} was lost"
            state.out.append(DropStandbys(f"{why}: {left_out} starts threads or opens a GPU" if left_out else why))


def _give_up(state: NodeState, size: int) -> None:
    if state.standby_bytes:
        why = f"a standby takes {size >> 20} MiB, more than standby.max_memory ({state.standby_bytes >> 20} MiB)"
        state.standby_bytes = 0
        state.record.warn(f"{why}: there are none, a restart starts new workers through torchrun")
        state.out.append(DropStandbys(why))


def launched(state: NodeState) -> None:
    """They have become ranks, or were no good: the next ones are to be made."""
    state.standbys_asked, state.standby_tries = False, 0
