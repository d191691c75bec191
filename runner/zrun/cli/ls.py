"""`zrun ls`: all jobs of the registry, or of a coordinator elsewhere."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from zrun.cli import registry, screen
from zrun.cli.lookup import Target, outside_token, read_json
from zrun.cli.options import coordinator_option, json_option, seconds
from zrun.core import env
from zrun.core.errors import UsageError, ZrunError
from zrun.core.runfolder import RunFolder


@click.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="More than the newest 30.")
@click.option("-s", "--state", metavar="STATE,…", help="Only these states.")
@click.option("--since", metavar="T", help="Started within this duration, such as 7d.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only jobs with this label; given twice, both.")
@coordinator_option
@json_option
def ls(everything: bool, state: str | None, since: str | None, labels: tuple[str, ...], coordinator: str | None,
       as_json: bool) -> int:  # fmt: skip
    """All jobs, newest first."""
    address = coordinator or env.get(env.COORDINATOR)
    asked = dict(_label(text) for text in labels)
    rows = _there(address) if address else _here(time.time() - seconds(since) if since else 0.0)
    if state:
        wanted = {word.strip().upper() for word in state.split(",")}
        rows = [row for row in rows if row["state"] in wanted]
    rows = [row for row in rows if asked.items() <= row["labels"].items()]
    rows = rows if everything else rows[:30]
    if as_json:
        screen.put_json(rows)
    elif not rows:
        screen.say("zrun: no jobs")
    else:
        head = ["job", "name", "state", "step", "attempt", "started", "reason"]
        lines = screen.table(head, [_cells(row) for row in rows]).splitlines()
        screen.put(screen.paint(lines[0], "bold", sys.stdout))
        for row, text in zip(rows, lines[1:], strict=True):
            style = screen.STATE_STYLE.get(row["state"])
            screen.put(screen.paint(text, style, sys.stdout) if style and screen.coloured(sys.stdout) else text)
    return 0


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--label {text!r} is no label with its value", "for example --label team=vision")
    return key, value


def _here(oldest: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for entry in registry.known():
        if entry.started >= oldest:
            folder = RunFolder(entry.folder) if entry.folder.is_dir() else None
            target = Target(entry.job, entry.name, folder, entry.coordinator)
            try:
                found = target.status()
            except ZrunError as error:
                found = {"state": "UNKNOWN", "reason": str(error)}
            rows.append(_row(entry.job, entry.name, found, str(entry.dir), entry.started))
    return rows


def _there(address: str) -> list[dict[str, Any]]:
    from zrun.cli.client import Client

    with Client(address, outside_token()) as client:
        return [_row(str(j["job"]), str(j["name"]), j, str(j.get("run_dir") or ""), None) for j in client.jobs()]


def _row(job: str, name: str, found: dict[str, Any], folder: str, started: float | None) -> dict[str, Any]:
    stamp = None if started is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))
    attempts = found.get("attempts") or []
    last = attempts[-1] if attempts else {}
    return {
        "job": job, "name": name, "state": str(found.get("state")), "reason": found.get("reason") or "",
        "step": found.get("step") or last.get("last_step"), "attempt": found.get("attempt") or last.get("attempt"),
        "live": bool(found.get("live")), "started": stamp, "dir": folder, "labels": _labels(found, folder),
    }  # fmt: skip


def _labels(found: dict[str, Any], folder: str) -> dict[str, str]:
    """As the coordinator says, else as they stand in the run's folder if that is on this machine."""
    said = found.get("labels")
    if not isinstance(said, dict):
        said = read_json(RunFolder(Path(folder)).spec_json).get("labels") if folder else None
    return {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}


def _cells(row: dict[str, Any]) -> list[str]:
    reason = str(row["reason"])
    return [row["job"], row["name"], row["state"], str(row["step"] or "-"), str(row["attempt"] or "-"),
            str(row["started"] or "-"), reason if len(reason) <= 80 else reason[:79] + "…"]  # fmt: skip
