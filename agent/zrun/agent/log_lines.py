"""One line of a rank's output as one JSON line: level, step and batch, the script's own fields kept. Pure."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from zrun.core.words import encodable

_CRITICAL: Final = re.compile(r"\b(CRITICAL|FATAL)\b|^(\[rank\d+\]: *)?Fatal Python error")
_ERROR: Final = re.compile(r"\bERROR\b|^(\[rank\d+\]: *)?(Traceback \(most recent call last\)|[\w.]*Error: )")
_WARNING: Final = re.compile(r"\bWARN(ING)?\b|\b[A-Za-z]*Warning: ")
_LEVELS: Final = {
    "debug": "debug", "trace": "debug", "info": "info", "notice": "info", "warn": "warning", "warning": "warning",
    "error": "error", "exception": "error", "critical": "critical", "fatal": "critical",
}  # fmt: skip
_LEVEL_KEYS: Final = ("level", "levelname", "severity", "log_level")
_TEXT_KEYS: Final = ("msg", "message", "event")


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
    """By its words; most lines are `info`."""
    if _CRITICAL.search(text):
        return "critical"
    if _ERROR.search(text):
        return "error"
    return "warning" if _WARNING.search(text) else "info"


def to_line(place: Place, raw: bytes, at: float, step: int | None, batch: str | None) -> dict[str, Any]:
    r"""`raw` without its newline; bytes that are not UTF-8 stand there as \xNN. `at` is Unix seconds."""
    text = raw.decode("utf-8", "backslashreplace")
    own = _own_json(text)
    ts = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {
        "ts": ts, "job": place.job, "attempt": place.attempt, "node": place.node, "rank": place.rank,
        "local_rank": place.local_rank, "stream": place.stream, "step": step, "batch": batch,
    }  # fmt: skip
    if own is None:
        return {**line, "level": level_of(text), "msg": text}
    named = next((str(own[key]).lower() for key in _LEVEL_KEYS if key in own), "info")
    message = next((own[key] for key in _TEXT_KEYS if isinstance(own.get(key), str)), text)
    return {**line, "level": _LEVELS.get(named, "info"), "msg": message, "fields": own}


def _own_json(text: str) -> dict[str, Any] | None:
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text, parse_constant=str)  # NaN is no JSON: kept as text
    except (ValueError, RecursionError):
        return None
    return encodable(value) if isinstance(value, dict) else None
