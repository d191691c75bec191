"""Arguments and options that many commands share, and the reading of times and rank lists that people type."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from zrun.core.errors import UsageError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def complete_job(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Job ids and names for the shell's completion."""
    from zrun.cli import registry

    known = registry.known()
    words = dict.fromkeys([*(e.job for e in known), *(e.name for e in known)])
    return [word for word in words if word.startswith(begun)]


def job_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("job", required=False, shell_complete=complete_job)(function)


def coordinator_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--coordinator", metavar="URL", help="Ask this coordinator (else ZRUN_COORDINATOR).")(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Machine-readable data on stdout.")(function)


def seconds(text: str) -> float:
    """`90s 15m 2h30m` -> seconds. Raises UsageError."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{text!r} is not a duration", "for example 90s, 15m, 2h30m or 7d")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def since(text: str, now: datetime) -> str:
    """A duration before `now`, or an RFC 3339 time -> RFC 3339 UTC as in the log lines. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = now - timedelta(seconds=seconds(text))
        except (UsageError, OverflowError):
            raise UsageError(
                f"{text!r} is neither a duration nor a time", "for example 10m or 2026-01-31T12:00:00Z"
            ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return stamp(moment)


def stamp(moment: datetime) -> str:
    """RFC 3339 UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def numbers(text: str, what: str) -> list[int]:
    """`0,2,4-6` -> [0, 2, 4, 5, 6]. Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match:
            raise UsageError(f"{text!r} is no list of {what}s", "for example 0,2 or 0-7")
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found
