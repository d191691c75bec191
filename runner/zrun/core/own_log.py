"""The one shape of what zrun's own processes log: a JSON line {ts, level, program, msg, job, attempt, node, rank,
because, why, …}. `because` is the number of the event that led to it, `why` a reason in words.

Standard library only, so that the keeper and the supervisor can use it; agent and coordinator hand it to structlog.
"""

import json
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final

_FIRST: Final = ("job", "attempt", "node", "rank", "because", "why")
"""Where known, and in this order, before everything else."""


def log_line(program: str, level: str, msg: str, fields: Mapping[str, Any] | None = None) -> str:
    """One line without its newline; whatever is in `fields` becomes text if it must."""
    given = dict(fields or {})
    reason = given.get("because")
    if reason is not None and not isinstance(reason, int):  # words, not a number
        given.setdefault("why", given.pop("because"))
    if isinstance(given.get("n"), int):
        given.setdefault("because", given.pop("n"))
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {"ts": now, "level": level, "program": program, "msg": msg}
    line |= {name: given.pop(name) for name in _FIRST if name in given}
    line |= {name: value for name, value in given.items() if name not in line}
    try:
        text = json.dumps(line, ensure_ascii=False, default=str)
        text.encode()
    except (ValueError, UnicodeEncodeError):  # half characters, circles
        text = json.dumps({name: str(value) for name, value in line.items()})
    return text


class Renderer:
    """The last of structlog's processors."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __call__(self, _log: Any, method: str, fields: MutableMapping[str, Any]) -> str:
        named = {"exception": "error", "warn": "warning", "fatal": "critical"}
        msg = str(fields.pop("event", ""))
        return log_line(self._program, named.get(method, method), msg, fields)


def readable(text: str) -> str:
    """A line of such a log as people read it; any other line as it is."""
    if not text.startswith("{"):
        return text
    try:
        line = json.loads(text)
    except ValueError:
        return text
    if not isinstance(line, dict) or "msg" not in line:
        return text
    told = {k: v for k, v in line.items() if k not in {"ts", "level", "program", "msg", "why", "exception"} and v}
    more = f" ({', '.join(f'{k} {v}' for k, v in told.items())})" if told else ""
    why = f": {line['why']}" if line.get("why") else ""
    trace = f"\n{line['exception']}" if line.get("exception") else ""
    return f"{line.get('level', 'info')}: {line['msg']}{why}{more}{trace}"
