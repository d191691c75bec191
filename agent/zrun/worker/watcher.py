"""One thread that looks, every 50 ms, whether an exception is in flight in the main thread, and at what else must not
wait for the main thread: SIGTERM, and collectives that are over.

It sleeps between its looks and takes the GIL for some ten microseconds; it never touches the script's state.
"""

import select
import threading
from types import CodeType
from typing import Final

from zrun.core.notes import NoteKind
from zrun.worker import last_words, unwinding
from zrun.worker.rank import ThisRank
from zrun.worker.term import Term
from zrun.worker.unwinding import Fate

_EVERY_S: Final = 0.05
_AGAIN_S: Final = 0.02
"""To the second look at an exception just seen: most are handled by then."""


class Watcher:
    """Keeps no exception alive between two looks: frames hold tensors.

    What it says of an exception seen twice: first its words, then that it leaves the script for certain, or that it
    was handled after all.
    """

    def __init__(self, rank: ThisRank, term: Term, script: CodeType) -> None:
        """`script`: the code of the function that calls the script."""
        self._rank = rank
        self._term = term
        self._script = script
        self._main = threading.main_thread().ident or 0
        self._last = 0
        self._leaving = self._catching = 0
        self._judged: tuple[int, ...] = ()
        self._wait_s = _EVERY_S

    def start(self) -> None:
        threading.Thread(target=self._run, name="zrun-watcher", daemon=True).start()

    def _run(self) -> None:
        while True:
            select.select([self._term.pipe], [], [], self._wait_s)
            self._rank.beat()
            self._term.look()
            self._rank.sweep(moved_on=False)
            self._look()

    def _look(self) -> None:
        error = unwinding.in_flight(self._main)
        if self._rank.over or (error is not None and not last_words.is_failure(error)):
            error = None
        seen = 0 if error is None else id(error)
        fresh, self._last = seen != self._last, seen
        self._wait_s = _AGAIN_S if fresh and seen else _EVERY_S
        if fresh:
            return
        if error is not None:
            self._stays(error)
        elif self._rank.told and not self._rank.over:
            self._rank.told = self._leaving = self._catching = 0
            self._rank.note(NoteKind.HANDLED)

    def _stays(self, error: BaseException) -> None:
        if self._rank.told != id(error):
            last_words.leave(self._rank, error, final=False)
            self._leaving = self._catching = 0
        judged = (id(error), *unwinding.place_of(error))
        if self._leaving != id(error) and self._judged != judged:
            self._judged = judged
            fate = self._fate(error)
            if fate is Fate.LEAVES and not self._rank.over:
                self._leaving = id(error)
                self._rank.note(NoteKind.LEAVING)
            elif fate is Fate.CAUGHT and self._catching != id(error) and not self._rank.over:
                self._catching = id(error)
                self._rank.note(NoteKind.CAUGHT)

    def _fate(self, error: BaseException) -> Fate:
        try:
            return unwinding.fate_of(error, self._main, self._script)
        except Exception:  # bytecode of a python that is not known yet, objects of the script's: nothing is sure then
            return Fate.OPEN
