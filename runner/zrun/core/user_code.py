"""Which files are the user's own code, and which frame of a stack is: one rule for a rank's last words and for stacks
seen from outside.

Knows paths and the text of stacks only; reads no file and asks no interpreter but for where this one's library lies.
"""

import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NEVER: Final = ("/site-packages/", "/dist-packages/", "/rank-path/zrun/")
"""Installed packages and our own rooms, wherever they lie: a virtual environment or a run may lie in the project."""
_LIBRARY: Final = re.compile(r"^.*?/lib(?:64)?/python\d+(?:\.\d+)?t?/")
"""The standard library of any python."""
_STDLIB: Final = tuple(f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib"))
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) .*$", re.MULTILINE)
_DUMPED: Final = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)
_SPIED: Final = re.compile(r"^ +\S.* \((.+):(\d+)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class UserCode:
    """`own`: folders of the user's, the script's first; `ours`: where zrun's rooms lie."""

    own: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()

    def has(self, file: str) -> bool:
        """Of the user's folders and the standard library the longer match wins; anything else is the user's."""
        if file.startswith(("<", *self.ours)) or any(part in file for part in _NEVER):
            return False
        found = _LIBRARY.match(file)
        library = max(len(found[0]) if found else 0, _longest(file, _STDLIB))
        return library == 0 or _longest(file, self.own) > library

    def innermost(self, frames: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
        """`frames` outermost first, as in a traceback."""
        return next((frame for frame in reversed(frames) if self.has(frame[0])), None)

    def in_stack(self, text: str) -> tuple[str, int] | None:
        """Of a stack as faulthandler or py-spy print it, innermost first.

        Of the main thread, which began first, or of the one that a fatal error was in.
        """
        main = _main_thread(text)
        found = _DUMPED.findall(main) or _SPIED.findall(main)
        return next(((file, int(line)) for file, line in found if self.has(file)), None)


def _main_thread(text: str) -> str:
    starts = [match.start() for match in _THREAD.finditer(text)]
    threads = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=False)] or [text]
    mark = "Current thread" if text.startswith("Fatal Python error") else '"MainThread"'
    return next((thread for thread in threads if mark in thread.partition("\n")[0]), threads[-1])


def _longest(file: str, folders: Iterable[str]) -> int:
    return max((len(folder) for folder in folders if file.startswith(folder)), default=0)


def folder(path: str | Path) -> str:
    """As `own` and `ours` want it: with a slash at the end."""
    return f"{str(path).rstrip('/')}/"


def shown(place: tuple[str, int], start: Path) -> str:
    """`train.py:12`, relative to `start` where it lies below it."""
    file, line = place
    try:
        return f"{Path(file).relative_to(start)}:{line}"
    except ValueError:
        return f"{file}:{line}"
