"""Who is where: which ranks wait, which one they wait for, and that in one line. Pure, without memory.

It sorts ranks of which none may have moved for a while; whether that is long enough is for hang.py to say.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from zrun.core.rows import RankRow, RowFlag
from zrun.core.standing import POINT_TO_POINT, Standing
from zrun.machine.limits import Limit
from zrun.machine.waiting import untie
from zrun.machine.wording import span

IDLE_CPU: Final = 0.05
BUSY_CPU: Final = 0.8
_LISTED: Final = 4
"""Ranks told one by one; of more only the number is given."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One living rank at this look."""

    row: RankRow
    node: str
    quiet_s: float
    """Since its last sign of progress, time in which it was stopped or could not be seen left out."""
    limit: Limit
    own_phase: str = ""
    """The name of the script's own phase it is in."""
    standings: Sequence[Standing] = ()
    """Where it stands on each of its groups, the newest last; () if its agent has not told (yet)."""

    @property
    def rank(self) -> int:
        return self.row.rank

    @property
    def inside(self) -> bool:
        return RowFlag.IN_COLLECTIVE in self.row.flags

    @property
    def recorded(self) -> bool:
        return RowFlag.RECORDER in self.row.flags

    @property
    def place(self) -> str:
        """`all_reduce #17`: its newest collective, counted on its group where that is known."""
        if self.standings:
            return f"{self.standings[-1].op} #{self.standings[-1].sequence}"
        return f"{self.row.coll_op} #{self.row.coll_seq}"

    @property
    def over(self) -> bool:
        return self.quiet_s >= self.limit.seconds


@dataclass(frozen=True, slots=True)
class Sides:
    """If nobody moves: the ranks it hangs on, and those that only wait for them."""

    kind: str
    """not-arrived | behind | deadlock | mismatched | stalled-in-collective | inconclusive | all-in-loader | all-stuck;
    of hang.py also stopped | node-frozen | early-exit | slow.
    """
    culprits: Sequence[Seen]
    waiting: Sequence[Seen]
    because: Sequence[str] = ()
    certain: bool = False
    """Nothing the culprits do by themselves can free them."""


def take_sides(seen: Sequence[Seen]) -> Sides:
    """Sort all living ranks: by the waiting of group on group where that is told, else as if there were one group."""
    recorded = all(s.recorded for s in seen)
    knot = untie({s.rank: s.standings for s in seen}) if recorded and all(s.standings for s in seen) else None
    if knot is not None:
        culprits = [s for s in seen if s.rank in knot.culprits]
        return Sides(knot.kind, culprits, [s for s in seen if s not in culprits], knot.because, knot.certain)
    inside = [s for s in seen if s.inside]
    outside = [s for s in seen if not s.inside]
    if inside and outside:
        furthest = max(s.row.coll_seq for s in inside)
        absent = [s for s in outside if s.row.coll_seq < furthest]
        if not absent:
            return Sides(
                "inconclusive", list(seen), [], [f"{span(s.rank for s in outside)} came further than the others"]
            )
        return Sides("not-arrived", absent, [s for s in seen if s not in absent])
    if recorded and len({s.row.coll_seq for s in seen}) > 1:
        least = min(s.row.coll_seq for s in seen)
        behind = [s for s in seen if s.row.coll_seq == least]
        kind = "behind" if inside else "not-arrived"
        return Sides(kind, behind, [s for s in seen if s not in behind])
    if len({s.row.step for s in seen}) > 1:
        least = min(s.row.step for s in seen)
        behind = [s for s in seen if s.row.step == least]
        return Sides("behind", behind, [s for s in seen if s not in behind])
    return Sides(_alike(seen, bool(inside)), list(seen), [])


def _alike(seen: Sequence[Seen], inside: bool) -> str:
    if inside:
        ops = {s.row.coll_op for s in seen}
        return "mismatched" if len(ops) > 1 and not ops & POINT_TO_POINT else "stalled-in-collective"
    return "all-in-loader" if all(RowFlag.IN_LOADER in s.row.flags for s in seen) else "all-stuck"


def collective_of(sides: Sides) -> str | None:
    """`all_reduce #17`: where most of those that wait are, else where the culprits are."""
    for group in (sides.waiting, sides.culprits):
        places = Counter(s.place for s in group if s.recorded and s.row.coll_seq)
        if places and any(s.inside for s in group) | (group is sides.waiting):
            return places.most_common(1)[0][0]
    return None


