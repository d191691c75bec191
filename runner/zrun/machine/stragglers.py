"""Ranks that are steadily slower than their peers: named with the time they cost, and nothing is done about them.

In synchronous training every rank takes as long for a step as the slowest, which is the one that hardly waits: its own
time is what is left of a step after the time inside collectives. Pure; it sees rows alone.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from zrun.core.rows import RankRow, RowFlag

SLOWER: Final = 1.3
"""Times the own time of the others' median."""
STEPS: Final = 50
SAMPLES: Final = 5
"""Windows of at least ten steps each, in most of which it has to be slower."""
LEAST_S: Final = 0.002
"""Own time a step: below this nothing can be told."""
_NODES: Final = 2
"""From so many ranks on a node on, they are one slow node if all of them are slow."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """`factor`: its own time over the others'; `lost`: part of all time in which the others wait for it."""

    ranks: tuple[int, ...]
    node: str
    factor: float
    lost: float
    steps: int

    @property
    def who(self) -> str:
        return f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"node {self.node}"

    @property
    def text(self) -> str:
        return (
            f"{self.who} is {self.factor:.2g} x as slow as its peers over {self.steps} steps; "
            f"they wait for it {self.lost:.0%} of the time"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "ranks": list(self.ranks), "node": self.node, "factor": round(self.factor, 2), "lost": round(self.lost, 3),
            "steps": self.steps, "who": self.who, "text": self.text,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sample:
    step: int
    own: Mapping[int, float]
    """Seconds of a step outside collectives, by rank."""
    step_s: float


class Stragglers:
    """Of one attempt: looks at the table now and then, and says who has been slow all along."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=3 * SAMPLES)
        self.now: list[Straggler] = []

    def look(self, rows: Mapping[int, RankRow], nodes: Mapping[int, str]) -> list[Straggler]:
        """Gives those that were not known before this look."""
        if not self._take(rows):
            return []
        before = {one.ranks for one in self.now}
        self.now = self._judge(nodes)
        return [one for one in self.now if one.ranks not in before]

    def _take(self, rows: Mapping[int, RankRow]) -> bool:
        """A new sample, once every rank is some steps past the last one."""
        if len(rows) < 2 or any(r.wait_share is None or RowFlag.STEPPING not in r.flags for r in rows.values()):
            return False
        step = min(row.step for row in rows.values())
        last = self._samples[-1].step if self._samples else 0
        if step < last:
            self._samples.clear()
        elif step - last < STEPS // SAMPLES:
            return False
        step_s = median(row.step_s for row in rows.values())
        own = {rank: step_s * (1.0 - (row.wait_share or 0.0)) for rank, row in rows.items()}
        self._samples.append(_Sample(step, own, step_s))
        return True

    def _judge(self, nodes: Mapping[int, str]) -> list[Straggler]:
        recent = self._recent()
        if len(recent) < SAMPLES:
            return []
        slow = {rank for rank in recent[-1].own if self._slow(rank, recent)}
        if not slow or len(slow) > len(recent[-1].own) // 2:
            return []  # most are "slow": then it is the others that are fast, and nobody can be named
        found: list[Straggler] = []
        for node in sorted({nodes.get(rank, "") for rank in slow}):
            here = sorted(rank for rank in recent[-1].own if nodes.get(rank, "") == node)
            mine = [rank for rank in here if rank in slow]
            whole = len(mine) == len(here) >= _NODES
            found += [self._told(group, node, recent) for group in ([mine] if whole else [[rank] for rank in mine])]
        return found

    def _recent(self) -> Sequence[_Sample]:
        """The newest samples that together span enough steps."""
        samples = list(self._samples)
        for start in range(len(samples) - SAMPLES, -1, -1):
            if samples[-1].step - samples[start].step >= STEPS - STEPS // SAMPLES:
                return samples[start:]
        return []

    def _slow(self, rank: int, recent: Sequence[_Sample]) -> bool:
        factors = [_factor((rank,), sample) for sample in recent]
        return median(factors) >= SLOWER and sum(f >= SLOWER for f in factors) >= 0.8 * len(factors)

    def _told(self, ranks: Sequence[int], node: str, recent: Sequence[_Sample]) -> Straggler:
        steps = max(STEPS, recent[-1].step - recent[0].step)
        lost = median(_lost(ranks, sample) for sample in recent)
        return Straggler(tuple(ranks), node, median(_factor(ranks, sample) for sample in recent), lost, steps)


def _factor(ranks: Sequence[int], sample: _Sample) -> float:
    """By the slowest of `ranks` against the median of all others."""
    own = max(sample.own.get(rank, 0.0) for rank in ranks)
    others = [seconds for rank, seconds in sample.own.items() if rank not in ranks]
    return own / max(median(others), LEAST_S) if others and own >= LEAST_S else 0.0


def _lost(ranks: Sequence[int], sample: _Sample) -> float:
    own = max(sample.own.get(rank, 0.0) for rank in ranks)
    others = [seconds for rank, seconds in sample.own.items() if rank not in ranks]
    return max(0.0, own - median(others)) / sample.step_s if others and sample.step_s > 0.0 else 0.0
