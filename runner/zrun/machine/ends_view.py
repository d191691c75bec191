"""How each rank of an attempt ended, for programs that decide what to do next: code, signal, exception, reason. Pure.

What a rank did itself stands apart from what was done to it: code and signal of an end that zrun brought about are not
the rank's, and are not told as such.
"""

from typing import Any

from zrun.core.failure import Failure, FailureKind
from zrun.machine.state import AttemptRecord, Incident
from zrun.machine.wording import in_short, what_it_did

_NODES_OWN = {FailureKind.SETUP, FailureKind.LAUNCH, FailureKind.NODE}


def ends_view(attempt: AttemptRecord, incident: Incident | None) -> list[dict[str, Any]]:
    """By rank; empty while the attempt goes on and nothing has ended. `incident`: the one that ended it."""
    told = {f.rank: f for node in attempt.nodes for f in attempt.ends.get(node, ()) if f.kind not in _NODES_OWN}
    shown = {rank: _told(failure, incident) for rank, failure in told.items() if rank >= 0}
    if attempt.down:
        for rank, node in _seated(attempt).items():
            shown.setdefault(rank, _untold(rank, node, attempt, incident))
    return [shown[rank] for rank in sorted(shown)]


def _told(failure: Failure, incident: Incident | None) -> dict[str, Any]:
    verdict = incident.verdict if incident is not None else None
    by_us = failure.kind is FailureKind.ENDED_BY_US
    return {
        "rank": failure.rank,
        "node": failure.node,
        "exit_code": None if by_us else failure.exit_code,
        "signal": None if by_us else failure.signal,
        "exception": failure.exception,
        "reason": _reason(failure),
        "kind": failure.kind.value,
        "cause": verdict is not None and (failure.rank in verdict.alike or failure.rank == verdict.rank),
        "peak_rss_bytes": failure.peak_rss_bytes,
    }


def _untold(rank: int, node: str, attempt: AttemptRecord, incident: Incident | None) -> dict[str, Any]:
    """Nothing bad was told of it: it ended with code 0, or went with its node."""
    lost = incident is not None and (node in incident.lost_nodes or _failed_as_a_whole(attempt, node))
    return {
        "rank": rank, "node": node, "exit_code": None if lost else 0, "signal": None, "exception": None,
        "reason": "its node was lost" if lost else "ended with code 0", "kind": "lost" if lost else "finished",
        "cause": False, "peak_rss_bytes": None,
    }  # fmt: skip


def _failed_as_a_whole(attempt: AttemptRecord, node: str) -> bool:
    return any(f.kind in _NODES_OWN for f in attempt.ends.get(node, ()))


def _reason(failure: Failure) -> str:
    if failure.kind is FailureKind.RAISED or failure.exception:
        return in_short(": ".join(part for part in (failure.exception, failure.message) if part))[:300]
    return in_short(failure.message or what_it_did(failure))[:300]


def _seated(attempt: AttemptRecord) -> dict[int, str]:
    """rank -> node, once every node has told of its own."""
    if attempt.world is None:
        return {}
    seats = sorted(attempt.seats, key=lambda seat: seat.node_rank)
    nodes = [seat.node for seat in seats for _ in range(attempt.ranks.get(seat.node, 0))]
    return dict(enumerate(nodes))
