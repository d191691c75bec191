"""Durations, sizes, cadences and ranges: the text of a job file -> seconds, bytes, numbers, and back.

Every parser raises Wrong with the way out. Knows nothing about fields or places.
"""

import re
from collections.abc import Callable
from typing import Final

from zrun.spec.problem import Wrong, quoted

DURATION: Final = "a duration such as 90s, 15m, 2h, 7d or 1-00:00:00"
SIZE: Final = "a size such as 512MiB, 64GiB or 2TB"
DURATION_FORM: Final = (
    r"^(([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+|[0-9]+(:[0-5][0-9]){2}"
    r"|[0-9]+-([01]?[0-9]|2[0-3])(:[0-5][0-9]){0,2})$"
)
SIZE_FORM: Final = r"^[0-9]+(\.[0-9]+)?(B|kB|KB|MB|GB|TB|PB|KiB|MiB|GiB|TiB|PiB)$"
LONGEST_S: Final = 3650 * 86400.0
LARGEST: Final = 2**63 - 1

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES: Final = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
}  # fmt: skip
_NUMBER: Final = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
_PART: Final = re.compile(rf"({_NUMBER})\s*([A-Za-zµ]*)")
_WHOLE: Final = re.compile(rf"(?:{_NUMBER}[a-z]+)+")
_SLURM: Final = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-9]{2}):([0-9]{2})")
_SLURM_DAYS: Final = re.compile(r"([0-9]{1,6})-([0-9]{1,2})(?::([0-9]{2}))?")


def whole(text: str, *, at_least: int = 0, at_most: int = LARGEST) -> int:
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise Wrong(f"{quoted(text)} is not a whole number")
    value = int(text)
    if value < at_least:
        raise Wrong(f"{text} is too small", f"{at_least} or more")
    if value > at_most:
        raise Wrong(f"{text} is too large", f"{at_most} or less")
    return value


def duration_s(text: str) -> float:
    """`1h30m` -> 5400.0; Slurm's D-HH:MM:SS, HH:MM:SS, D-HH and D-HH:MM too."""
    if clock := _SLURM.fullmatch(text):
        return _clock_s(text, *clock.groups())
    if clock := _SLURM_DAYS.fullmatch(text):
        return _clock_s(text, *clock.groups(), None)
    parts = _PART.findall(text)
    if _WHOLE.fullmatch(text) and all(unit in _SECONDS for _, unit in parts):
        return _bounded(text, sum(float(number) * _SECONDS[unit] for number, unit in parts))
    raise _unlike_duration(text)


def _clock_s(text: str, *parts: str | None) -> float:
    """Of days, hours, minutes and seconds; hours beyond a day are fine only where no days are counted."""
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    for what, value, limit in (("minutes", minutes, 60), ("seconds", seconds, 60), ("hours", hours, 24)):
        if value >= limit and (what != "hours" or parts[0] is not None):
            raise Wrong(f"{quoted(text)} has {value} {what}", f"fewer than {limit}, for example 1-12:30:00")
    return _bounded(text, days * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds)


def _bounded(text: str, value: float) -> float:
    if value > LONGEST_S:
        raise Wrong(f"{quoted(text)} is longer than ten years")
    return round(value, 6)


def _unlike_duration(text: str) -> Wrong:
    if re.fullmatch(_NUMBER, text):
        return Wrong(
            f"{text} has no unit", f"{text}s for {text} seconds, {text}m for {text} minutes, {text}h for {text} hours"
        )
    if re.fullmatch(r"[0-9]+:[0-9]{2}", text):
        return Wrong(
            f"{quoted(text)} could be minutes and seconds or hours and minutes", "write for example 90s or 1h30m"
        )
    found = _PART.fullmatch(text)
    if found and (unit := _meant_unit(found[2])):
        return Wrong(f"unknown unit {quoted(found[2])}", f"{found[1]}{unit}")
    if found:
        return Wrong(f"unknown unit {quoted(found[2])}", "ms, s, m, h, d or w")
    return Wrong(f"{quoted(text)} is not a duration")


