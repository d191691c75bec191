"""What is planned of a map-style dataset before it is read: batch after batch, which samples are this rank's.

It knows nothing about what a sample is.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from zrun.core.batch import BatchId
from zrun.data.sampling import Key
from zrun.data.shares import Cut


@dataclass(frozen=True, slots=True)
class Plan:
    """One global batch before it is read: its name, what was skipped before it, this rank's part of it."""

    batch_id: BatchId
    skipped: list[BatchId]
    cut: Cut
    keys: list[list[Key]]
    """Of this rank's parts."""


class Planner(Protocol):
    def plan(self, after: int) -> Plan | None:
        """The next batch after ordinal `after`; None: the data is over."""


class Plans:
    """The batch sampler: makes plans as far ahead as DataLoader prefetches, and remembers them until data arrives."""

    def __init__(self, planner: Planner, ordinal_done: int) -> None:
        self._planner = planner
        self._last = ordinal_done
        self._flight: deque[Plan] = deque()
        self._made: Plan | None = None

    def _make(self) -> Plan | None:
        if self._made is None:
            self._made = self._planner.plan(self._last)
            if self._made is not None:
                self._last = self._made.batch_id.ordinal
        return self._made

    def __iter__(self) -> Iterator[list[list[Key]]]:
        while (plan := self._make()) is not None:
            self._made = None
            self._flight.append(plan)
            yield plan.keys

    def upcoming(self) -> Plan | None:
        return self._flight[0] if self._flight else self._make()

    def arrived(self) -> Plan:
        return self._flight.popleft()
