"""A rank's half of stopping all ranks at one step: acknowledge while still before it, wait at it, then obey.

The agent's half: it names a step, raises it if some rank is past it already, and confirms it once every rank has
acknowledged. So a step that is confirmed is one at which every rank will stand. Nothing here is a collective.
"""

import time
from collections.abc import Callable
from typing import Final

from zrun.core.deck import StopKind
from zrun.core.deck_writer import StopRequest
from zrun.worker.rank import ThisRank

_POLL_S: Final = 0.02
_UNTIMED_S: Final = 30.0
"""How long a request without a deadline is waited for."""


class Stops:
    """One for each Session. `clock` is Unix time: the deadline on the order page is."""

    def __init__(self, rank: ThisRank, clock: Callable[[], float] = time.time) -> None:
        self._rank = rank
        self._clock = clock
        self._obeyed = 0

    def requested(self) -> bool:
        """All ranks are asked to stop."""
        request = self._rank.stop_request()
        return request is not None and request.kind is StopKind.STOP

    def at_top(self, step: int) -> None:
        """At the top of `step`, after the deck says so: promise to stand at the requested step."""
        request = self._rank.stop_request()
        if request is not None and step <= request.step:
            self._acknowledge(request)

    def at_bottom(self, step: int) -> StopKind:
        """After `step` is completed: what all ranks are to do here and now, waiting for the confirmation if need be."""
        request = self._rank.stop_request()
        give_up = 0.0
        while request is not None and request.step == step and request.sequence != self._obeyed:
            if request.confirmed:
                self._obeyed = request.sequence
                return request.kind
            self._acknowledge(request)
            give_up = give_up or (request.deadline or self._clock() + _UNTIMED_S)
            if self._clock() >= give_up:
                self._obeyed = request.sequence
                self._rank.warn(f"the stop at step {step} was not confirmed in time: training goes on")
                break
            time.sleep(_POLL_S)
            request = self._rank.stop_request() or self._again()
        return StopKind.NONE

    def _again(self) -> StopRequest | None:
        """The page reads as empty for the moment in which the agent writes it: look twice."""
        time.sleep(_POLL_S)
        return self._rank.stop_request()

    def _acknowledge(self, request: StopRequest) -> None:
        if self._rank.deck is not None:
            self._rank.deck.acknowledge(request.sequence)
