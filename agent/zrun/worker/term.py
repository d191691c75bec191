"""SIGTERM in a rank. From a scheduler it asks to preempt the whole job: the rank says so and trains on. From the agent
it comes after a stop on the order page: then the rank ends.

A script's own handler runs as it would anywhere, and nothing of ours ends such a rank; a TERM that no stop announced
is told to the job all the same, for the other ranks' handlers have to hear of it too. A rank inside a collective runs
no Python handler, so the watcher thread reads the signal from a wakeup pipe as well.
"""

import ctypes
import os
import signal
import threading
import time
from types import FrameType
from typing import Final

from zrun.core.deck import Flag, StopKind
from zrun.worker.rank import ThisRank

_UNWIND_S: Final = 1.0
"""How long the main thread gets to run its handler before the default action ends the process."""


class EndedByAgent(SystemExit):
    """Raised in the main thread when the agent ends the rank; not a failure of the script."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Term:
    """Made and armed in the main thread, before the script runs."""

    def __init__(self, rank: ThisRank) -> None:
        self._rank = rank
        self._unwinding = self._held = False
        self._end_at: float | None = None
        self.pipe, self._inlet = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def arm(self) -> None:
        signal.set_wakeup_fd(self._inlet, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self.handle)
        os.register_at_fork(before=self._hold, after_in_parent=self._let_go, after_in_child=self._disarm)

    def _ours(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self.handle

    def _hold(self) -> None:
        """Around a fork: a TERM for the young child must wait until it is disarmed."""
        self._held = signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_go(self) -> None:
        if self._held:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _disarm(self) -> None:
        """In a forked child: TERM ends loader workers as ever, and nothing of theirs reaches the rank's pipe."""
        if self._ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        self._let_go()

    def _stop_ordered(self) -> bool:
        request = self._rank.stop_request()
        return request is not None and request.kind is StopKind.STOP

    def _ask_preemption(self) -> None:
        self._rank.raise_flag(Flag.TERM_SEEN)
        if self._rank.notes is not None:
            self._rank.notes.poke()

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        """The Python handler: runs in the main thread as soon as that is not inside native code."""
        if not self._stop_ordered():
            self._ask_preemption()
            return
        self._unwinding = True
        raise EndedByAgent

    def look(self) -> None:
        """The watcher's half: called when the pipe has something, and at each of its polls."""
        try:
            seen = os.read(self.pipe, 512)
        except BlockingIOError:
            seen = b""
        if signal.SIGTERM in seen:
            if not self._stop_ordered():
                self._ask_preemption()
            elif self._ours():
                self._end_at = self._end_at or time.monotonic() + _UNWIND_S
        if self._end_at is not None and not self._unwinding and time.monotonic() >= self._end_at:
            # The main thread is inside native code and will not come back for a handler. Only the main thread may
            # call signal.signal, so the C library's own is used.
            ctypes.CDLL(None).signal(signal.SIGTERM.value, None)
            os.kill(os.getpid(), signal.SIGTERM)
