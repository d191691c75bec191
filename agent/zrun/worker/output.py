"""The rank's own output: fd 1 and 2 onto spool files of the attempt's folder, nothing kept back in a buffer.

A file never blocks the rank and outlives the agent; a pipe does neither. It knows nothing about steps or markers.
"""

import ctypes
import io
import os
import sys
from pathlib import Path
from typing import Final, TextIO

_IOLBF: Final = 1


def reopen(folder: Path, rank: int) -> None:
    """Point fd 1 and 2 at rank-R.out and rank-R.err, appending. Raises OSError."""
    for descriptor, ending, layer in ((1, "out", sys.stdout), (2, "err", sys.stderr)):
        if layer is not None:
            layer.flush()
        spool = os.open(folder / f"rank-{rank}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(spool, descriptor)  # inheritable: the script's own children write there too
        os.close(spool)


def unbuffer() -> None:
    """As `python -u`: each write of the text layers reaches the file at once, and each line that C or C++ prints."""
    _line_buffer_c()
    out, err = _direct(sys.stdout, 1), _direct(sys.stderr, 2)
    if out is not None:
        sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
    if err is not None:
        sys.stderr = sys.__stderr__ = err  # type: ignore[misc]


def _line_buffer_c() -> None:
    """Into a file, the C library keeps back 4 KiB: lost at a SIGKILL, and behind the marker of a later step."""
    libc = ctypes.CDLL(None)
    try:
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
    except (AttributeError, ValueError):
        pass  # a C library that names its stdout otherwise


def _direct(layer: TextIO, descriptor: int) -> io.TextIOWrapper | None:
    """None if it is unbuffered already (-u, PYTHONUNBUFFERED), or no layer of Python's own."""
    if not isinstance(getattr(layer, "buffer", None), io.BufferedWriter):
        return None
    raw = io.FileIO(descriptor, "w", closefd=False)
    # The type stubs want a buffered file below; python -u itself puts a raw one there.
    direct = io.TextIOWrapper(raw, encoding=layer.encoding, errors=layer.errors, write_through=True)
    direct.mode = "w"  # type: ignore[misc]
    return direct
