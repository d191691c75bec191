"""The kinds of value that job.yaml uses: names, durations, sizes, signals, budgets, ranges.

Knows nothing about which field uses which.
"""

import re
import signal
from typing import Any, Final

from zrun.core import env
from zrun.core.ids import NAME
from zrun.core.place import wrong_url
from zrun.core.states import FaultClass
from zrun.spec import units
from zrun.spec.job import DEFAULT_BACKOFF, Backoff
from zrun.spec.kinds import OMIT, MapOf, One, closest, or_word
from zrun.spec.problem import Wrong, quoted

FAULTS: Final = tuple(one.value for one in FaultClass)
_SIGNALS: Final = tuple(sorted(one.name.removeprefix("SIG") for one in signal.Signals))
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_BOOLEANS: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def number(expects: str, at_least: int = 0, at_most: int = units.LARGEST) -> One:
    form = {"type": "integer", "minimum": at_least, "maximum": at_most}
    return One(expects, lambda text: units.whole(text, at_least=at_least, at_most=at_most), form, int, bare=True)


def duration(at_least_s: float = 0.0, *, above_zero: bool = True) -> One:
    def parse(text: str) -> float:
        value = units.duration_s(text)
        if above_zero and value <= 0:
            raise Wrong(f"{quoted(text)} must be longer than nothing")
        if value < at_least_s:
            raise Wrong(f"{quoted(text)} is too short", f"{units.show_duration(at_least_s)} or more")
        return value

    return One(units.DURATION, parse, {"type": "string", "pattern": units.DURATION_FORM}, units.show_duration)


def unset(kind: One) -> One:
    """A kind whose None (not asked for) is not written."""
    return One(
        kind.expects, kind.parse, kind.form, lambda value: OMIT if value is None else kind.write(value), kind.bare
    )


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        lower = text.lower()
        meant = lower if lower in {"true", "false"} else _BOOLEANS.get(lower, "true or false")
        raise Wrong(f"{quoted(text)} is neither true nor false", f"write {meant}")
    return text == "true"


def _path(text: str) -> str:
    if text != text.strip() or not text or "\n" in text:
        raise Wrong(f"{quoted(text)} is not a path")
    return text


def _place(text: str) -> str:
    """A path, or the URL of an object store's prefix."""
    if reason := wrong_url(_path(text)):
        raise Wrong(f"{quoted(text)} cannot hold checkpoints: {reason}")
    return text


def _job_name(text: str) -> str:
    if NAME.fullmatch(text):
        return text
    mended = re.sub(r"[^a-z0-9]+", "-", text[:200].lower()).strip("-")[:63].strip("-")
    raise Wrong(f"{quoted(text)} is not a job name", f"for example {mended or 'my-job'}")


def variable(text: str) -> str:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(text):
        raise Wrong(f"{quoted(text)} is not the name of a variable", "letters, digits, _ . -, for example NCCL_DEBUG")
    return text


def own_variable(text: str) -> None:
    """A variable that the job may set: the launcher's are refused rather than silently overwritten."""
    variable(text)
    if env.owned(text):
        raise Wrong(f"{text} is set by zrun for each rank", "take it out")


def signal_name(text: str) -> str:
    name = text.removeprefix("SIG")
    if name not in _SIGNALS:
        raise Wrong(f"{quoted(text)} is not a signal", closest(name.lower(), [one.lower() for one in _SIGNALS]).upper())
    return name


def _catchable(text: str) -> str:
    name = signal_name(text)
    if name in {"KILL", "STOP", "CHLD", "INT", "CONT"}:
        raise Wrong(f"{name} cannot announce a preemption", "TERM or USR1")
    return name


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise Wrong(f"{quoted(text)} is not a regular expression: {error}") from error
    return text


def _step_regex(text: str) -> str:
    if "step" not in re.compile(_regex(text)).groupindex:
        raise Wrong("no group named step", r"for example 'step[ =:]+(?P<step>\d+)'")
    return text


def _memory_cadence(text: str) -> str:
    if text not in {"auto", "off"}:
        units.cadence(text)
    return text


def _resume(text: str) -> str:
    if text in {"auto", "never"} or "/" in text:
        return _place(text)
    hint = "never" if text.lower() in {"no", "false", "off", "none"} else f"./{text} for a folder beside the job file"
    raise Wrong(f"{quoted(text)} is neither auto, never nor a path", hint)


