"""How a job ended, in at most 30 lines: what happened first and why, what followed, where to look. Pure text."""

from typing import Any, Final

from zrun.cli.screen import one_line, span
from zrun.machine.wording import span as ranks_text

LONGEST: Final = 30
_WIDTH: Final = 10
_FRAMES: Final = 4
_REASONS: Final = 6
_LAST_LINES: Final = 5
_LONGEST: Final = 280
"""Characters of a line."""


def block(status: dict[str, Any], run_dir: str) -> list[str]:
    """The lines of the verdict; `status` is verdict.json or a status object of a job that is over."""
    attempts, incidents = status.get("attempts") or [], status.get("incidents") or []
    reason = status.get("reason") or "no reason was given"
    lines = [one_line(f"{status.get('job')}  {status.get('state')}: {reason}")]
    failed = status.get("state") == "FAILED"
    if incidents and failed:
        lines += cause(_deciding(status, incidents))
    lines.append(_row("attempts", f"{len(attempts)}, incidents {len(incidents)}"))
    lines += [_row("", _attempt(a)) for a in attempts[-3:]]
    if incidents and not failed:
        lines.append(_row("survived", "; ".join(headline(i) for i in incidents[-3:])))
    lines.append(f"  {'logs':<{_WIDTH}}{_log(run_dir, incidents, attempts, status)}")  # a path is not cut
    if incidents and failed and run_dir.startswith("/"):
        folder = f"{run_dir}/incidents/{int(_deciding(status, incidents).get('id') or 1):04d}"
        lines.append(f"  {'evidence':<{_WIDTH}}{folder}")
    if status.get("state") in {"FAILED", "STOPPED", "PREEMPTED"}:
        lines.append(_row("go on", f"zrun resume {status.get('job')}"))
    return lines[:LONGEST]


def cause(incident: dict[str, Any]) -> list[str]:
    """What one incident says of the first cause."""
    lines = [_row("because", headline(incident))]
    if incident.get("where"):
        lines.append(_row("where", str(incident["where"])))
    at = [f"{key} {incident[key]}" for key in ("step", "batch", "collective") if incident.get(key) is not None]
    if at:
        lines.append(_row("at", ", ".join(at)))
    frames = [str(frame) for frame in incident.get("frames") or []]
    lines += _rows("stack", frames[-_FRAMES:])
    lines += _rows("why", [str(reason) for reason in (incident.get("because") or [])[:_REASONS]])
    if incident.get("followed"):
        lines.append(_row("followed", ranks_text(incident["followed"])))
    if not (incident.get("exception") and frames):  # else they would say the traceback again
        lines += _rows("last line", [str(text) for text in (incident.get("last_lines") or [])[-_LAST_LINES:]])
    return lines


def headline(incident: dict[str, Any]) -> str:
    """`crash of rank 1 on node a: ValueError: bad sample`."""
    rank, fault = incident.get("rank"), str(incident.get("class") or "incident")
    ranks, nodes = incident.get("ranks") or [], incident.get("nodes") or []
    who = "" if rank is None else f" of {ranks_text(ranks)}" if len(ranks) > 1 else f" of rank {rank}"
    where = f" on node {incident['node']}" if incident.get("node") else ""
    if len(nodes) > 1:
        where = f" on nodes {', '.join(nodes[:4])}" + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    if who == "" and fault == "node" and where:
        who, where = f" {incident['node']}", ""
    said = str(incident.get("headline") or "")
    named = ranks_text(ranks) if len(ranks) > 1 else f"rank {rank}"
    if said and _told_by_others(incident, fault):
        what = said.removeprefix(f"{named}: ")
    elif incident.get("exception"):
        message = incident.get("message")
        what = f"{incident['exception']}: {message}" if message else str(incident["exception"])
    elif incident.get("signal"):
        what = f"killed by {incident['signal']}"
    elif incident.get("exit_code") is not None:
        what = f"exit code {incident['exit_code']}"
    else:
        what = said.removeprefix(f"{named}: ") or str(incident.get("message") or "")
    flat = " ".join(what.split())
    return one_line(f"{fault}{who}{where}" + (f": {flat}" if flat else ""))


def _told_by_others(incident: dict[str, Any], fault: str) -> bool:
    """How the process ended does not say what was wrong: it hung, vanished with its node, left too early, or the kernel
    wanted its memory.
    """
    if fault in {"hang", "node", "preemption"}:
        return True
    return not incident.get("exception") and (incident.get("exit_code") == 0 or fault in {"oom", "disk"})


def _deciding(status: dict[str, Any], incidents: list[dict[str, Any]]) -> dict[str, Any]:
    """The incident that ended the job: the one named, else the last."""
    named = [i for i in incidents if i.get("id") is not None and i.get("id") == status.get("incident")]
    return named[0] if named else incidents[-1]


def _attempt(attempt: dict[str, Any]) -> str:
    first, last = attempt.get("first_step"), attempt.get("last_step")
    steps = f"steps {first}-{last}" if first is not None and last is not None else "no step"
    resumed = attempt.get("resumed_from")
    begun = f", from step {resumed['step']} ({resumed.get('tier')})" if isinstance(resumed, dict) else ""
    how = attempt.get("outcome") or "open"
    caused = f", {attempt['cause']}" if attempt.get("cause") else ""
    lasted = f", {span(attempt['duration_s'])}" if attempt.get("duration_s") is not None else ""
    return f"attempt {attempt.get('attempt')}: {how}, {steps}{begun}{caused}{lasted}"


def _log(run_dir: str, incidents: list[Any], attempts: list[Any], status: dict[str, Any]) -> str:
    last = attempts[-1].get("attempt", len(attempts)) if attempts else 0
    if incidents and status.get("state") == "FAILED":
        incident = _deciding(status, incidents)
        if incident.get("rank") is not None:
            return f"{run_dir}/logs/attempt-{incident.get('attempt') or last}/rank-{incident['rank']}.jsonl"
    return f"{run_dir}/logs/attempt-{last}/" if last else run_dir


def _rows(label: str, texts: list[str]) -> list[str]:
    """The label stands before the first."""
    return [_row("" if n else label, text) for n, text in enumerate(texts)]


def _row(label: str, text: str) -> str:
    return f"  {label:<{_WIDTH}}{one_line(text, _LONGEST - _WIDTH - 2)}"
