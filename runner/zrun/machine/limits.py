"""How long a rank may show no progress in each phase: what job.yaml says, else what this job itself has shown.

Knows nothing about which rank is to blame. A learned limit only ever names a suspect; ending it takes patience besides.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from zrun.core.deck import Phase
from zrun.spec.job import Watchdog

FACTOR: Final = 5.0
"""A learned limit is so many times the recent maximum."""
CEILING_S: Final = 600.0
WARM_UP: Final = 3
"""Steps at the start of an attempt that teach nothing: they compile, allocate and fill caches."""
WARM_FLOOR_S: Final = 8.0
"""The least limit of a step while little was seen, but an earlier attempt or the end of the warm-up tells enough."""
FIRST_FLOOR_S: Final = 30.0
"""The least limit of warm-up steps in a job's first attempt: they may compile once more."""
UNSEEN_S: Final = 1800.0
"""A phase on auto that this job has not shown yet."""
PHASE_FLOOR_S: Final = 60.0
"""Floor of a learned limit outside steps."""
_OWN: Final = "own:"
_RECENT: Final = 256
"""Samples, about one a second."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What one attempt teaches the next. Seconds; 0.0 = nothing seen."""

    step_s: float = 0.0
    """The recent maximum of a step after the warm-up."""
    warm_s: float = 0.0
    """The longest warm-up step but the first."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """The longest completed stay in a phase outside steps, by its name."""
    pauses_s: tuple[float, ...] = ()
    """Suspicions that cleared by themselves: how long nothing had moved."""


@dataclass(frozen=True, slots=True)
class Limit:
    name: str
    seconds: float
    source: str
    """Where it comes from, in words."""


class Limits:
    """The limits of one attempt; learns while it runs."""

    def __init__(self, watchdog: Watchdog, learned: Learned | None = None) -> None:
        before = learned or Learned()
        self._given = watchdog
        self._before_s, self._before_warm_s = before.step_s, before.warm_s
        self._first_s = self._warm_s = 0.0
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._phases = dict(before.phases_s)
        self._pauses = list(before.pauses_s)

    def saw_step(self, seconds: float, index: int) -> None:
        """A completed step took this long on its slowest rank; `index` counts from 1 in this attempt."""
        if index > WARM_UP:
            self._steps.append(seconds)
        elif index > 1:
            self._warm_s = max(self._warm_s, seconds)
        else:
            self._first_s = max(self._first_s, seconds)

    def saw_phase(self, phase: Phase, seconds: float, own: str = "") -> None:
        """A phase outside steps was left after so long; `own`: the name of a phase of the script's own."""
        name = _key(phase, own)
        self._phases[name] = max(self._phases.get(name, 0.0), seconds)

    def saw_pause(self, seconds: float) -> None:
        """A suspicion cleared by itself after so long without any progress."""
        self._pauses = [*self._pauses, seconds][-8:]

    def learned(self) -> Learned:
        return Learned(
            self._recent_step(), max(self._warm_s, self._before_warm_s), dict(self._phases), tuple(self._pauses)
        )

    def of(self, phase: Phase, warm: bool = False, own: str = "") -> Limit:
        """`warm`: the rank is in one of the first steps of this attempt; `own`: its own name for the phase."""
        given = self._given
        match phase:
            case Phase.BOOT | Phase.SETUP:
                return _stated("setup", given.setup_s)
            case Phase.FIRST_STEP:
                return _stated("first_step", given.first_step_s)
            case Phase.STEP:
                return self._step(warm)
            case Phase.SAVE:
                return _stated("save", given.save_s) if given.save_s is not None else self._other(phase, "save")
            case Phase.EXIT | Phase.DONE:
                return _stated("exit", given.exit_s)
            case Phase.EVAL:
                return _stated("eval", given.eval_s) if given.eval_s is not None else self._other(phase, "eval")
            case Phase.OWN:
                if own in given.phases_s:
                    return Limit(own, given.phases_s[own], "watchdog.phases")
                return self._other(phase, own or "own phases", own)

    def table(self) -> list[Limit]:
        """The limits in force now, as people see them."""
        rows = [self.of(p) for p in (Phase.SETUP, Phase.FIRST_STEP, Phase.STEP, Phase.EVAL, Phase.SAVE, Phase.EXIT)]
        given = self._given.phases_s
        own = sorted({name.removeprefix(_OWN) for name in self._phases if name.startswith(_OWN)} - {*given, ""})
        rows += [Limit(name, seconds, "watchdog.phases") for name, seconds in given.items()]
        return rows + [self.of(Phase.OWN, own=name) for name in own] + [self.of(Phase.OWN)]

    def _recent_step(self) -> float:
        return max(self._steps, default=self._before_s)

    def _step(self, warm: bool) -> Limit:
        given = self._given
        if given.step_s is not None:
            return Limit("step", given.step_s, "watchdog.step")
        floor = max(given.min_step_s, self._pause_floor())
        if warm or not self._steps:
            return self._early_step(floor, warm)
        slowest = self._recent_step()
        seconds = _bounded(slowest, floor)
        if seconds == given.min_step_s:
            return Limit("step", seconds, f"watchdog.min_step; recent steps took at most {in_words(slowest)}")
        if seconds == floor:
            return Limit("step", seconds, "learned: pauses of this length have cleared by themselves")
        return Limit(
            "step", seconds, f"learned: {seconds / slowest:.3g} x the slowest recent step of {in_words(slowest)}"
        )

    def _early_step(self, floor: float, warm: bool) -> Limit:
        """While this attempt has taught nothing yet. `first_step` is the roof."""
        roof = _stated("first_step", self._given.first_step_s).seconds
        if self._before_s:
            slowest, least, source = max(self._before_s, self._before_warm_s), WARM_FLOOR_S, "an earlier attempt"
        elif self._first_s or self._warm_s:
            slowest, source = max(self._first_s * warm, self._warm_s), "the first steps"
            least = FIRST_FLOOR_S if warm else WARM_FLOOR_S
        else:
            return Limit("step", roof, f"as the first step, until {WARM_UP} steps were seen")
        return Limit("step", min(roof, _bounded(slowest, max(floor, least))), f"learned from {source}")

    def _pause_floor(self) -> float:
        """One pause may be an accident; from the second on they belong to the job."""
        return 1.25 * max(self._pauses) if len(self._pauses) > 1 else 0.0

    def _other(self, phase: Phase, name: str, own: str = "") -> Limit:
        seen = self._phases.get(_key(phase, own))
        if seen is None:
            return Limit(name, UNSEEN_S, "auto: not seen yet in this job")
        return Limit(name, max(PHASE_FLOOR_S, FACTOR * seen), f"learned: {FACTOR:g} x the longest of {in_words(seen)}")


def effective_limits(watchdog: Watchdog, learned: Learned | None = None) -> list[Limit]:
    """The table for `describe`: before the job runs, or with what it has taught so far."""
    return Limits(watchdog, learned).table()


def _key(phase: Phase, own: str) -> str:
    return _OWN + own if phase is Phase.OWN else phase.label


def in_words(seconds: float) -> str:
    return f"{round(seconds, 3 if seconds < 10 else 1):g} s"


def _stated(name: str, seconds: float | None) -> Limit:
    if seconds is None:
        return Limit(name, UNSEEN_S, "auto: fixed for this phase")
    return Limit(name, seconds, f"watchdog.{name}")


def _bounded(slowest: float, floor: float) -> float:
    """FACTOR times, within floor and ceiling; never less than half as long again as what was seen to go well."""
    return max(floor, min(FACTOR * slowest, CEILING_S), 1.5 * slowest)
