"""`zrun events`: decisions and events of a job in order, each with the number of the event that caused it."""

import time
from typing import Any

import click

from zrun.cli import screen
from zrun.cli.logs import MOST_THERE, is_over
from zrun.cli.lookup import find
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.core.log_follow import Growing

_SHOWN_APART = frozenset({"n", "ts", "at", "because", "event", "decision", "remark", "job"})

_EMPTY: tuple[Any, ...] = (None, "", [], {}, False)
"""What says nothing is left out for people."""


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until the job is over.")
@click.option("--tail", type=click.IntRange(min=0), default=0, help="Last N events; 0 = all.")
@coordinator_option
@json_option
def events(job: str | None, follow: bool, tail: int, coordinator: str | None, as_json: bool) -> int:
    """What happened to JOB and what was decided."""
    target = find(job, coordinator)
    show = screen.put_json_line if as_json else _show
    if target.folder is None:
        with target.client() as client:
            answer = client.read(target.job, "events", tail=min(tail or MOST_THERE, MOST_THERE))
        for event in answer["events"]:
            show(event)
        return 0
    growing = Growing(target.folder.events)
    came = growing.read(1 << 30)
    for event in came[-tail:] if tail else came:
        show(event)
    while follow:
        over = is_over(target)
        came = growing.read()
        for event in came:
            show(event)
        if over and not came:
            break
        time.sleep(0.2)
    return 0


def _show(event: dict[str, Any]) -> None:
    """`12:00:01.123  #41 because 40  RankEnded  node=a attempt=1`."""
    at = str(event.get("ts") or event.get("at") or "")
    number, because = event.get("n"), event.get("because")
    which = f"#{number}" if number is not None else ""
    cause = f"because #{because}" if because else ""
    words = (event.get(key) for key in ("event", "decision", "remark"))
    what = str(next((word for word in words if word), ""))
    rest = " ".join(f"{k}={_short(v)}" for k, v in event.items() if k not in _SHOWN_APART and v not in _EMPTY)
    screen.put_line("  ".join(part for part in (at, f"{which} {cause}".strip(), what, screen.clean(rest)) if part))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:199] + "…"
