"""One thread that looks, every 50 ms, whether an exception is in flight in the main thread, and at what else must not
wait for the main thread: SIGTERM, and collectives that are over.

It sleeps between its looks and takes the GIL for some ten microseconds; it never touches the script's state.
"""

import select
import sys
import threading
from typing import Any, Final

from zrun.worker import last_words
from zrun.worker.rank import ThisRank
from zrun.worker.term import Term

_EVERY_S: Final = 0.05


def in_flight(thread: int) -> BaseException | None:
    """The exception that `thread` is handling or unwinding; the value's form differs between Python versions."""
    found: Any = sys._current_exceptions().get(thread)  # noqa: SLF001 - documented, though underscored
    value = found[1] if isinstance(found, tuple) else found
    return value if isinstance(value, BaseException) else None


class Watcher:
    """Keeps no exception alive between two looks: frames hold tensors."""

    def __init__(self, rank: ThisRank, term: Term) -> None:
        self._rank = rank
        self._term = term
        self._main = threading.main_thread().ident or 0
        self._last = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="zrun-watcher", daemon=True).start()

    def _run(self) -> None:
        while True:
            select.select([self._term.pipe], [], [], _EVERY_S)
            self._term.look()
            self._rank.sweep(moved_on=False)
            self._look()

    def _look(self) -> None:
        error = in_flight(self._main)
        seen = 0 if error is None else id(error)
        if error is not None and seen == self._last and seen != self._rank.told and last_words.is_failure(error):
            last_words.leave(self._rank, error, final=False)
        self._last = seen
