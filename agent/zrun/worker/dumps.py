"""Stacks on demand and at a fatal signal, and permission for a debugger to attach.

The dump signal works while the GIL is held by native code and while the rank sits in a collective. It is a real-time
signal, because scripts and schedulers use SIGUSR1 and SIGUSR2 themselves.
"""

import ctypes
import faulthandler
import os
import signal
from pathlib import Path
from typing import Final

DUMP_SIGNAL: Final = signal.SIGRTMIN + 4
_PR_SET_PTRACER: Final = 0x59616D61
_ANYBODY: Final = ctypes.c_ulong(-1)


def arm_dumps(path: Path) -> None:
    """Fatal signals and DUMP_SIGNAL append all threads' stacks to `path`. Raises OSError."""
    # A bare descriptor that is never closed: a file object would close it when the last name for it goes.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True, chain=False)


def allow_ptrace() -> None:
    """Let the agent's tools look into this process where the kernel restricts that to children; best effort."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # no such call here: then there is no such restriction either
