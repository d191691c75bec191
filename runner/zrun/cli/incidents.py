"""`zrun incidents`: what broke, because of what, and what it cost."""

from typing import Any

import click

from zrun.cli import screen
from zrun.cli.lookup import find, read_json
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.cli.screen import span
from zrun.cli.verdict import cause, headline
from zrun.core.errors import NotFoundError


@click.command()
@job_argument
@click.argument("number", required=False, type=int)
@coordinator_option
@json_option
def incidents(job: str | None, number: int | None, coordinator: str | None, as_json: bool) -> int:
    """All incidents of JOB, or one with its evidence."""
    if job is not None and number is None and job.isdecimal():
        number, job = int(job), None  # `zrun incidents 2`: of the newest job
    target = find(job, coordinator)
    found: list[dict[str, Any]] = target.status().get("incidents") or []
    if number is None:
        if as_json:
            screen.put_json(found)
        elif not found:
            screen.say(f"zrun: {target.job} has had no incident")
        else:
            screen.put("\n".join(summary(one) for one in found))
        return 0
    one = next((i for i in found if i.get("id") == number), None)
    if one is None:
        raise NotFoundError(f"{target.job} has no incident {number}", f"it has {len(found)}")
    folder = target.folder.incident(number) if target.folder else None
    detail = {**one, **(read_json(folder / "incident.json") if folder else {})}
    if as_json:
        screen.put_json(detail)
        return 0
    screen.put(f"incident {number} in attempt {detail.get('attempt', '?')}: {_cost(detail)}")
    for text in cause(detail):
        screen.put(screen.clean(text))
    for key in ("decision", "resolution"):
        if detail.get(key):
            screen.put(f"  {key:<10}{detail[key]}")
    if folder is not None and folder.is_dir():
        _evidence(folder)
    return 0


def _evidence(folder: Any) -> None:
    roll_call = folder / "roll-call.txt"
    if roll_call.is_file():
        screen.put("\n" + screen.clean(roll_call.read_text(errors="replace")).rstrip())
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    screen.put(f"\nevidence in {folder}: {', '.join(names) or 'none'}")


def summary(one: dict[str, Any]) -> str:
    return f"{one.get('id')}  {headline(one)}  ({_cost(one)})"


def _cost(one: dict[str, Any]) -> str:
    """`seen after 0.0s, back after 0.4s, 3 steps lost`."""
    parts = [f"seen after {span(one['detected_s'])}"] if one.get("detected_s") is not None else []
    if one.get("recovered_s") is not None:
        parts.append(f"back after {span(one['recovered_s'])}")
    if one.get("steps_lost") is not None:
        parts.append(f"{one['steps_lost']} steps lost")
    return ", ".join(parts) or str(one.get("resolution") or "open")
