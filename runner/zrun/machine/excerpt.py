"""The telling part of a traceback: the user's own frames of the exception that came first, in few lines. Pure text.

Knows the forms in which python prints a chain of exceptions and faulthandler a stack; decides nothing.
"""

import re
from typing import Final

from zrun.core.user_code import UserCode

FRAMES: Final = 4
_LONGEST: Final = 160
_NEXT_IN_CHAIN: Final = re.compile(
    r"^[\s|+-]*(?:The above exception was the direct cause|During handling of the above exception)", re.MULTILINE
)
_FRAME: Final = re.compile(r'^[ |]*File "(.+)", line (\d+), in (.+)\n(?:[ |]* {4}(?!File ")(\S.*))?', re.MULTILINE)
_DUMPED: Final = re.compile(r'^ +File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_USERS: Final = UserCode()


def excerpt(traceback: str | None, most: int = FRAMES) -> list[str]:
    """`train.py:52 in main: loss = model(x)`, outermost first; the innermost frames if there are more than `most`."""
    if not traceback:
        return []
    if traceback.startswith("Fatal Python error"):
        frames = [(file, line, name, "") for file, line, name in reversed(_DUMPED.findall(_fatal_thread(traceback)))]
    else:
        root = _NEXT_IN_CHAIN.split(traceback, maxsplit=1)[0]
        frames = _FRAME.findall(root)
    theirs = [frame for frame in frames if _USERS.has(frame[0])]
    return [_line(*frame) for frame in theirs[-most:]]


def raised_by_hand(traceback: str | None) -> bool:
    """Did a `raise` in the user's own code begin it? Then the words are the user's too, whatever they sound like."""
    frames = _FRAME.findall(_NEXT_IN_CHAIN.split(traceback or "", maxsplit=1)[0])
    return bool(frames) and _USERS.has(frames[-1][0]) and frames[-1][3].startswith("raise")


def _fatal_thread(dump: str) -> str:
    """The thread that the error was in, up to the next one."""
    at = dump.find("Current thread")
    return dump if at < 0 else dump[at:].partition("\n\n")[0]


def _line(file: str, line: str, name: str, code: str) -> str:
    said = f"{file}:{line} in {name}" + (f": {code.strip()}" if code else "")
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"
