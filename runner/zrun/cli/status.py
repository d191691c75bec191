"""`zrun status`: how one job stands, from its coordinator or its folder."""

import sys
import time
from typing import Any

import click

from zrun.cli import screen
from zrun.cli.lookup import find
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.cli.progress import line
from zrun.cli.screen import span, table
from zrun.cli.verdict import headline

_MOST_RANKS = 64
_LONGEST = 280
"""Characters of a line that holds a message."""


@click.command()
@job_argument
@click.option("-w", "--watch", is_flag=True, help="Again every 2 s until Ctrl-C.")
@coordinator_option
@json_option
def status(job: str | None, watch: bool, coordinator: str | None, as_json: bool) -> int:
    """How JOB stands: state and reason, ranks, attempts, incidents."""
    target = find(job, coordinator)
    while True:
        found = target.status()
        if as_json:
            screen.put_json_line(found) if watch else screen.put_json(found)
        else:
            (screen.put_line if watch else screen.put)("\n".join(describe_status(found)))
        if not watch:
            return 0
        time.sleep(2.0)


def describe_status(found: dict[str, Any]) -> list[str]:
    """The status in lines."""
    state = str(found.get("state"))
    shown = screen.paint(state, screen.STATE_STYLE.get(state, "bold"), sys.stdout)
    most = _LONGEST - len(f"{found.get('job')}  {state}  ")
    lines = [f"{found.get('job')}  {shown}  {screen.one_line(str(found.get('reason') or ''), most)}".rstrip()]
    if found.get("step"):
        lines.append(f"  {line(found, None)}")
    lines += _numbers(found)
    lines += _ranks(found)
    skipped = [f"batch {batch} is skipped from now on" for batch in found.get("quarantined") or []]
    lines += [f"  {text}" for text in skipped[-5:]]
    slow = [f"slow: {one.get('text')}" for one in found.get("stragglers") or []]
    lines += [f"  {screen.one_line(text, _LONGEST - 2)}" for text in slow]
    lines += [f"  {screen.one_line(text, _LONGEST - 2)}" for text in attempt_lines(found.get("attempts") or [])]
    incidents = [f"incident {i.get('id')}: {headline(i)}" for i in (found.get("incidents") or [])[-5:]]
    lines += [f"  {screen.one_line(text, _LONGEST - 2)}" for text in incidents]
    newest = max(found.get("checkpoints") or [], key=lambda c: int(c.get("step") or 0), default=None)
    if newest:
        lines.append(f"  newest checkpoint: step {newest.get('step')} ({newest.get('tier')}, {newest.get('state')})")
    return lines


def _numbers(found: dict[str, Any]) -> list[str]:
    parts = [f"attempt {found['attempt']}"] if found.get("attempt") else []
    if isinstance(found.get("goodput"), int | float):
        parts.append(f"goodput {found['goodput']:.0%}")
    restarts = found.get("restarts") or {}
    if restarts.get("used"):
        left = ", ".join(f"{key} {value}" for key, value in (restarts.get("left") or {}).items() if value is not None)
        parts.append(f"restarts {restarts['used']}" + (f" (left: {left})" if left else ""))
    waiting = [size for node in found.get("nodes") or [] for size in (node.get("standbys") or [])]
    if waiting:
        parts.append(f"{len(waiting)} standbys ready ({screen.size(sum(waiting))})")
    return ["  " + ", ".join(parts)] if parts else []


def _ranks(found: dict[str, Any]) -> list[str]:
    rows = [
        [str(rank.get("rank")), str(node.get("node")), str(node.get("state")), str(rank.get("pid") or "-"),
         str(rank.get("phase")), str(rank.get("step")), str(rank.get("batch") or "-"), span(rank.get("age_s"))]
        for node in found.get("nodes") or []
        for rank in node.get("ranks") or []
    ]  # fmt: skip
    if not rows:
        return []
    head = ["rank", "node", "state", "pid", "phase", "step", "batch", "age"]
    lines = [f"  {row}" for row in table(head, rows[:_MOST_RANKS]).splitlines()]
    return [*lines, f"  … and {len(rows) - _MOST_RANKS} more ranks"] if len(rows) > _MOST_RANKS else lines


def attempt_lines(attempts: list[dict[str, Any]]) -> list[str]:
    """One line each for the last attempts."""
    lines: list[str] = []
    for a in attempts[-5:]:
        resumed = a.get("resumed_from")
        begun = f", from step {resumed.get('step')} ({resumed.get('tier')})" if isinstance(resumed, dict) else ""
        steps = f"steps {a['first_step']}-{a['last_step']}" if a.get("last_step") else "no step yet"
        cause = f", because of {a['cause']}" if a.get("cause") else ""
        lines.append(f"attempt {a.get('attempt')}: {a.get('outcome') or 'running'}, {steps}{begun}{cause}")
    return lines
