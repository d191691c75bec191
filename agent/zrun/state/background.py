"""One thing at a time beside the training thread, in a thread of lower priority; knows nothing about what it does."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final

_NICER_BY: Final = 5
"""A third of the weight of a training thread. Far lower would make training wait for the GIL while others have the
core."""


class Background:
    """Never waited for at the interpreter's end: what is unfinished then stays so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._over = threading.Event()
        self._over.set()

    @property
    def busy(self) -> bool:
        return not self._over.is_set()

    def start(self, act: Callable[[], None]) -> None:
        """Run `act`, which must not raise. RuntimeError while another one runs."""
        if self.busy:
            raise RuntimeError(f"{self._name} is busy")
        self._over.clear()
        try:
            threading.Thread(target=self._run, args=(act,), name=self._name, daemon=True).start()
        except BaseException:
            self._over.set()
            raise

    def _run(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, AttributeError):  # Linux alone knows priorities of threads
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER_BY)
        try:
            act()
        finally:
            self._over.set()

    def wait(self, within_s: float | None = None) -> bool:
        """Is it over? Waits so long for it, without an end if None; signals are answered meanwhile."""
        deadline = None if within_s is None else time.monotonic() + within_s
        while self.busy:
            left_s = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left_s <= 0:
                return False
            self._over.wait(left_s)
        return True
