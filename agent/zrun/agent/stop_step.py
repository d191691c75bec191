"""How all ranks of an attempt are brought to stop (or save) at one common step; a pure function of what decks say.

A step holds once every rank has acknowledged it while still at or before it. A rank that is past it without having
acknowledged it never will, so the step is raised under a new sequence number; ranks that wait at the old one go on.
Two rules: nothing here reads a clock or a deck itself, and a confirmed step is never changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from zrun.core.deck import StopKind

MAX_MARGIN: Final = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank is: the step it does (0: before the first), and the newest request it acknowledged."""

    step: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class StopAsk:
    """What the order pages of all ranks say."""

    kind: StopKind
    sequence: int
    step: int
    confirmed: bool = False
    raised: int = 0
    """How often it was too late; each time the margin doubles, so that very fast steps are caught too."""


def propose(places: Iterable[Place], kind: StopKind, sequence: int) -> StopAsk:
    """The first request: one step ahead of the foremost rank, at least step 1."""
    return StopAsk(kind, sequence, max((place.step for place in places), default=0) + 1)


def follow(ask: StopAsk, places: list[Place]) -> StopAsk:
    """The same request, confirmed, or a later step under the next sequence number."""
    if ask.confirmed or not places:
        return ask
    if all(place.acknowledged >= ask.sequence for place in places):
        return replace(ask, confirmed=True)
    if any(place.acknowledged < ask.sequence and place.step > ask.step for place in places):
        margin = min(2**ask.raised, MAX_MARGIN)
        foremost = max(place.step for place in places)
        return replace(ask, sequence=ask.sequence + 1, step=foremost + margin, raised=ask.raised + 1)
    return ask
