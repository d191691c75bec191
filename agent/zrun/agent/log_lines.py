"""One line of a rank's output as one JSON line: level, step and batch, the script's own fields kept. Pure."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from zrun.core.words import encodable

_CRITICAL: Final = re.compile(r"\b(CRITICAL|FATAL)\b|^(\[rank\d+\]: *)?Fatal Python error")
_ERROR: Final = re.compile(r"\bERROR\b|^(\[rank\d+\]: *)?(Traceback \(most recent call last\)|[\w.]*Error: )")
_WARNING: Final = re.compile(r"\bWARN(ING)?\b|\b[A-Za-z]*Warning: ")
_LEVELS: Final = {
    "debug": "debug", "trace": "debug", "info": "info", "success": "info", "notice": "info", "warn": "warning",
    "warning": "warning", "error": "error", "err": "error", "exception": "error", "critical": "critical",
    "fatal": "critical", "panic": "critical", "emergency": "critical", "alert": "critical",
}  # fmt: skip
_LEVEL_KEYS: Final = ("level", "levelname", "severity", "log_level", "lvl", "levelno")
_TEXT_KEYS: Final = ("msg", "message", "event")
_LOOKED_AT: Final = 4096
"""Characters in which a level is looked for: a line of a megabyte is data."""
LOUD: Final = frozenset({"warning", "error", "critical"})


@dataclass(frozen=True, slots=True)
class Place:
    """Whose output it is."""

    job: str
    attempt: int
    node: str
    rank: int
    local_rank: int
    stream: str


def level_of(text: str) -> str:
    """By the words it begins with; most lines are `info`."""
    text = text[:_LOOKED_AT]
    if _CRITICAL.search(text):
        return "critical"
    if _ERROR.search(text):
        return "error"
    return "warning" if _WARNING.search(text) else "info"


@dataclass(slots=True)
class Read:
    """What one line says."""

    level: str
    msg: str
    fields: bytes | None = None
    """The script's own JSON object, as it wrote it."""


def read_line(raw: bytes) -> Read:
    r"""`raw` without its newline; bytes that are not UTF-8 stand there as \xNN."""
    text = raw.decode("utf-8", "backslashreplace")
    if text.startswith("{") and text.endswith("}"):
        own, fields = _own_json(text)
        if own is not None:
            said = _inner(own)
            message = next((said[key] for key in _TEXT_KEYS if isinstance(said.get(key), str)), text)
            return Read(_level(said, message), message, fields)
    return Read(level_of(text), text)


def _inner(own: dict[str, Any]) -> dict[str, Any]:
    """Where level and message stand: loguru puts them one deeper."""
    record = own.get("record")
    return record if isinstance(record, dict) and isinstance(record.get("message"), str) else own


def _level(said: dict[str, Any], message: str) -> str:
    """As the script named or numbered it (as Python's logging does); else by the message's words."""
    for key in _LEVEL_KEYS:
        value = said.get(key)
        if isinstance(value, dict):
            value = value.get("name")
        if isinstance(value, str) and value.lower() in _LEVELS:
            return _LEVELS[value.lower()]
        if isinstance(value, int) and not isinstance(value, bool) and value >= 10:
            return next((name for low, name in _NUMBERED if value >= low), "debug")
    return level_of(message)


_NUMBERED: Final = ((50, "critical"), (40, "error"), (30, "warning"), (20, "info"))


def _own_json(text: str) -> tuple[dict[str, Any] | None, bytes]:
    """(the object, it as JSON that everybody can read): NaN and half characters are kept as text."""
    raw = text.encode()
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        pass
    else:
        return (value, raw) if isinstance(value, dict) else (None, b"")
    try:
        value = json.loads(text, parse_constant=str, parse_float=_number)
        if isinstance(value, dict):
            value = encodable(value)
            return value, json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        pass
    return None, b""


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text
