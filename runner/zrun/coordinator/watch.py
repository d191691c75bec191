"""What the coordinator knows of a job's pace and nobody journals: the judge of its newest attempt, what it has taught,
who is slow, and whether the limits are in an order in which they can work. Decides nothing.
"""

from dataclasses import dataclass, field

from zrun.coordinator.learning import Learning
from zrun.machine.hang import HangJudge
from zrun.machine.limits import Learned, Limit, effective_limits
from zrun.machine.stragglers import Stragglers
from zrun.spec.job import Watchdog


@dataclass
class Watch:
    """`since`: machine time at which this judge began."""

    learning: Learning
    judge: HangJudge | None = None
    attempt: int = 0
    since: float = 0.0
    stragglers: Stragglers = field(default_factory=Stragglers)
    disorder: str = ""
    """Why a limit stands in the way of another one, in words."""

    @property
    def learned(self) -> Learned | None:
        return self.judge.learned() if self.judge is not None else self.learning.learned

    def begin(self, watchdog: Watchdog, attempt: int, now: float) -> HangJudge:
        """A judge for a new attempt, which knows what the ones before have learned."""
        self.judge = HangJudge(watchdog, attempt, self.learned)
        self.attempt, self.since, self.stragglers = attempt, now, Stragglers()
        return self.judge

    def limits(self, watchdog: Watchdog) -> list[Limit]:
        """Those in force, or those with which the next attempt begins."""
        return self.judge.limits.table() if self.judge is not None else effective_limits(watchdog, self.learned)
