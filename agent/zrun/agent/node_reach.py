"""Silence has two readings: is the coordinator down, or is this node cut off from everybody?

Pure. Times are seconds that this process lived through: a pause counts half a second at most, so that no stall of its
own accuses anybody. Knows nothing about datagrams, nor about what is done next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from zrun.wire.order import Order

LONGEST_TICK_S: Final = 0.5
DOUBT: Final = 0.3
"""Parts of a lease: so much silence of the coordinator, and the peers are asked."""
DECIDE: Final = 0.85
"""Then this node is cut off or it is not: what is left of the lease is for ending its workers."""
DEAF: Final = 0.4
"""A peer that did not answer for so long is unreachable."""
FRESH: Final = 0.35
"""A peer that was heard by the coordinator so lately is in touch with it."""
RETURN_S: Final = 10.0
"""How long agents may take, one after the other, to find a coordinator that was away."""


class Reading(StrEnum):
    IN_TOUCH = "in touch"
    DOUBT = "in doubt"
    COORDINATOR_AWAY = "the coordinator is away"
    CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class Judgement:
    reading: Reading
    why: str = ""


@dataclass(slots=True)
class _Peer:
    answered: float
    heard: float
    """When the coordinator last heard it, by its own word."""
    hears_since: float | None = None
    """None: it is out of touch too."""


def begins_with_others(order: Order) -> bool:
    """Does it want an attempt run on this node and on others?"""
    return any(wish.run is not None and wish.run.nnodes > 1 for wish in order.jobs.values())


class Reach:
    """Of one agent; `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._last = now
        self.lived = 0.0
        self._contact = 0.0
        self._sent: dict[int, float] = {}
        self._peers: dict[tuple[str, str], _Peer] = {}

    def tick(self, now: float) -> None:
        self.lived += min(max(now - self._last, 0.0), LONGEST_TICK_S)
        self._last = now

    @property
    def quiet_s(self) -> float:
        """Since the newest report that the coordinator is known to have heard was sent: its lease runs from there."""
        return self.lived - self._contact

    def sent(self, serial: int) -> None:
        self._sent[serial] = self.lived

    def acked(self, serial: int) -> None:
        at = self._sent.get(serial)
        if at is None or at < self._contact:
            return
        self._contact = at
        self._sent = {number: sent for number, sent in self._sent.items() if number >= serial}
        self._peers.clear()  # what they said was about a silence that is over

    def answered(self, job: str, peer: str, age_s: float, lease_s: float) -> None:
        """The coordinator heard `peer` `age_s` ago, it says."""
        heard = self.lived - age_s
        fresh = age_s < FRESH * lease_s
        known = self._peers.get((job, peer))
        if known is None:
            self._peers[job, peer] = _Peer(self.lived, heard, self._contact if fresh else None)
            return
        known.answered, known.heard = self.lived, max(known.heard, heard)
        if not fresh:
            known.hears_since = None
        elif known.hears_since is None:
            known.hears_since = self.lived

    def too_late(self, lease_s: float) -> bool:
        """May an order that comes now be older than the lease? This node may have been taken for lost since, and others
        ordered. Asked after its frame has said which report had been heard.
        """
        return self.quiet_s >= DECIDE * lease_s

    def judge(self, job: str, peers: Sequence[str], lease_s: float) -> Judgement:
        """`peers`: all other nodes of the attempt."""
        if self.quiet_s < DOUBT * lease_s:
            return Judgement(Reading.IN_TOUCH)
        if self.quiet_s < DECIDE * lease_s:
            return Judgement(Reading.DOUBT)
        silence = f"the coordinator has not answered for {self.quiet_s:.1f} s"
        for name in peers:
            peer = self._peers.get((job, name))
            if peer is None or self.lived - peer.answered > DEAF * lease_s:
                return Judgement(Reading.CUT_OFF, f"{silence}, nor does node {name}")
            if peer.hears_since is not None and self._had_time(peer.hears_since, lease_s):
                return Judgement(Reading.CUT_OFF, f"{silence}, but node {name} is in touch with it")
        return Judgement(Reading.COORDINATOR_AWAY, f"{silence}; {', '.join(peers)} do not hear it either")

    def _had_time(self, since: float, lease_s: float) -> bool:
        """A peer that never lost touch proves it at once; after an absence not all come back at the same moment."""
        return since <= self._contact or self.lived - since >= max(RETURN_S, DECIDE * lease_s)
