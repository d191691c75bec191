"""Which checkpoints stay and why: one rule for the rank that has just saved and for a person at the command line.

Pure: what lies on disk, what is pinned and what is being read comes in, a fate with its reason for each goes out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zrun.core.manifest import Found


@dataclass(frozen=True, slots=True)
class Keep:
    """`checkpoint.keep`: the newest `last` (never fewer than one), and each step that is a multiple of `every`."""

    last: int
    every: int | None = None


@dataclass(frozen=True, slots=True)
class Needed:
    """Steps that somebody wants, whatever the rule says."""

    pinned: Collection[int] = ()
    being_read: Collection[int] = ()
    """By a process that is alive, of this job or of another one."""
    resumed_from: Collection[int] = ()
    """What the newest attempt went on from: the one place to go back to until it has saved, and proof afterwards."""


@dataclass(frozen=True, slots=True)
class Fate:
    """`reason`: why it stays, or why it may go."""

    found: Found
    keep: bool
    reason: str


def fates(found: Sequence[Found], keep: Keep, needed: Needed, *, damaged_too: bool = False) -> list[Fate]:
    """For each of `found` (newest first, as `scan` gives them). A save made at a preemption counts like any other.

    What is not complete is no checkpoint and counts for nothing; it stays to be looked at unless `damaged_too`.
    """
    complete = [f for f in found if f.state == "complete"]
    newest = {id(f): place for place, f in enumerate(complete)}
    decided: list[Fate] = []
    for one in found:
        wanted = _wanted(one, needed)
        if not wanted and one.state == "complete":
            wanted = _by_rule(one.step, newest[id(one)], keep)
        elif not wanted and one.state in {"partial", "corrupt"} and not damaged_too:
            wanted = f"{one.state}, left to be looked at"
        decided.append(Fate(one, bool(wanted), wanted or _why_not(one, keep)))
    return decided


def _wanted(one: Found, needed: Needed) -> str:
    if one.step in needed.being_read:
        return "being read"
    if one.step in needed.pinned:
        return "pinned"
    if one.step in needed.resumed_from and one.state == "complete":
        return "the newest attempt resumed from it"
    return ""


def _by_rule(step: int, place: int, keep: Keep) -> str:
    if place == 0:
        return "the last good one"
    if place < keep.last:
        return f"one of the last {keep.last}"
    # Step 0 is a multiple of everything; it is worth its room only until there is something newer.
    if keep.every and step and step % keep.every == 0:
        return f"every {keep.every} steps"
    return ""


def _why_not(one: Found, keep: Keep) -> str:
    if one.state != "complete":
        return f"{one.state}: {one.reason}"
    rule = f"not among the last {max(1, keep.last)}"
    return f"{rule}, no multiple of {keep.every}" if keep.every else rule
