"""What people and programs are shown of a job: the machine's knowledge joined with the newest rows of its ranks.

Pure: it reads, decides nothing, and is the same for page, command line and verdict.json.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from zrun.core.rows import RankRow, RowFlag
from zrun.core.states import JobState, exit_code_of
from zrun.machine.budget import left
from zrun.machine.ends_view import ends_view
from zrun.machine.faults import patience_s
from zrun.machine.goodput import goodput
from zrun.machine.incident_view import WallOf, cut, incident_detail, incident_summary, no_wall
from zrun.machine.limits import Limit, in_words
from zrun.machine.state import AttemptRecord, CheckpointRecord, Incident, Job, Member
from zrun.spec.job import spec_to_dict

_CHECKPOINTS: Final = 20
_SAVE_FAILURES: Final = 5


@dataclass(frozen=True, slots=True)
class NodeNow:
    """What one node said last about the job's newest attempt."""

    heard_s: float = 0.0
    """Since its newest report came."""
    connected: bool = True
    rows: Sequence[RankRow] = ()
    """Of the newest attempt only."""
    total_steps: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What its rank reported; only the node of rank 0 has some."""
    phase_names: Mapping[int, str] = field(default_factory=dict)
    """Rank -> name of the script's own phase it is in."""
    warnings: Sequence[str] = ()
    left_behind: Sequence[str] = ()
    host: str = ""
    standbys: Sequence[int] = ()
    """Memory of each process that waits to become a rank."""


Nodes = Mapping[str, NodeNow]


def job_view(
    job: Job, now: float, nodes: Nodes, *, limits: Sequence[Limit] = (), submitted_unix: float | None = None
) -> dict[str, Any]:
    """The status object. `now` is machine time, `submitted_unix` when it was handed in, for people."""
    wall_of = _wall(job, submitted_unix)
    rows = _rows(nodes)
    return {
        "job": job.job,
        "name": job.spec.name if job.spec is not None else "",
        "state": job.state.value,
        "reason": cut(job.reason),
        "exit_code": int(exit_code_of(job.state, timed_out=job.timed_out)),
        "attempt": job.attempt,
        "step": _step(job, rows),
        "total_steps": max((n.total_steps for n in nodes.values()), default=0) or None,
        "step_s": _step_s(rows),
        "goodput": goodput(job, now, _completed(rows)),
        "restarts": {"used": job.restarts, "left": left(job)},
        "nodes": _nodes(job, nodes),
        "attempts": _attempts(job, rows, now, wall_of),
        "incidents": [incident_summary(i, wall_of) for i in job.incidents],
        "checkpoints": [_checkpoint(c) for c in job.checkpoints[-_CHECKPOINTS:]],
        "save_failures": cut(job.save_failures[-_SAVE_FAILURES:]),
        "metrics": next((dict(n.metrics) for n in nodes.values() if n.metrics), {}),
        "warnings": [w for n in nodes.values() for w in n.warnings],
        "left_behind": [w for n in nodes.values() for w in n.left_behind],
        "stragglers": [],
        "quarantined": list(job.quarantined),
        "limits": {limit.name: f"{in_words(limit.seconds)} ({limit.source})" for limit in limits},
        "patience_s": patience_s(job),
        "submitted": wall_of(job.submitted_at),
        "submitted_at_s": round(job.submitted_at, 3),
        "ended_at_s": None if job.ended_at is None else round(job.ended_at, 3),
        "now_s": round(now, 3),
        "run_dir": job.run_dir,
    }


def job_summary(job: Job, nodes: Nodes, *, submitted_unix: float | None = None) -> dict[str, Any]:
    """One line of the list of jobs."""
    return {
        "job": job.job,
        "name": job.spec.name if job.spec is not None else "",
        "state": job.state.value,
        "reason": cut(job.reason),
        "attempt": job.attempt,
        "step": _step(job, _rows(nodes)),
        "total_steps": max((n.total_steps for n in nodes.values()), default=0) or None,
        "incidents": len(job.incidents),
        "submitted": _wall(job, submitted_unix)(job.submitted_at),
        "run_dir": job.run_dir,
    }