def _meant_unit(word: str) -> str:
    lower = word.lower()
    if lower in _SECONDS:
        return lower
    if lower.startswith(("milli", "msec")):
        return "ms"
    for unit, stem in (("s", "sec"), ("m", "min"), ("h", "h"), ("d", "d"), ("w", "w")):
        if lower.startswith(stem) and lower in _SPELLED[unit]:
            return unit
    return ""


_SPELLED: Final = {
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "w": ("week", "weeks", "wk"),
}


def show_duration(value: float) -> str:
    """The shortest exact form with one unit: 5400.0 -> `90m`; reads back as the same number."""
    for unit in ("d", "h", "m", "s"):
        count = value / _SECONDS[unit]
        if count and count == int(count):
            return f"{int(count)}{unit}"
    if not value:
        return "0s"
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return f"{text}s"


def size_bytes(text: str) -> int:
    """`8GiB` -> 8589934592; `8GB` -> 8000000000."""
    found = re.fullmatch(rf"({_NUMBER})\s*([A-Za-z]*)", text)
    if not found:
        raise Wrong(f"{quoted(text)} is not a size")
    number, unit = found.groups()
    if not unit:
        raise Wrong(f"{number} has no unit", f"{number}GiB, {number}MiB or {number}B")
    if unit not in _BYTES:
        meant = next((known for known in _BYTES if known.lower() == unit.lower()), "")
        letter = unit[0].upper()
        meant = meant or (f"{letter}iB" if letter in "KMGTP" and unit[1:].lower() in {"", "i"} else "")
        raise Wrong(
            f"unknown unit {quoted(unit)}", f"{number}{meant}" if meant else "KiB, MiB, GiB, TiB (or MB, GB, TB)"
        )
    if " " in text:
        raise Wrong("a space between number and unit", f"{number}{unit}")
    value = int(float(number) * _BYTES[unit]) if "." in number else int(number) * _BYTES[unit]
    if value > LARGEST:
        raise Wrong(f"{quoted(text)} is too large")
    return value


def show_size(value: int) -> str:
    """The shortest exact form: 8589934592 -> `8GiB`."""
    units = [unit for unit in _BYTES if unit != "KB" and value and value % _BYTES[unit] == 0]
    return min((f"{value // _BYTES[unit]}{unit}" for unit in units), key=len, default=f"{value}B")


def steps(text: str) -> int:
    """`500 steps` -> 500."""
    found = re.fullmatch(r"([0-9]{1,12})\s*(?:steps?)", text)
    if not found:
        if re.fullmatch(r"[0-9]+", text):
            raise Wrong(f"{text} has no unit", f"{text} steps")
        raise Wrong(f"{quoted(text)} is not a number of steps", "for example 500 steps")
    if int(found[1]) < 1:
        raise Wrong(f"{quoted(text)}: the cadence is at least one step", "1 steps")
    return int(found[1])


def cadence(text: str) -> tuple[int | None, float | None]:
    """`500 steps` -> (500, None); `10m` -> (None, 600.0)."""
    if "step" in text:
        return steps(text), None
    if re.fullmatch(r"[0-9]+", text):
        raise Wrong(f"{text} has no unit", f"{text} steps or {text}s")
    value = duration_s(text)
    if value <= 0:
        raise Wrong(f"{quoted(text)}: the cadence is longer than nothing", "for example 10m")
    return None, value


def show_cadence(value: tuple[int | None, float | None]) -> str:
    count, seconds = value
    return f"{count} steps" if count is not None else show_duration(seconds or 0.0)


def span_of(text: str, mark: str, parse: Callable[[str], float], what: str) -> tuple[float, float]:
    """`MIN<mark>MAX`, or one value for both."""
    low, found, high = text.partition(mark)
    first = parse(low.strip())
    if not found:
        return first, first
    last = parse(high.strip())
    if first > last:
        raise Wrong(f"{what} is reversed", f"{high.strip()}{mark}{low.strip()}")
    return first, last


def nodes(text: str) -> tuple[int, int]:
    """`4` -> (4, 4); `3:4` -> (3, 4)."""
    low, high = span_of(text, ":", lambda part: whole(part, at_least=1, at_most=100_000), "MIN:MAX")
    return int(low), int(high)


def show_nodes(value: tuple[int, int]) -> int | str:
    return value[0] if value[0] == value[1] else f"{value[0]}:{value[1]}"
