"""Keeping secret values out of everything that is written: journal, logs, events, incidents, reports.

Holds values in memory only. Knows a value as it is, in JSON, in base64 (also within something longer) and in URLs;
other encodings are not searched for.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

from zrun.core.private import write_text

SHORTEST: Final = 4
"""A shorter value is left alone: replacing it everywhere would garble more than it hides."""
LONG_LINE: Final = 8
"""Of a value of many lines (a key file) each line of at least so many characters counts as a value: logs have lines."""
MASK: Final = "[secret]"


def _forms(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield from (repr(value)[1:-1], json.dumps(repr(value)[1:-1])[1:-1])  # as an f-string's !r shows it
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    raw = _raw(value)
    for shown in (raw.decode("utf-8", "backslashreplace"), raw.decode("utf-8", "replace")):  # where it is no UTF-8
        yield from (shown, json.dumps(shown)[1:-1])
    for text in (quote(raw), quote(raw, safe=b""), quote_plus(raw)):
        yield text
        yield _lower_escapes(text)
    for offset in range(3):  # where the value begins within three bytes of something longer, as in user:password
        text = base64.b64encode(b"\0" * offset + raw).decode()
        begin, end = -(-8 * offset // 6), 8 * (offset + len(raw)) // 6
        yield from (text[begin:end], text[begin:end].translate(_URL_SAFE))


def _raw(value: str) -> bytes:
    """The bytes in the environment; of half a character that never was there, what python would make of it."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


_URL_SAFE: Final = str.maketrans("+/", "-_")


def _lower_escapes(text: str) -> str:
    first, *rest = text.split("%")
    return first + "".join(f"%{piece[:2].lower()}{piece[2:]}" for piece in rest)


class Redactor:
    """Replaces the values it was given, longest first."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        self.learn(values)

    def learn(self, values: Iterable[str]) -> None:
        """Hide these values too, from now on and for everybody who holds this redactor."""
        self._values |= {value for value in values if len(value) >= SHORTEST}
        forms: set[str] = set()
        for value in self._values:
            lines = value.splitlines()
            for part in {value, *(line for line in lines if len(lines) > 1 and len(line) >= LONG_LINE)}:
                forms |= {form for form in _forms(part) if len(form) >= SHORTEST}
        self._forms = sorted(forms, key=len, reverse=True)

    @property
    def active(self) -> bool:
        """There is something to hide."""
        return bool(self._forms)

    def also(self, values: Iterable[str]) -> "Redactor":
        """One that hides these values too."""
        return Redactor({*self._values, *values})

    def finds(self, text: str) -> bool:
        """Would `text` be changed?"""
        return any(form in text for form in self._forms)

    def text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def cut(self, text: str) -> str:
        """As `text`, where more may have followed: the beginning of a value at the very end is hidden too."""
        text = self.text(text)
        for form in self._forms:
            for size in range(min(len(form) - 1, len(text)), SHORTEST - 1, -1):
                if text.endswith(form[:size]):
                    return text[:-size] + MASK
        return text

    def value(self, value: Any) -> Any:
        """A copy with every string inside (keys too) redacted; the same object if there is nothing to hide."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(k): self.value(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(v) for v in value]
        return value

    def file(self, path: Path) -> None:
        """Rewrite a small text file that nobody writes any more; nothing happens if it is not there. Raises OSError."""
        if not self._forms or not path.exists():
            return
        text = path.read_text("utf-8", "backslashreplace")
        clean = self.text(text)
        if clean != text:
            write_text(path, clean)
