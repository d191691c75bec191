"""What a person sees: data on stdout, talk on stderr, colour only on a terminal. Knows nothing about jobs."""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

from zrun.core import env

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_UNSAFE: Final = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")
"""Control characters that move the cursor or worse; tabs and colours are left to the job."""


def coloured(stream: TextIO) -> bool:
    """May this stream carry colour: a terminal, and the person did not say no (NO_COLOR)."""
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if coloured(stream) else text


def clean(text: str) -> str:
    """A job's own line, made safe for a terminal."""
    return _UNSAFE.sub("", text)


def say(text: str, style: str | None = None) -> None:
    """Talk: stderr. A terminal that is gone is no reason to stop following a job."""
    try:
        print(paint(text, style, sys.stderr) if style else text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        return  # the terminal hung up


def put(text: str) -> None:
    """Data: stdout."""
    print(text, flush=True)


def put_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str), flush=True)


def put_json_line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns wide enough for their longest cell; nothing is cut."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def span(seconds: float | None) -> str:
    """`0.4s`, `12s`, `3m 20s`, `2h 05m`, `3d 04h`; `-` for unknown."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def size(count: float | None) -> str:
    """`512 B`, `1.4 MiB`; `-` for unknown."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


STATE_STYLE: Final = {
    "SUCCEEDED": "green", "RUNNING": "green", "FAILED": "red", "RECOVERING": "yellow", "SUSPENDED": "yellow",
    "STOPPING": "yellow", "STOPPED": "yellow", "PREEMPTED": "yellow", "PENDING": "cyan", "SETUP": "cyan",
    "STARTING": "cyan",
}  # fmt: skip
