"""The node machine's wish for the built recorder: once the ranks of an attempt step, and record in Python. Pure."""

from zrun.agent.node_actions import BuildRecorder
from zrun.agent.node_state import NodeState
from zrun.core.deck import Flag
from zrun.wire.report import Doing


def drive_recorder(state: NodeState) -> None:
    """At most once an attempt, and never before its ranks have made a step: nobody waits for a compiler."""
    record = state.record
    stories = list(record.stories.values())
    if record.recorder_asked or state.doing != Doing.RUNNING or not stories:
        return
    if not all(story.deck is not None and story.deck.completed > 0 for story in stories):
        return
    if any(Flag.RECORDER in story.flags and Flag.BUILT_RECORDER not in story.flags for story in stories):
        record.recorder_asked = True
        state.out.append(BuildRecorder("collectives are recorded in Python until the built recorder is there"))
