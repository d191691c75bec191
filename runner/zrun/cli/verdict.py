"""How a job ended, in at most 30 lines: what happened first and why, what followed, where to look. Pure text."""

from typing import Any, Final

from zrun.cli.screen import one_line, span

LONGEST: Final = 30
_WIDTH: Final = 10
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
    lines += [_row("", str(reason)) for reason in (incident.get("because") or [])[:6]]
    if incident.get("followed"):
        lines.append(_row("followed", "rank " + ", ".join(str(rank) for rank in incident["followed"][:16])))
    lines += [
        _row("" if n else "last line", str(text)) for n, text in enumerate((incident.get("last_lines") or [])[-3:])
    ]
    return lines


def headline(incident: dict[str, Any]) -> str:
    """`crash of rank 1 on node a: ValueError: bad sample`."""
    rank, fault = incident.get("rank"), str(incident.get("class") or "incident")
    who = f" of rank {rank}" if rank is not None else ""
    where = f" on node {incident['node']}" if incident.get("node") else ""
    if who == "" and fault == "node" and where:
        who, where = f" {incident['node']}", ""
    said = str(incident.get("headline") or "")
    if said and _told_by_others(incident, fault):
        what = said.removeprefix(f"rank {rank}: ")
    elif incident.get("exception"):
        message = incident.get("message")
        what = f"{incident['exception']}: {message}" if message else str(incident["exception"])
    elif incident.get("signal"):
        what = f"killed by {incident['signal']}"
    elif incident.get("exit_code") is not None:
        what = f"exit code {incident['exit_code']}"
    else:
        what = said.removeprefix(f"rank {rank}: ") or str(incident.get("message") or "")
    flat = " ".join(what.split())
    return one_line(f"{fault}{who}{where}" + (f": {flat}" if flat else ""))


def _told_by_others(incident: dict[str, Any], fault: str) -> bool:
    """How the process ended does not say what was wrong: it hung, vanished with its node, or left too early."""
    return fault in {"hang", "node"} or (incident.get("exit_code") == 0 and not incident.get("exception"))


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


def _row(label: str, text: str) -> str:
    return f"  {label:<{_WIDTH}}{one_line(text, _LONGEST - _WIDTH - 2)}"
