"""Signals as a queue: they wake a wait and are read in order, instead of breaking into the middle of something."""

import os
import select
import signal
import time
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, Self


class SignalInbox:
    """Catches `numbers` while open; a signal that was ignored when we were started (nohup) stays ignored."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
        self._before: dict[int, Any] = {}
        self._came: list[int] = []
        self._woken = self._wake = -1

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._wake)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        try:
            os.write(self._wake, b"!")
        except BlockingIOError:
            pass  # full: the waiter wakes anyway

    def wait(self, timeout_s: float) -> list[int]:
        """The signals that came, at once if there are any, else after at most `timeout_s`."""
        if not self._came:
            ready, _, _ = select.select([self._woken], [], [], timeout_s)
            if ready:
                os.read(self._woken, 4096)
        came, self._came = self._came, []
        return came

    def pause(self, seconds: float) -> None:
        """As time.sleep; signals that come meanwhile stay in the inbox."""
        time.sleep(seconds)