def verdict_view(job: Job, nodes: Nodes | None = None, *, submitted_unix: float | None = None) -> dict[str, Any]:
    """verdict.json: how the job ended, or how it stands. It changes only when the machine's knowledge does.

    `nodes`: the last known rows of a job that is over; before that its ranks are not told, they change all the time.
    """
    wall_of = _wall(job, submitted_unix)
    told = {name: replace(node, heard_s=0.0) for name, node in (nodes or {}).items()}
    decisive = job.incidents[-1].number if job.incidents and job.state is JobState.FAILED else None
    return {
        "job": job.job,
        "name": job.spec.name if job.spec is not None else "",
        "state": job.state.value,
        "reason": cut(job.reason),
        "exit_code": int(exit_code_of(job.state, timed_out=job.timed_out)),
        "attempt": job.attempt,
        "step": _step(job, []),
        "total_steps": max((n.total_steps for n in told.values()), default=0) or None,
        "step_s": _step_s(_rows(told)),
        "goodput": goodput(job, job.ended_at, 0) if job.ended_at is not None else None,
        "nodes": [{**node, "heard_s": None} for node in _nodes(job, told)],
        "incident": decisive,
        "attempts": _attempts(job, _rows(told), None, wall_of),
        "incidents": [incident_summary(i, wall_of) for i in job.incidents],
        "checkpoints": [_checkpoint(c) for c in job.checkpoints[-_CHECKPOINTS:]],
        "restarts": {"used": job.restarts, "left": left(job)},
        "quarantined": list(job.quarantined),
    }


def incident_view(job: Job, number: int, *, submitted_unix: float | None = None) -> dict[str, Any]:
    """incident.json. Raises IndexError for a number that the job does not have."""
    return {"job": job.job, **incident_detail(job.incidents[number - 1], _wall(job, submitted_unix))}


