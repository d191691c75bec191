"""Who waits for whom, group by group: the graph of waiting among ranks that all stand still. Pure, without memory.

A rank inside a collective waits for the members of its group that have not come to it. Follow that to its end: a rank
that is in no collective, one that does not leave an earlier one, a circle (a deadlock across groups), or a collective
that all have entered. Only collectives of one group are compared; send and recv pair two ranks and say nothing about
the others. It knows nothing about time, phases or nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zrun.core.standing import POINT_TO_POINT, Standing
from zrun.machine.wording import span

_TOLD: Final = 8
"""Ranks of a circle told one by one."""
Standings = Mapping[int, Sequence[Standing]]
"""rank -> where it stands on each group it was seen on."""
_SAME_SIZE: Final = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "allreduce_coalesced",
})  # fmt: skip
"""All ranks have to bring equally many bytes."""


@dataclass(frozen=True, slots=True)
class Knot:
    """What the waiting comes down to.

    `kind`: not-arrived | behind | deadlock | mismatched | stalled-in-collective | inconclusive.
    """

    kind: str
    culprits: tuple[int, ...]
    because: tuple[str, ...]
    certain: bool = False
    """Of a deadlock or mismatch: each culprit is where it can do nothing else until the others have come."""


@dataclass(frozen=True, slots=True)
class _Waits:
    """Who is where, and who has not come there yet. Ranks at one place wait for the same ranks, so places are looked
    at and not pairs of ranks: there may be thousands.
    """

    inside: Mapping[int, Standing]
    place: Mapping[int, "_Place"]
    """Rank -> where it is inside."""
    behind: Mapping["_Place", tuple[int, ...]]
    """Place -> the members of its group who have not come to it."""

    def awaited_by(self, rank: int) -> tuple[int, ...]:
        return self.behind[self.place[rank]] if rank in self.place else ()

    def reached(self, start: "_Place") -> frozenset[int]:
        """Whom ranks at this place wait for, and whom those wait for, and so on."""
        found: set[int] = set()
        known, ahead = {start}, [start]
        while ahead:
            fresh = set(self.behind[ahead.pop()]) - found
            found |= fresh
            further = {self.place[rank] for rank in fresh if rank in self.place} - known
            known |= further
            ahead += further
        return frozenset(found)


_Place = tuple[int, int]
"""Group and sequence on it."""


def untie(standings: Standings) -> Knot | None:
    """None: nobody is inside a collective of several ranks, so nothing can be said."""
    waits = _waits(standings)
    inside = waits.inside
    if not inside:
        return None
    if not any(waits.behind.values()):
        return _mismatch(inside) or _contradiction(inside, standings) or _stall(inside)
    reached = {place: waits.reached(place) for place in waits.behind}
    ends = sorted({rank for ranks in reached.values() for rank in ranks if not waits.awaited_by(rank)})
    outside = tuple(rank for rank in ends if rank not in inside)
    if outside:
        return Knot("not-arrived", outside, _reasons(outside, waits))
    circle = _circle(waits, reached)
    if circle:
        certain = all(inside[rank].blocking for rank in circle)
        return Knot("deadlock", circle, _circle_in_words(circle, waits), certain)
    mismatch = _mismatch({rank: inside[rank] for rank in ends})
    return mismatch or Knot("behind", tuple(ends), _reasons(tuple(ends), waits))


def _waits(standings: Standings) -> _Waits:
    inside = {rank: here for rank, at in sorted(standings.items()) if (here := _newest_inside(at)) is not None}
    place = {rank: (here.group, here.sequence) for rank, here in inside.items()}
    members: dict[int, list[tuple[int, int]]] = {}
    for rank, at in sorted(standings.items()):
        for here in at:
            members.setdefault(here.group, []).append((rank, here.sequence))
    behind = {
        (group, sequence): tuple(rank for rank, at in members.get(group, ()) if at < sequence)
        for group, sequence in sorted(set(place.values()))
    }
    return _Waits(inside, place, behind)


def _stall(inside: Mapping[int, Standing]) -> Knot:
    return Knot("stalled-in-collective", tuple(sorted(inside)), ())


def _contradiction(inside: Mapping[int, Standing], standings: Standings) -> Knot | None:
    """Ranks still inside a collective that others have left: it is over for some and not for others."""
    for _, here in sorted(inside.items()):
        gone = [
            other for other, at in sorted(standings.items())
            if other not in inside and any(s.group == here.group and s.sequence >= here.sequence for s in at)
        ]  # fmt: skip
        if gone:
            still = [other for other, s in inside.items() if (s.group, s.sequence) == (here.group, here.sequence)]
            what = f"{here.op} #{here.sequence}"
            return Knot("inconclusive", tuple(sorted({*gone, *still})), (
                f"{span(still)} still in {what}, which {span(gone)} left: the signs contradict each other",
            ))  # fmt: skip
    return None


def differing(standings: Standings) -> tuple[str, ...]:
    """After a failure, when nobody may be inside any more: did ranks do different things at one place?"""
    groups = sorted({s.group for at in standings.values() for s in at})
    for group in groups:
        newest = {rank: s for rank, at in standings.items() for s in at if s.group == group}
        knot = _mismatch({rank: s for rank, s in newest.items() if s.op not in POINT_TO_POINT})
        if knot is not None:
            return knot.because
    return ()


def _newest_inside(at: Sequence[Standing]) -> Standing | None:
    held = [here for here in at if here.inside and here.op not in POINT_TO_POINT]
    return held[-1] if held else None


def _circle(waits: _Waits, reached: Mapping[_Place, frozenset[int]]) -> tuple[int, ...]:
    """Ranks that wait for each other in rings that wait for nobody else; () if there are none."""
    found: set[int] = set()
    for ranks in set(reached.values()):
        if ranks and all(rank in waits.place and reached[waits.place[rank]] == ranks for rank in ranks):
            found |= ranks
    return tuple(sorted(found))


def _mismatch(inside: Mapping[int, Standing]) -> Knot | None:
    """Of ranks for whom nobody is missing: do some not do the same thing in the same place?"""
    for group in sorted({here.group for here in inside.values()}):
        here = {rank: s for rank, s in inside.items() if s.group == group}
        for sequence in sorted({s.sequence for s in here.values()}):
            at = {rank: s for rank, s in here.items() if s.sequence == sequence}
            kinds = _by(at, lambda s: s.op)
            if len(kinds) > 1:
                return Knot(
                    "mismatched", tuple(sorted(at)), (f"different collectives: {_listed(kinds)}",), certain=True
                )
            sizes = _by(at, lambda s: f"{s.bytes} bytes")
            if len(sizes) > 1 and next(iter(kinds)) in _SAME_SIZE:
                what = f"{next(iter(kinds))} #{sequence}"
                return Knot(
                    "mismatched", tuple(sorted(at)), (f"different sizes in {what}: {_listed(sizes)}",), certain=True
                )
    return None


def _by(at: Mapping[int, Standing], key: Callable[[Standing], str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, here in sorted(at.items()):
        found.setdefault(key(here), []).append(rank)
    return found


def _listed(found: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{span(ranks)} {what}" for what, ranks in found.items())


def _reasons(culprits: Sequence[int], waits: _Waits) -> tuple[str, ...]:
    """One line for each collective in which somebody waits for a culprit."""
    named, held = set(culprits), dict[str, set[int]]()
    for place, ranks in waits.behind.items():
        if named & set(ranks):
            for rank in (rank for rank, at in waits.place.items() if at == place):
                held.setdefault(f"{waits.inside[rank].op} #{place[1]}", set()).add(rank)
    return tuple(f"{span(ranks)} can only wait in {where}" for where, ranks in held.items())


def _circle_in_words(circle: Sequence[int], waits: _Waits) -> tuple[str, ...]:
    groups = sorted({waits.inside[rank].group for rank in circle})
    return tuple(
        f"rank {rank} is in {waits.inside[rank].op} #{waits.inside[rank].sequence} of group "
        f"{groups.index(waits.inside[rank].group) + 1} and waits for "
        f"{span(other for other in waits.awaited_by(rank) if other in circle)}"
        for rank in circle[:_TOLD]
    )
