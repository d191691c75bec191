"""What a person sees: data on stdout, talk on stderr, colour only on a terminal. Knows nothing about jobs."""

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

from zrun.core import env

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that move the cursor, turn the direction of writing, or cannot be written at all."""
_LONGEST: Final = 280


def coloured(stream: TextIO) -> bool:
    """May this stream carry colour: a terminal, and the person did not say no (NO_COLOR)."""
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if coloured(stream) else text


def clean(text: str) -> str:
    """A job's own text, made safe for a terminal: control characters are escaped, colours stay where colour may be."""
    kept = coloured(sys.stdout)
    parts = _COLOUR.split(text)
    texts = [part.translate(_ESCAPES) if _UNSAFE.search(part) else part for part in parts[::2]]
    colours = [part if kept else "" for part in parts[1::2]]
    joined = "".join(one + colour for one, colour in zip(texts, [*colours, ""], strict=True))
    return f"{joined}\x1b[0m" if kept and colours else joined


class _Escapes(dict[int, str]):
    """For str.translate, filled as characters come."""

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        self[code] = sign.encode("unicode_escape").decode("ascii") if _UNSAFE.match(sign) else sign
        return self[code]


_ESCAPES: Final = _Escapes()


def one_line(text: str, most: int = _LONGEST) -> str:
    """`text` without line breaks and control characters, cut to what a person reads at a glance."""
    flat = clean(" ".join(_COLOUR.sub("", text[: 8 * most]).split()))
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def mend_streams() -> None:
    """A stream that was closed by the caller (`>&-`) leads nowhere; a half character is escaped rather than fatal."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest free number: no file opened later can take its place
            setattr(sys, name, os.fdopen(handle, "w" if number else "r", closefd=False))
        elif number and getattr(stream, "errors", "") in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="backslashreplace")


def silence_broken() -> None:
    """Streams whose reader has left lead nowhere from now on, so that the flush at exit does not fail again."""
    for found in (sys.stdout, sys.stderr):
        stream = getattr(found, "wrapped", found)  # click wraps what broke, so that its flush tells nothing
        try:
            stream.flush()
        except BrokenPipeError:
            handle = os.open(os.devnull, os.O_WRONLY)
            os.dup2(handle, stream.fileno())
            os.close(handle)
        except (OSError, ValueError):
            pass  # closed, or its terminal hung up


def say(text: str, style: str | None = None) -> None:
    """Talk: stderr. A reader or terminal that is gone is no reason to stop following a job."""
    try:
        print(paint(text, style, sys.stderr) if style else text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        silence_broken()
    except OSError:
        return  # the terminal hung up


def put(text: str) -> None:
    """Data: stdout. Where the reader has left, the command goes on and ends as if all had been read."""
    try:
        put_line(text)
    except BrokenPipeError:
        silence_broken()


def put_line(text: str) -> None:
    """One of many lines; raises BrokenPipeError, for nobody would read the next ones."""
    print(text, flush=True)


def put_json(value: Any) -> None:
    put(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def put_json_line(value: Any) -> None:
    put_line(json.dumps(value, ensure_ascii=False, default=str))


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
