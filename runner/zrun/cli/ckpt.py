"""`zrun ckpt`: list and verify checkpoints where they lie; needs no coordinator, no torch, and unpickles nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from zrun.cli import screen
from zrun.cli.later import not_yet
from zrun.cli.lookup import find, read_json
from zrun.cli.options import complete_job, json_option
from zrun.core import manifest
from zrun.core.errors import Exit, NotFoundError, UsageError
from zrun.core.manifest import Found


@click.group()
def ckpt() -> None:
    """List and verify checkpoints of a JOB or in a DIR."""


where_argument = click.argument("where", metavar="[JOB|DIR]", required=False, shell_complete=complete_job)


@ckpt.command("ls")
@where_argument
@json_option
def ls(where: str | None, as_json: bool) -> int:
    """Checkpoints, newest first, with what makes one unusable."""
    directory = directory_of(where)
    rows = [_row(found) for found in manifest.scan(directory)]
    if as_json:
        screen.put_json(rows)
    elif not rows:
        screen.say(f"zrun: no checkpoint in {directory}")
    else:
        head = ["step", "state", "size", "ranks", "strategy", "attempt", "saved", "reason"]
        cells = [
            [str(r["step"]), r["state"], screen.size(r["bytes"]), str(r["world_size"] or "-"), r["strategy"] or "-",
             str(r["attempt"] or "-"), r["saved_at"] or "-", r["reason"]]
            for r in rows
        ]  # fmt: skip
        screen.put(screen.table(head, cells))
    return 0


@ckpt.command("verify", short_help="Compare every byte with the digests; exit 1 if one is damaged.")
@where_argument
@click.option("--step", type=int, help="Only the checkpoint of this step.")
@json_option
def verify(where: str | None, step: int | None, as_json: bool) -> int:
    """Read every byte and compare it with the digests in the manifest; exit 1 if a checkpoint is damaged."""
    from zrun.core import verify as checking

    directory = directory_of(where)
    chosen = [f for f in manifest.scan(directory) if step is None or f.step == step]
    if not chosen:
        raise NotFoundError(f"no checkpoint{'' if step is None else f' of step {step}'} in {directory}")
    results: list[dict[str, Any]] = []
    with _bar(sum(f.manifest.bytes for f in chosen if f.manifest)) as advance:
        for found in chosen:
            problems = checking.verify(found.path, advance).problems
            results.append({**_row(found), "ok": not problems, "problems": problems})
    if as_json:
        screen.put_json(results)
    for row in results if not as_json else ():
        screen.put(f"{row['path']}: " + ("whole" if row["ok"] else "; ".join(row["problems"])))
    return Exit.DONE if all(row["ok"] for row in results) else Exit.OWN_FAILURE


for _name in ("pin", "prune", "export"):
    _command = not_yet(f"ckpt {_name}")
    _command.name = _name
    ckpt.add_command(_command)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=total)
        yield lambda count: progress.advance(task, count)


def directory_of(where: str | None) -> Path:
    """A folder as it is given, else the checkpoint folder of a job. Raises NotFoundError, UsageError."""
    if where is not None and (Path(where).is_dir() or "/" in where):
        path = Path(where)
        if not path.is_dir():
            raise NotFoundError(f"no folder {where}")
        inside = path / "checkpoints"
        path = inside if (path / "spec.json").is_file() and inside.is_dir() else path  # a run's folder
        # One checkpoint itself: look at the folder it lies in.
        return path.parent if (path / manifest.MANIFEST).is_file() else path
    target = find(where)
    if target.folder is None:
        raise UsageError(f"the folder of {target.job} is not on this machine", "name the checkpoint folder itself")
    spec = read_json(target.folder.spec_json)
    named = str((spec.get("checkpoint") or {}).get("dir") or "checkpoints")
    return target.folder.root / named


def _row(found: Found) -> dict[str, Any]:
    made = found.manifest
    return {
        "step": found.step, "state": found.state, "reason": found.reason, "path": str(found.path), "tier": "disk",
        "bytes": made.bytes if made else None, "world_size": made.world_size if made else None,
        "strategy": made.strategy if made else None, "attempt": made.attempt if made else None,
        "batch": made.batch if made else None, "job": made.job if made else None,
        "saved_at": made.saved_at if made else None,
    }  # fmt: skip
