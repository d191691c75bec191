"""Named points of a save: a drill hears of them, and a test may have this process killed at one.

`ZRUN_KILL_AT=POINT:N` kills it at its Nth arrival at POINT, `POINT:N:group` its whole process group. Outside a test
(pytest's variable is missing) that is not read. Knows nothing about what a save does there.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

from zrun.core import env

POINTS: Final = ("copy", "write", "fsync", "part", "manifest", "rename", "prune")
"""After the copy; in the middle of the file; before its fsync; when this rank's part is on disk; before the manifest is
written; before the folder has its final name; before old checkpoints are removed."""
_arrived: Final[dict[str, int]] = {}
_listeners: Final[list[Callable[[str], None]]] = []


def listen(heard: Callable[[str], None]) -> None:
    """`heard(point)` is called from now on, in the thread that arrives there; what it raises ends the save."""
    _listeners.append(heard)


def reached(point: str) -> None:
    """Said by a save where it stands."""
    for heard in _listeners:
        heard(point)
    wanted = env.get(env.KILL_AT)
    if not wanted or not env.get(env.UNDER_TEST):
        return
    at, number, *group = wanted.split(":")
    if at == point:
        _arrived[point] = _arrived.get(point, 0) + 1
        if _arrived[point] == int(number):
            (os.killpg if group else os.kill)(os.getpgrp() if group else os.getpid(), signal.SIGKILL)
