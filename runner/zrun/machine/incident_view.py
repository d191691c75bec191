"""An incident as people and programs see it: first the cause, then what followed, then the cost. Pure."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from zrun.core.failure import Failure, FailureKind
from zrun.machine.excerpt import excerpt
from zrun.machine.state import Incident

WallOf = Callable[[float], str | None]
"""Machine time -> RFC 3339, None where the wall clock is not known."""
LONGEST: Final = 4000
"""Characters of one text; whole texts are in the logs on the node."""
_TAIL: Final = 1000
_LAST_LINES: Final = 10
_T = TypeVar("_T")


def no_wall(_at: float) -> str | None:
    return None


def cut(value: Any) -> Any:
    """A copy in which no text is longer than LONGEST: beginning and end, and how much is missing between them."""
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[: LONGEST - _TAIL]} … [{len(value) - LONGEST} characters left out] … {value[-_TAIL:]}"
    if isinstance(value, dict):
        return {key: cut(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [cut(one) for one in value]
    return value


def incident_summary(incident: Incident, wall_of: WallOf = no_wall) -> dict[str, Any]:
    """One entry of the status object's `incidents`."""
    verdict, suspected = incident.verdict, incident.suspected
    failure = verdict.failure if verdict is not None else None
    by_us = failure is not None and failure.kind in {FailureKind.HUNG, FailureKind.ENDED_BY_US}
    suspect = suspected.ranks[0] if suspected is not None and suspected.ranks else None
    shown: dict[str, Any] = cut(
        {
            "id": incident.number,
            "class": incident.fault.value,
            "rank": verdict.rank if verdict is not None else suspect,
            "ranks": list(verdict.alike) if verdict is not None else list(suspected.ranks) if suspected else [],
            "node": (verdict.node if verdict is not None else None) or (suspected.node if suspected else None),
            "nodes": _nodes_of(incident),
            "exit_code": failure.exit_code if failure and not by_us else None,
            "signal": failure.signal if failure and not by_us else None,
            "exception": failure.exception if failure else None,
            "message": failure.message if failure else None,
            "step": _first(failure.step if failure else None, suspected.step if suspected else None),
            "batch": _first(failure.batch if failure else None, suspected.batch if suspected else None),
            "collective": _first(failure.collective if failure else None, suspected.collective if suspected else None),
            "where": _first(failure.where if failure else None, suspected.where if suspected else None),
            "frames": excerpt(failure.traceback if failure else None),
            "peak_rss_bytes": failure.peak_rss_bytes if failure else None,
            "because": list(verdict.because if verdict is not None else suspected.because if suspected else ()),
            "followed": list(verdict.followed) if verdict is not None else [],
            "detected_s": _rounded(incident.detected_s),
            "recovered_s": _rounded(incident.recovered_s),
            "steps_lost": incident.steps_lost,
            "attempt": incident.attempt,
            "headline": incident.headline,
            "suspicion": incident.suspicion,
            "open": incident.open,
            "decision": incident.decision,
            "resolution": incident.resolution,
            "opened_at_s": _rounded(incident.opened_at),
            "closed_at_s": _rounded(incident.closed_at),
            "at": wall_of(incident.opened_at),
            "last_lines": failure.last_lines[-_LAST_LINES:] if failure else [],
        }
    )
    return shown


def incident_detail(incident: Incident, wall_of: WallOf = no_wall) -> dict[str, Any]:
    """The same with all evidence that is data: every failure, the roll call, lost nodes."""
    verdict, suspected = incident.verdict, incident.suspected
    failure = verdict.failure if verdict is not None else None
    more: dict[str, Any] = cut(
        {
            "traceback": failure.traceback if failure else None,
            "last_lines": list(failure.last_lines) if failure else [],
            "failures": [f.to_dict() for f in incident.failures],
            "lost_nodes": list(incident.lost_nodes),
            "roll_call": suspected.roll_call if suspected else None,
            "provable": suspected.provable if suspected else None,
            "confidence": (suspected.confidence or None) if suspected else None,
            "kind": suspected.kind if suspected else _kind(failure),
        }
    )
    return {**incident_summary(incident, wall_of), **more}


def _nodes_of(incident: Incident) -> list[str]:
    """Where the ranks were that ended like the first cause."""
    verdict = incident.verdict
    alike = verdict.alike if verdict is not None else ()
    found = {f.node for f in incident.failures if f.rank in alike}
    return sorted(found) or ([verdict.node] if verdict is not None and verdict.node else [])


def _kind(failure: Failure | None) -> str | None:
    return failure.kind.value if failure is not None else None


def _first(one: _T | None, other: _T | None) -> _T | None:
    return one if one is not None else other


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