def describe_view(
    job: Job, now: float, nodes: Nodes, *, limits: Sequence[Limit], not_in_force: Sequence[str],
    submitted_unix: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Everything: the status object, the job as it was understood, and what of it is not served yet."""
    return {
        **job_view(job, now, nodes, limits=limits, submitted_unix=submitted_unix),
        "spec": spec_to_dict(job.spec) if job.spec is not None else {},
        "effective_limits": [{"name": x.name, "seconds": x.seconds, "source": x.source} for x in limits],
        "not_in_force": list(not_in_force),
    }


def _wall(job: Job, submitted_unix: float | None) -> WallOf:
    """Behind by what the coordinator was away; steady, so that a file made from it changes only with its content."""
    if submitted_unix is None:
        return no_wall
    zero = submitted_unix - job.submitted_at

    def of(at: float) -> str | None:
        moment = datetime.fromtimestamp(zero + at, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return of


def _rows(nodes: Nodes) -> list[RankRow]:
    return [row for node in nodes.values() for row in node.rows]


def _names(job: Job, nodes: Nodes) -> list[str]:
    """Nodes of the newest attempt in the order of their ranks, then those that only wait."""
    seated = list(job.current.nodes) if job.current is not None else []
    return seated + sorted(n for n in {*job.nodes, *nodes} if n not in seated)


def _step(job: Job, rows: Sequence[RankRow]) -> int:
    """The step that every rank has reached; without rows what the machine knows."""
    if rows and any(row.step for row in rows):
        return min(row.step for row in rows)
    current = job.current
    if current is None:
        return 0
    return max(current.completed, current.resumed_step or 0) or job.best_step


def _completed(rows: Sequence[RankRow]) -> int:
    if not rows or any(RowFlag.STEPPING not in row.flags for row in rows):
        return 0
    return min(row.step if RowFlag.FINISHED in row.flags else row.step - 1 for row in rows)


def _step_s(rows: Sequence[RankRow]) -> float | None:
    """Of the slowest rank, the last completed step."""
    return _seconds(max((row.step_s for row in rows), default=0.0), 6) or None


def _nodes(job: Job, nodes: Nodes) -> list[dict[str, Any]]:
    return [_node(name, job.nodes.get(name), nodes.get(name), over=job.over) for name in _names(job, nodes)]


def _node(name: str, member: Member | None, now: NodeNow | None, *, over: bool) -> dict[str, Any]:
    heard_s = now.heard_s if now is not None else None
    return {
        "node": name,
        "state": _node_state(member, now),
        "heard_s": None if heard_s is None else round(heard_s, 3),
        "host": now.host if now is not None else "",
        "ranks": [_rank(row, heard_s or 0.0, now.phase_names.get(row.rank, ""), over=over) for row in now.rows]
        if now is not None
        else [],
        "standbys": list(now.standbys) if now is not None and not over else [],
    }


def _node_state(member: Member | None, now: NodeNow | None) -> str:
    if member is not None and member.silent:
        return "silent"
    if (member is not None and member.gone) or (now is not None and not now.connected):
        return "gone"
    if member is not None and member.leaving_in_s is not None:
        return "leaving"
    return "ok"


def _rank(row: RankRow, heard_s: float, own_phase: str, *, over: bool) -> dict[str, Any]:
    """`over`: nobody is alive any more, whatever the last row said."""
    ended = over or not row.flags & RowFlag.ALIVE
    inside = RowFlag.IN_COLLECTIVE in row.flags
    return {
        "rank": row.rank,
        "pid": row.pid or None,
        "phase": own_phase or row.phase.label,
        "step": row.step,
        "batch": str(row.batch) if row.batch is not None else None,
        "age_s": _seconds(row.age_s + (0.0 if ended else heard_s)),
        "state": "failed" if RowFlag.FAILED in row.flags else "finished" if RowFlag.FINISHED in row.flags
        else "absent" if ended else "stopped" if row.state == "T" else "alive",
        "collective": f"{row.coll_op} #{row.coll_seq}" if inside else None,
        "in_loader": RowFlag.IN_LOADER in row.flags,
        "cpu": _seconds(row.cpu, 2),
        "step_s": _seconds(row.step_s, 6),
    }  # fmt: skip


def _attempts(job: Job, rows: Sequence[RankRow], now: float | None, wall_of: WallOf) -> list[dict[str, Any]]:
    """Of the newest one its ranks' rows know more than the machine was told."""
    shown = [{**_attempt(a, now, wall_of), "ends": ends_view(a, _incident_of(job, a))} for a in job.attempts]
    begun = min((row.step for row in rows), default=0)
    if shown and begun:
        shown[-1]["last_step"] = max(shown[-1]["last_step"] or 0, begun)
    return shown


def _incident_of(job: Job, attempt: AttemptRecord) -> Incident | None:
    return next((i for i in reversed(job.incidents) if i.attempt == attempt.number and not i.suspicion), None)


def _attempt(attempt: AttemptRecord, now: float | None, wall_of: WallOf) -> dict[str, Any]:
    end = attempt.ended_at if attempt.ended_at is not None else now
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "first_step": attempt.first_step,
        "last_step": max(attempt.last_step or 0, attempt.completed) or None,
        "resumed_from": _resumed(attempt),
        "cause": f"incident {attempt.incident}" if attempt.incident is not None else None,
        "began_because": attempt.cause or None,
        "skipped": list(attempt.skipped),
        "nodes": list(attempt.nodes),
        "ordered_at_s": round(attempt.ordered_at, 3),
        "started_at_s": None if attempt.started_at is None else round(attempt.started_at, 3),
        "ended_at_s": None if attempt.ended_at is None else round(attempt.ended_at, 3),
        "duration_s": None if end is None else round(end - attempt.ordered_at, 3),
        "at": wall_of(attempt.ordered_at),
        "quarantined": list(attempt.quarantined),
    }


def _resumed(attempt: AttemptRecord) -> dict[str, Any] | None:
    if attempt.resumed_step is None or (attempt.resumed_from is None and attempt.resumed_tier is None):
        return None
    return {"tier": attempt.resumed_tier or "disk", "step": attempt.resumed_step}


def _checkpoint(one: CheckpointRecord) -> dict[str, Any]:
    return {
        "step": one.step, "tier": one.tier, "state": "complete", "bytes": one.bytes, "batch": one.batch,
        "attempt": one.attempt, "seconds": round(one.seconds, 3), "name": one.path.rpartition("/")[2],
    }  # fmt: skip


def _seconds(value: float, digits: int = 3) -> float:
    """What an agent sent as a number may be none that JSON knows."""
    return round(value, digits) if math.isfinite(value) else 0.0
