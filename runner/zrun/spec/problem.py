"""One mistake in a job file and how it is shown: where, the line, a caret, what was expected, the way out.

Knows nothing about fields or YAML.
"""

import bisect
import re
from dataclasses import dataclass, field
from typing import Final

MOST: Final = 100
"""Mistakes shown at once; a file with more is not a job file."""
WIDTH: Final = 140
LONGEST: Final = 200
"""Characters shown of a message, a suggestion or an option."""
_BREAK: Final = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Source:
    """A text that positions point into: a file, or the value of one command-line option."""

    name: str
    """A path, or for example `--set a.b=c`."""
    text: str
    is_file: bool = True

    def place(self, index: int) -> tuple[int, int, str]:
        """(line from 1, column from 1, the line's text)."""
        starts = [0, *(found.end() for found in _BREAK.finditer(self.text))]
        number = bisect.bisect_right(starts, index)
        start = starts[number - 1]
        line = _BREAK.split(self.text[start:], maxsplit=1)[0]
        return number, index - start + 1, line


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of a source."""

    source: Source
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Problem:
    span: Span
    message: str
    expected: str = ""
    suggestion: str = ""

    def render(self) -> str:
        """Several lines without a last line break; control characters of the file never reach the terminal."""
        source = self.span.source
        message = cut(self.message)
        lines = [f"{cut(source.name)}: {message}"]
        if source.is_file:
            number, column, line = source.place(self.span.start)
            lines = [f"{source.name}:{number}:{column}: {message}"]
            if line.strip():
                lines += _excerpt(number, column, line, self.span.end - self.span.start)
        if self.expected:
            lines.append(f"    expected: {self.expected}")
        if self.suggestion:
            lines.append(f"    try: {cut(self.suggestion)}")
        return "\n".join(printable(line) for line in lines)


def _excerpt(number: int, column: int, line: str, length: int) -> list[str]:
    start = 0 if column <= WIDTH - 20 else column - 1 - WIDTH // 2
    shown = line[start : start + WIDTH]
    before = column - 1 - start
    carets = max(1, min(length, len(shown.rstrip()) - before))
    margin = f"{number:>5} | "
    return [margin + shown.replace("\t", " "), " " * (len(margin) - 2) + "| " + " " * before + "^" * carets]


def printable(text: str) -> str:
    """`text` with everything that is not printable shown as a middle dot."""
    return "".join(char if char.isprintable() else "·" for char in text)


def cut(text: str, most: int = LONGEST) -> str:
    """`text`, its middle left out where it is too long to be read; the end of a path says most."""
    return text if len(text) <= most else f"{text[: most - 61]}…{text[-60:]}"


def sound(text: str) -> str:
    """`text` if it can be the name of a file, an argument or a variable's value; raises Wrong."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        hint = "take out NUL; a character beyond \\uffff is written \\U0001f600, not as two halves"
        raise Wrong(f"{quoted(text)} holds characters no file system takes", hint)
    return text


def quoted(text: str) -> str:
    """`text` in quotes, cut to a length that fits into a message."""
    return f"'{text if len(text) <= 60 else text[:57] + '...'}'"


@dataclass(slots=True)
class Problems:
    """Collects the mistakes of one load, in the order they were found."""

    paths: tuple[str, ...] = ()
    """The dotted names of all fields there are, for suggestions."""
    found: list[Problem] = field(default_factory=list)
    more: int = 0
    """Mistakes beyond MOST, counted only."""

    def add(self, span: Span, message: str, *, expected: str = "", suggestion: str = "") -> None:
        if self.full:
            self.more += 1
        else:
            self.found.append(Problem(span, message, expected, suggestion))

    @property
    def count(self) -> int:
        return len(self.found) + self.more

    @property
    def full(self) -> bool:
        """Nothing further will be shown, so that looking for more is wasted."""
        return len(self.found) >= MOST

    def rendered(self) -> tuple[str, ...]:
        """In the order of the file; options come last."""
        ordered = sorted(self.found, key=lambda one: (not one.span.source.is_file, one.span.start))
        texts = tuple(one.render() for one in ordered)
        return (*texts, f"... and {self.more} more") if self.more else texts


class Wrong(Exception):  # noqa: N818 - not an error of the program: a value that its field cannot take
    """Raised by a parser of one value; the reader turns it into a Problem with its place."""

    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