def call_the_roll(sides: Sides, total: int) -> str:
    """`3 of 4 ranks in all_reduce #17; rank 2 not there (phase step, step 41, batch e0-s000041-…)`."""
    who = span(s.rank for s in sides.culprits)
    place = collective_of(sides)
    still = min(s.quiet_s for s in sides.culprits)
    match sides.kind:
        case "not-arrived" if place:
            verb = "in" if any(s.inside for s in sides.waiting) else "past the entry of"
            return f"{_count(sides.waiting, total)} {verb} {place}; {who} not there{details(sides.culprits)}"
        case "behind" if place and sides.culprits[0].inside:
            return (
                f"{_count(sides.waiting, total)} in {place}; {who} still in {sides.culprits[0].place}"
                f"{details(sides.culprits)}"
            )
        case "stalled-in-collective":
            return f"all {total} ranks in {place} for {still:.1f} s and none leaves it{details(sides.culprits[:1])}"
        case "mismatched":
            what = sides.because[0] if sides.because else f"different collectives: {_by_collective(sides.culprits)}"
            return f"ranks are in {what}{details(sides.culprits[:1])}"
        case "deadlock":
            return f"{who} wait for each other across groups: {'; '.join(sides.because)}{details(sides.culprits[:1])}"
        case "inconclusive":
            return (
                f"{who} without progress for {still:.1f} s and it is not clear for whom they wait: "
                f"{'; '.join(sides.because)}{details(sides.culprits)}"
            )
        case "all-in-loader":
            return f"{_all(total)} in the data loader for {still:.1f} s{details(sides.culprits[:1])}"
        case "all-stuck":
            return (
                f"{_all(total)} without progress for {still:.1f} s, none in a collective{details(sides.culprits[:1])}"
            )
        case _:
            return f"{who} behind: no progress for {still:.1f} s{details(sides.culprits)}, others at {_front(sides)}"


def details(group: Sequence[Seen]) -> str:
    """` (phase step, step 41, batch …)`; of many ranks the first few, each with its number."""
    told = [_place(s) for s in group[:_LISTED]]
    if len(group) == 1:
        return f" ({told[0]})"
    listed = "; ".join(f"{s.rank}: {text}" for s, text in zip(group, told, strict=False))
    more = f"; and {len(group) - _LISTED} more" if len(group) > _LISTED else ""
    return f" ({listed}{more})"


def roll_line(row: RankRow, own_phase: str = "") -> str:
    """One rank for the whole list: `rank 2: alive, phase step, step 41, batch …, in all_reduce #17, 2.5 s`."""
    seen = Seen(row, "", row.age_s, Limit("", 0.0, ""), own_phase)
    state = "failed" if RowFlag.FAILED in row.flags else "finished" if RowFlag.FINISHED in row.flags else ""
    state = state or ("alive" if RowFlag.ALIVE in row.flags else "absent")
    where = f"in {row.coll_op} #{row.coll_seq}" if seen.inside else f"in no collective (last #{row.coll_seq})"
    return f"rank {row.rank}: {state}, {_place(seen)}, {where}, last progress {row.age_s:.1f} s before"


def _place(seen: Seen) -> str:
    row = seen.row
    words = [f"phase {seen.own_phase or row.phase.label}"]
    if row.step:
        words.append(f"step {row.step}")
    if row.batch is not None:
        words.append(f"batch {row.batch}")
    if RowFlag.IN_LOADER in row.flags:
        words.append("in its data loader")
    if RowFlag.GIL_HELD in row.flags:
        words.append("alive, interpreter blocked (GIL)")
    if row.state == "D":
        words.append("in uninterruptible sleep")
    elif row.state == "T":
        words.append(f"stopped for {row.stopped_s:.1f} s")
    elif row.cpu >= BUSY_CPU:
        words.append(f"busy with {row.cpu:.1f} cores")
    return ", ".join(words)


def _count(group: Sequence[Seen], total: int) -> str:
    return f"{len(group)} of {total} ranks"


def _all(total: int) -> str:
    return f"all {total} ranks" if total > 1 else "the only rank"


def _front(sides: Sides) -> str:
    return f"step {max((s.row.step for s in sides.waiting), default=0)}"


def _by_collective(group: Sequence[Seen]) -> str:
    places: dict[str, list[int]] = {}
    for s in group:
        places.setdefault(s.place, []).append(s.rank)
    return "; ".join(f"{span(ranks)} in {place}" for place, ranks in places.items())
