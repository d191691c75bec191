"""The last line of a rank's own log, said by zrun: what or whose fault ended it. Pure.

A rank that ended by itself with its own traceback needs none, but the word whose fault the whole end was.
"""

from zrun.agent.failures import ended_by_us, failure_of
from zrun.agent.node_actions import TellRank
from zrun.agent.node_state import NodeState
from zrun.agent.rank_story import RankStory
from zrun.core.failure import Failure, FailureKind


def drive_last_lines(state: NodeState) -> None:
    """Once for each rank that is dead, as soon as there is something to say."""
    why = state.record.ending.why if state.record.ending is not None else ""
    for story in state.record.stories.values():
        if story.told_end or story.alive:
            continue
        failure = failure_of(story, state.node, job_failing=True, why=why)
        text = last_line(story, failure, why, over=state.record.swept)
        if text:
            story.told_end = True
            state.out.append(TellRank(story.rank, text))


def last_line(story: RankStory, failure: Failure | None, why: str, *, over: bool) -> str:
    """`why`: what the whole attempt was ended for, "" while nobody has said so; `over`: nobody is alive here."""
    because = f": {why}" if why else ""
    if story.lingered and ended_by_us(story):
        return "ended by zrun: its script was over, its process was not"
    if failure is None:
        return ""
    if failure.kind in {FailureKind.RAISED, FailureKind.EXITED, FailureKind.OOM} and ended_by_us(story):
        meanwhile = f"it {failure.noticed}" if failure.noticed else "its cleanup still ran"
        return f"ended by zrun while {meanwhile}{because}"
    if failure.exception is None and failure.message:
        return failure.message
    if failure.exception is None and failure.signal is not None:
        return f"killed by {failure.signal}, not by zrun"
    if story.words is None and story.exit_code:
        return f"exited with code {story.exit_code}, not ended by zrun"
    own = why.startswith((f"rank {story.rank}:", "ranks "))
    return f"it ended by itself; the attempt ended because of {why}" if over and why and not own else ""
