"""`zrun ckpt`: checkpoints where they lie; needs no coordinator, no torch, and unpickles nothing."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from zrun.cli import ckpt_keep, screen
from zrun.cli.ckpt_where import bar, directory_of, of_step, the_one, where_argument
from zrun.cli.options import json_option
from zrun.core import manifest, pins, pruning, storage
from zrun.core.errors import Exit, NotFoundError
from zrun.core.manifest import Found
from zrun.core.place import Place


@click.group()
def ckpt() -> None:
    """Checkpoints of a JOB or in a DIR (s3://… too): list, verify, pin, prune, export."""


ckpt.add_command(ckpt_keep.pin)
ckpt.add_command(ckpt_keep.unpin)
ckpt.add_command(ckpt_keep.prune)


@ckpt.command("ls")
@where_argument
@json_option
def ls(where: str | None, as_json: bool) -> int:
    """Checkpoints, newest first: complete, partial, corrupt or overtaken, and why; pinned, being read.

    complete: all files are there in their length (`verify` reads them). partial: being written, or never finished.
    corrupt: files are missing, of another length, or were found damaged. overtaken: written by an attempt that was
    over. Only a complete one is ever resumed from.
    """
    directory = directory_of(where)
    rows = [*_unfinished(directory), *_rows(directory)]
    if as_json:
        screen.put_json(rows)
    elif not rows:
        screen.say(f"zrun: no checkpoint in {directory}")
    else:
        head = ["step", "state", "marks", "size", "ranks", "strategy", "attempt", "saved", "reason"]
        cells = [
            [str(r["step"]), r["state"], _marks(r), screen.size(r["bytes"]), str(r["world_size"] or "-"),
             r["strategy"] or "-", str(r["attempt"] or "-"), r["saved_at"] or "-", r["reason"]]
            for r in rows
        ]  # fmt: skip
        screen.put(screen.table(head, cells))
    return 0


@ckpt.command("verify", short_help="Compare every byte with the digests; exit 1 if one is damaged.")
@where_argument
@click.option("--step", type=int, help="Only the checkpoint of this step.")
@json_option
def verify(where: str | None, step: int | None, as_json: bool) -> int:
    """Read every byte, on all cores, and compare it with the digests in the manifest; exit 1 if one is damaged.

    A damaged one is marked, so that nothing resumes from it and `prune` does not take it for the last good one.
    """
    from zrun.core import verify as checking

    directory = directory_of(where)
    found = manifest.scan(directory)
    chosen = found if step is None else [of_step(directory, found, step)]
    if not chosen:
        raise NotFoundError(f"no checkpoint in {directory}")
    results: list[dict[str, Any]] = []
    with bar("verifying", sum(f.manifest.bytes for f in chosen if f.manifest)) as advance:
        for one in chosen:
            problems = checking.verify(one.path, advance).problems
            _remember(one, problems)
            results.append({**row_of(one), "ok": not problems, "problems": problems})
    if as_json:
        screen.put_json(results)
    for row in results if not as_json else ():
        screen.put(f"{row['path']}: " + ("whole" if row["ok"] else "; ".join(row["problems"])))
    return Exit.DONE if all(row["ok"] for row in results) else Exit.OWN_FAILURE


@ckpt.command("export", short_help="Whole tensors as safetensors files, for other programs.")
@where_argument
@click.option("--to", "to", metavar="FOLDER", type=click.Path(path_type=Path), help="Else ./NAME-step-N.")
@click.option("--step", type=int, help="Else the newest complete one.")
@click.option("--consolidate", is_flag=True, help="All in one file instead of one for each part.")
@click.option("--model", "only_model", is_flag=True, help="Only the model.")
@json_option
def export(
    where: str | None, to: Path | None, step: int | None, consolidate: bool, only_model: bool, as_json: bool
) -> int:
    """Write whole tensors as safetensors files, under the names of the manifest (model/layer.weight).

    One file for each part (model.safetensors, optimizer.safetensors, …) or all in checkpoint.safetensors, and what is
    no tensor in values.json. Digests are checked on the way; the folder appears whole or not at all.
    """
    from zrun.core import export as exporting

    directory = directory_of(where)
    one = the_one(directory, where, step)
    if one.manifest is None or one.state != "complete":
        raise NotFoundError(f"the checkpoint of step {one.step} is {one.state}: {one.reason}")
    target = to or Path(f"{one.manifest.name}-{one.path.name}")
    with bar("exporting", exporting.export_bytes(one.manifest, only_model=only_model)) as advance:
        done = exporting.export(
            one.path, target, consolidate=consolidate, only_model=only_model, on_bytes=advance
        )  # fmt: skip
    if as_json:
        screen.put_json({"step": done.step, "folder": str(done.folder.absolute()), "files": done.files,
                         "tensors": done.tensors, "left_out": done.left_out})  # fmt: skip
    for file, size in done.files.items() if not as_json else ():
        screen.put(f"{done.folder / file}  {screen.size(size)}")
    if done.left_out:
        screen.say(f"zrun: left out, for each is one rank's own part of a tensor: {', '.join(done.left_out)}")
    return Exit.DONE


def _remember(one: Found, problems: list[str]) -> None:
    if one.manifest is None:
        return
    try:
        if problems and one.state == "complete":
            manifest.mark_damaged(one.path, one.manifest, problems[0])
        elif not problems:
            manifest.unmark_damaged(one.path, one.step)
    except OSError as error:
        screen.say(f"zrun: {one.path.name} could not be marked: {error.strerror or error}")


def _rows(directory: Place) -> list[dict[str, Any]]:
    found = manifest.scan(directory)
    pinned, store = pins.pinned(directory, found), storage.of(directory)
    return [
        {**row_of(one), "pinned": one.step in pinned,
         "being_read": one.manifest is not None and store.being_read(one.path)}
        for one in found
    ]  # fmt: skip


def _unfinished(directory: Place) -> list[dict[str, Any]]:
    """Folders under a temporary name: nobody takes them for checkpoints, but they use room."""
    now = datetime.now(UTC).timestamp()
    young = {left.path: left for left in pruning.leftovers(directory, now)}
    rows = []
    for path, step, attempt in reversed(pruning.unfinished(directory)):
        left = young[path]
        reason = f"{left.what}; last written {screen.span(left.age_s)} ago"
        rows.append({**row_of(Found(path, step, "partial", reason)), "bytes": left.bytes, "attempt": attempt,
                     "pinned": False, "being_read": False})  # fmt: skip
    return rows


def _marks(row: dict[str, Any]) -> str:
    marks = (("pinned", row["pinned"]), ("being-read", row["being_read"]))
    return ",".join(word for word, is_so in marks if is_so) or "-"


def row_of(found: Found) -> dict[str, Any]:
    """One checkpoint as `--json` shows it."""
    made = found.manifest
    return {
        "step": found.step, "state": found.state, "reason": found.reason, "path": str(found.path), "tier": "disk",
        "bytes": made.bytes if made else None, "world_size": made.world_size if made else None,
        "strategy": made.strategy if made else None, "attempt": made.attempt if made else None,
        "batch": made.batch if made else None, "job": made.job if made else None,
        "saved_at": made.saved_at if made else None,
    }  # fmt: skip
