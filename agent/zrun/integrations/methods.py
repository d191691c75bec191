"""Functions and methods of others, made to say when they begin and end. Knows no framework.

Each keeps its name, signature and result, and what it raises is its own; what goes wrong on our side is a warning.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from zrun.core.deck import Phase
from zrun.worker import last_words
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount

_OURS: Final = "_zrun_follows"


class Methods:
    """What integrations do to the methods they follow."""

    def __init__(self, rank: ThisRank, steps: StepCount) -> None:
        self.rank = rank
        self.steps = steps
        self._warned = False

    @contextmanager
    def phase(self, phase: Phase, name: str = "") -> Iterator[None]:
        """As Session.phase, in the thread that trains alone. A phase within itself is progress in it."""
        rank = self.rank
        if not self.steps.here():
            yield
            return
        before = rank.phase()
        if before == (phase, name):
            rank.progressed()
        else:
            rank.enter_phase(phase, name)
        try:
            yield
        except BaseException as error:  # passed on: should it end the script, it was raised in here
            last_words.raised_in(rank, error)
            raise
        finally:
            if before != (phase, name) and not rank.over:
                rank.enter_phase(*before)

    def as_phase(self, owner: Any, method: str, phase: Phase, name: str = "") -> None:
        """`owner.method` is a phase from now on; nothing happens where a version has no such method."""

        def around(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
            with self.phase(phase, name):
                return original(*given, **named)

        self.around(owner, method, around)

    def hear(
        self,
        owner: Any,
        method: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        """Call `before` and `after` with what the method is given."""

        def around(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
            if before is not None:
                self.quietly(before, *given, **named)
            result = original(*given, **named)
            if after is not None:
                self.quietly(after, *given, **named)
            return result

        self.around(owner, method, around)

    def around(self, owner: Any, method: str, around: Callable[..., Any]) -> None:
        """Replace `owner.method`, which stands in `owner` itself, by `around(original, …)`, once."""
        original = vars(owner).get(method)
        if not callable(original) or hasattr(original, _OURS):
            return

        @functools.wraps(original)
        def followed(*given: Any, **named: Any) -> Any:
            return around(original, *given, **named)

        setattr(followed, _OURS, True)
        setattr(owner, method, followed)

    def quietly(self, tell: Callable[..., None], *given: Any, **named: Any) -> None:
        """A framework's objects may have changed: that costs what they would have told, and a warning."""
        try:
            tell(*given, **named)
        except Exception as error:
            if not self._warned:
                self._warned = True
                self.rank.warn(f"steps and phases may be missing: {type(error).__name__}: {error}")
