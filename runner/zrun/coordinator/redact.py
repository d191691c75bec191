"""Keeping secret values out of everything that is written: journal, log, events, incidents.

Holds values in memory only. Knows plain replacement; encoded forms other than JSON's are not searched for.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

SHORTEST: Final = 4
"""A shorter value is left alone: replacing it everywhere would garble more than it hides."""
MASK: Final = "[secret]"


class Redactor:
    """Replaces the values it was given, longest first."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for value in values:
            if len(value) >= SHORTEST:
                forms |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        self._forms = sorted(forms, key=len, reverse=True)

    @property
    def active(self) -> bool:
        """There is something to hide."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
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
