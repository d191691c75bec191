"""The second sign: what besides missing progress speaks for a hang of these ranks, and what kind of hang that makes it.

Pure, without memory. It knows how ranks are sorted (roll_call.py), not for how long they may stand still.
"""

from collections.abc import Sequence
from typing import Final

from zrun.core.rows import RowFlag
from zrun.machine.limits import Limit
from zrun.machine.roll_call import IDLE_CPU, Seen, Sides
from zrun.machine.wording import span

PROVED: Final = "proved"
LIKELY: Final = "likely"
UNSURE: Final = "unsure"
_WHOSE_STATE_TELLS: Final = {"not-arrived", "behind", "all-stuck"}


def kind_of(sides: Sides) -> str:
    """As the ranks are sorted, unless the culprits' own state says more."""
    if sides.kind not in _WHOSE_STATE_TELLS:
        return sides.kind
    if all(RowFlag.GIL_HELD in s.row.flags for s in sides.culprits):
        return "gil-held"
    if all(s.row.state == "D" for s in sides.culprits):
        return "uninterruptible"
    if sides.kind == "not-arrived" and all(RowFlag.IN_LOADER in s.row.flags for s in sides.culprits):
        return "in-loader"
    return sides.kind


def narrowed(sides: Sides) -> Sides:
    """Without a collective to tell by: those whose own state says that they cannot even try."""
    if sides.waiting or sides.kind != "all-stuck":
        return sides
    for stuck in (
        [s for s in sides.culprits if s.row.state == "D"],
        [s for s in sides.culprits if RowFlag.GIL_HELD in s.row.flags],
    ):
        if stuck and len(stuck) < len(sides.culprits):
            return Sides("behind", stuck, [s for s in sides.culprits if s not in stuck])
    return sides


def second_signs(sides: Sides, limit: Limit) -> list[str]:
    """In words."""
    signs = list(sides.because)
    patient = min(1.0, limit.seconds / 2)
    if sides.waiting and not signs and all(s.quiet_s >= patient for s in sides.waiting):
        signs.append(f"{span(s.rank for s in sides.waiting)} can only wait for it")
    if all(s.row.cpu < IDLE_CPU for s in sides.culprits):
        signs.append("no CPU used since the last report")
    if all(s.row.state == "D" for s in sides.culprits):
        signs.append("in uninterruptible sleep (state D): a disk or network file system does not answer")
    if all(RowFlag.GIL_HELD in s.row.flags for s in sides.culprits):
        signs.append("its interpreter is blocked: native code holds the GIL, no Python thread of it runs")
    return signs


def confidence_of(sides: Sides, seen: Sequence[Seen], signs: Sequence[str], *, provable: bool) -> str:
    """How far the name can be trusted."""
    if provable:
        return PROVED
    if sides.kind == "inconclusive" or not signs or not all(s.recorded for s in seen):
        return UNSURE
    return LIKELY
