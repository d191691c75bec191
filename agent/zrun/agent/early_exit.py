"""When a rank that ended with code 0 ended too early: the others still needed it. Pure.

False alarms matter more than seconds here: many scripts let rank 0 write its last file long after the others left.
"""

from typing import Final

from zrun.agent.rank_story import RankStory
from zrun.core.deck import Flag, Phase
from zrun.core.failure import Failure, FailureKind

WINDOW_S: Final = 5.0
SLACK_S: Final = 0.25
"""A death that nobody announced is seen a little later than its peers feel it."""


def missed(left: RankStory, stories: list[RankStory], failures: list[Failure]) -> bool:
    """Did `left` leave with code 0 while others were at work, one of which failed soon after?

    What that other says (a connection closed by its peer) may be an echo; which of the two counts is not decided here.
    """
    at = left.left_unix
    if at is None or left.signalled_unix is not None or Flag.STOPPED_SAFE in left.flags or _all_steps_done(stories):
        return False
    slack = SLACK_S if left.over_unix is None else 0.0
    return any(
        failure.rank not in (-1, left.rank)
        and failure.kind not in {FailureKind.ENDED_BY_US, FailureKind.EARLY}
        and at - slack <= failure.at <= at + WINDOW_S
        for failure in failures
    )


def _all_steps_done(stories: list[RankStory]) -> bool:
    return all(s.deck is not None and s.deck.completed == s.deck.total_steps > 0 for s in stories)


def patience_s(ended: RankStory, alive: list[RankStory], exit_s: float) -> float:
    """How long after its end `ended` is not yet called early."""
    if all(story.phase in {Phase.EXIT, Phase.DONE} for story in alive):
        return exit_s
    if ended.deck is None or Flag.FINISHED not in ended.flags:
        return WINDOW_S  # os._exit(0), a signal handler that exits 0: the script itself was not over
    behind = ended.deck.completed
    for story in alive:
        deck = story.deck
        if deck is not None and (deck.step > max(behind, ended.deck.step) or deck.in_collective):
            return WINDOW_S
    return exit_s
