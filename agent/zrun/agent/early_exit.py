"""When a rank that ended with code 0 ended too early: the others still needed it. Pure.

False alarms matter more than seconds here: many scripts let rank 0 write its last file long after the others left.
"""

from typing import Final

from zrun.agent.rank_story import RankStory
from zrun.core.deck import Flag, Phase

WINDOW_S: Final = 5.0


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
