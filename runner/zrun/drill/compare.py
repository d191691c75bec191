"""Did two runs of one job do the same, bit for bit? Losses, samples and weights, and the first place where they differ.

Pure. Where something was not looked at it says why: nothing is claimed that was not seen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from zrun.drill.traces import End, Step, Traced

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
NOT_LOOKED_AT: Final = "not looked at"
LOSSES: Final = "losses"
SAMPLES: Final = "samples"
WEIGHTS: Final = "weights"
STEPS: Final = "steps"
"""Told only where they differ."""
_OTHER: Final = "other"
_SHOWN: Final = 24


@dataclass(frozen=True, slots=True)
class Difference:
    """`name`: of the metric or tensor. Values as the ranks told them, None where one has nothing."""

    what: str
    name: str
    step: int
    rank: int
    attempt: int
    undisturbed: str | None
    disturbed: str | None

    def __str__(self) -> str:
        of = f"{self.what} {self.name}".rstrip()
        at = f"step {self.step}, rank {self.rank}" + (f", attempt {self.attempt}" if self.attempt else "")
        one, other = (f"{value}" if len(f"{value}") <= _SHOWN + 6 else f"{f'{value}'[:_SHOWN]}…"
                      for value in (self.undisturbed, self.disturbed))  # fmt: skip
        return f"{of} at {at}: {one} undisturbed, {other} disturbed"


@dataclass(frozen=True, slots=True)
class Compared:
    """Each of losses, samples and weights (and steps, where they differ) is EQUAL, DIFFERENT or NOT_LOOKED_AT."""

    outcome: dict[str, str]
    why_not: dict[str, str]
    first: Difference | None
    others: tuple[str, ...]
    """Names of further metrics that differ, times for example: told, and no difference between the runs."""
    steps: int
    again: int
    """How many of the disturbed run's steps were compared that it had done before."""

    @property
    def all_equal(self) -> bool:
        """Nothing that was looked at differs."""
        return DIFFERENT not in self.outcome.values()


def compare(calm: Traced, disturbed: Traced, until: int | None = None) -> Compared:
    """`until`: the last step up to which they should be equal; the states at the end are then not compared."""
    if not calm.session:
        reason = "the script has no Session: what it trains on is not known"
        unseen = dict.fromkeys((LOSSES, SAMPLES, WEIGHTS), NOT_LOOKED_AT)
        return Compared(unseen, dict.fromkeys(unseen, reason), None, (), calm.last_step, 0)
    known = {(one.rank, one.step): one for one in calm.steps if until is None or one.step <= until}
    seen = [one for one in disturbed.steps if until is None or one.step <= until]
    found = [*_missing(known.values(), seen), *_of_steps(known, seen)]
    why_not: dict[str, str] = {}
    if not any(_is_loss(name) for one in known.values() for name in one.metrics):
        why_not[LOSSES] = "the script reports none (run.report(loss=…))"
    if all(one.batch is None for one in known.values()):
        why_not[SAMPLES] = "the Session has no Loader"
    if until is not None:
        why_not[WEIGHTS] = f"a batch is left out from step {until + 1} on"
    elif not calm.ends:
        why_not[WEIGHTS] = "no rank came to its Session's end undisturbed"
    else:
        found += _of_ends(calm.ends, disturbed.ends)
    strict = [one for one in found if one.what != _OTHER and one.what not in why_not]
    strict.sort(key=lambda one: (one.what == WEIGHTS, one.step, one.what == LOSSES))
    outcome = {
        what: NOT_LOOKED_AT if what in why_not else DIFFERENT if any(d.what == what for d in strict) else EQUAL
        for what in (LOSSES, SAMPLES, WEIGHTS)
    }
    if any(d.what == STEPS for d in strict):
        outcome[STEPS] = DIFFERENT
    others = sorted({one.name for one in found if one.what == _OTHER})
    steps = len({one.step for one in known.values()})
    again = len(seen) - len({(one.rank, one.step) for one in seen})
    return Compared(outcome, why_not, strict[0] if strict else None, tuple(others), steps, again)


def _is_loss(name: str) -> bool:
    return "loss" in name.lower()


def _missing(known: Iterable[Step], seen: Iterable[Step]) -> Iterator[Difference]:
    """Steps that no rank has done: what the broken rank alone has not done it got back with another's state."""
    done = {one.step for one in seen}
    for one in known:
        if one.step not in done:
            yield Difference(STEPS, "", one.step, one.rank, 0, one.batch or "done", "not done")


def _of_steps(known: dict[tuple[int, int], Step], seen: Iterable[Step]) -> Iterator[Difference]:
    """Every step of the disturbed run, also those that it did twice."""
    for one in seen:
        before = known.get((one.rank, one.step))
        if before is None:
            yield Difference(STEPS, "", one.step, one.rank, one.attempt, "not done", one.batch or "done")
            continue
        if before.batch != one.batch:
            yield Difference(SAMPLES, "", one.step, one.rank, one.attempt, before.batch, one.batch)
        for name in sorted({*before.metrics, *one.metrics}):
            was, now = before.metrics.get(name), one.metrics.get(name)
            if was != now:
                what = LOSSES if _is_loss(name) else _OTHER
                yield Difference(what, name, one.step, one.rank, one.attempt, was, now)


def _of_ends(calm: Iterable[End], disturbed: Iterable[End]) -> Iterator[Difference]:
    """Of each rank the newest end."""
    last = {end.rank: end for end in sorted(disturbed, key=lambda end: end.attempt)}
    for end in calm:
        other = last.get(end.rank)
        if other is None:
            yield Difference(WEIGHTS, "", end.step, end.rank, 0, "a Session's end", "none")
            continue
        for name in sorted({*end.state, *other.state}):
            was, now = end.state.get(name), other.state.get(name)
            if was != now or end.step != other.step:
                yield Difference(WEIGHTS, name, other.step, end.rank, other.attempt, was, now)