def _backoff(text: str) -> Backoff:
    low, high = units.span_of(text, "..", units.duration_s, "MIN..MAX")
    return Backoff(low, high)


def _show_backoff(value: Backoff) -> str:
    low, high = units.show_duration(value.min_s), units.show_duration(value.max_s)
    return low if low == high else f"{low}..{high}"


def _fault(text: str) -> str:
    if text not in FAULTS:
        raise Wrong(f"{quoted(text)} is not a class of fault", closest(text, FAULTS) or " | ".join(FAULTS))
    return text


def _any_name(text: str) -> None:
    if not text or len(text) > 256 or not text.isprintable():
        raise Wrong(f"{quoted(text)} is not a name")


def _phase(text: str) -> None:
    known = {"setup", "first_step", "step", "eval", "save", "exit"}
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,47}", text):
        raise Wrong(f"{quoted(text)} is not the name of a phase", "letters, digits, _ . and -, at most 48")
    if text in known:
        raise Wrong(f"{text} is a phase of zrun's own", f"watchdog.{text}")


def _same_name(text: str) -> None:
    _fault(text)


_STRING: Final = {"type": "string"}
_SCALAR: Final = {"type": ["string", "number", "boolean"]}
_LINE: Final = {"type": "string", "minLength": 1}

TEXT: Final = One("text", str, _STRING)
PATH: Final = One("a path", _path, _LINE)
PLACE: Final = One("a path, or a URL such as s3://bucket/runs/a", _place, _LINE)
BOOLEAN: Final = One("true or false", _boolean, {"type": "boolean"}, bool, bare=True)
JOB_NAME: Final = One(
    "a DNS label: small letters, digits and -, at most 63 characters", _job_name,
    {"type": ["string", "integer"], "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
)  # fmt: skip
VARIABLE: Final = One("the name of a variable", variable, {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})
NODES: Final = One(
    "a number of nodes, or MIN:MAX such as 3:4", units.nodes,
    {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+(:[0-9]+)?$"}]},
    units.show_nodes,
)  # fmt: skip
SIZE: Final = One(units.SIZE, units.size_bytes, {"type": "string", "pattern": units.SIZE_FORM}, units.show_size)
STEPS: Final = One(
    "a number of steps such as 1000 steps", units.steps, {"type": "string", "pattern": "^[0-9]+ ?steps?$"},
    lambda value: f"{value} steps",
)  # fmt: skip
CADENCE: Final = One(
    "N steps or a duration, for example 500 steps or 10m", units.cadence,
    {"anyOf": [STEPS.form, {"type": "string", "pattern": units.DURATION_FORM}]}, units.show_cadence,
)  # fmt: skip
MEMORY_CADENCE: Final = One("auto, off, N steps or a duration", _memory_cadence, _LINE)
RESUME: Final = One("auto, never, or a path or URL with a / in it", _resume, _LINE)
BACKOFF: Final = One("a duration or MIN..MAX such as 1s..60s", _backoff, _LINE, _show_backoff)
BUDGET: Final = or_word(number("a number of restarts", at_most=1_000_000), "unlimited")
LIMIT: Final = or_word(duration(0.1), "auto")
PREEMPT_SIGNAL: Final = One("a signal such as TERM or USR1", _catchable, _LINE)
SIGNAL: Final = One(
    "a signal such as SEGV or KILL", lambda text: f"SIG{signal_name(text)}", _LINE,
    lambda value: value.removeprefix("SIG"),
)  # fmt: skip
FAULT: Final = One(" | ".join(FAULTS), _fault, {"enum": list(FAULTS)})
REGEX: Final = One("a regular expression", _regex, _STRING)
STEP_REGEX: Final = unset(One(r"a regular expression with (?P<step>\d+) in it", _step_regex, _STRING))
LABELS: Final = MapOf(One("text", str, _SCALAR), _any_name, _STRING, "a block of names and texts")
ENV: Final = MapOf(
    One("text", str, _SCALAR), own_variable, {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    "a block of variables, for example {NCCL_DEBUG: WARN}",
)  # fmt: skip
PHASES: Final = MapOf(duration(0.1), _phase, _LINE, "a block of phases and durations, for example {tokenize: 1h}")
BACKOFFS: Final = MapOf(
    BACKOFF, _same_name, {"enum": list(FAULTS)}, "a block of fault classes and durations, for example {crash: 1s..60s}",
    lambda: dict[str, Any](DEFAULT_BACKOFF),
)  # fmt: skip
