"""The node machine's judgement of ranks that end by themselves: all well, too early, or not ended though over. Pure."""

from typing import Final

from zrun.agent import early_exit
from zrun.agent.node_actions import Collect
from zrun.agent.node_state import NodeState
from zrun.agent.rank_story import RankStory
from zrun.wire.report import Doing

EVIDENCE_S: Final = 4.0
LEAVING_S: Final = 0.3
"""What a rank gets to end by itself, with final words, once its exception is sure to leave the script."""
AT_WORK: Final = frozenset({Doing.STARTING, Doing.RUNNING})


def early_times(state: NodeState) -> list[tuple[RankStory, float]]:
    """Ranks that left with code 0 while others stay, and when that will be called too early."""
    record = state.record
    if state.doing not in AT_WORK or not record.living or not record.all_seen:
        return []
    if all(story.finished_at is not None for story in record.living):
        return []  # they only linger: nobody is missed
    return [
        (story, story.ended_at + early_exit.patience_s(story, record.living, state.exit_s))
        for story in record.stories.values()
        if story.ended_at is not None and story.exit_code == 0 and not story.early
    ]


def leaving_times(state: NodeState) -> list[tuple[RankStory, float]]:
    """Ranks whose exception will leave the script, but whose cleanup goes on, and when that counts as their end."""
    if state.doing not in (*AT_WORK, Doing.FAILED, Doing.STOPPING) or state.record.killing:
        return []
    return [
        (story, story.leaving_at + LEAVING_S)
        for story in state.record.living
        if story.words is None and story.leaving_at is not None and story.fresh_candidate() is not None
    ]


def linger_at(state: NodeState) -> float | None:
    """When ranks whose script is over, but whose process is not, have been waited for long enough."""
    record = state.record
    if state.doing not in AT_WORK or record.killing or not record.living or not record.all_seen:
        return None
    if not all(story.finished or story.finished_at is not None for story in record.stories.values()):
        return None
    began = max(story.finished_at or story.ended_at or 0.0 for story in record.stories.values())
    return began + state.exit_s + (EVIDENCE_S if record.lingering_asked and not record.lingering_seen else 0.0)


def drive_phase(state: NodeState) -> None:
    """Did a rank fail, or have all of them begun?"""
    for story, at in leaving_times(state):
        if state.now >= at:  # whatever its cleanup is waiting for: nobody waits for it
            story.words = story.candidate
    if state.doing in (*AT_WORK, Doing.FAILED):
        _look_for_who_left(state)
    if state.doing not in (Doing.SETUP, *AT_WORK):
        return
    for story, at in early_times(state):
        story.early = state.now >= at
    if state.failures(failing=False):
        state.record.failed_at = state.now
        state.move(Doing.FAILED)
    elif state.doing == Doing.STARTING and state.record.all_booted:
        state.move(Doing.RUNNING)


def _look_for_who_left(state: NodeState) -> None:
    """A rank failed: did it lose one that had left with code 0?"""
    stories = list(state.record.stories.values())
    failures = state.failures(failing=False)
    for story in stories if failures else []:
        story.early = story.early or early_exit.missed(story, stories, failures)


def drive_end_of_ranks(state: NodeState) -> None:
    """All ranks ended: torchrun and whatever they left is ended too, and only then the end is published."""
    record = state.record
    linger = linger_at(state)
    if linger is not None and state.now >= linger:
        _end_lingering(state)
    if state.doing in (*AT_WORK, Doing.FAILED) and record.all_ended and not record.swept:
        state.kill("all ranks have ended")
    if state.doing in AT_WORK and record.all_ended and record.swept:
        state.move(Doing.FINISHED)


def _end_lingering(state: NodeState) -> None:
    record = state.record
    if not record.lingering_asked:
        record.lingering_asked = True
        state.out.append(Collect(0, "the script is over, its process is not"))
        return
    for story in record.living:
        story.lingered = True
        record.warn(f"rank {story.rank} did not exit within {state.exit_s:g} s of its script's end: ended")
    state.kill("the script was over, its processes were not")
