"""`zrun ckpt pin|unpin|prune`: what stays on the disk; the rule is the one that ranks prune by."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from zrun.cli import screen
from zrun.cli.ckpt_where import bar, directory_of, keep_of, of_step, where_argument
from zrun.cli.options import json_option, seconds, stamp
from zrun.core import manifest, pins, pruning
from zrun.core.errors import Exit, UsageError
from zrun.core.place import Place, place_of
from zrun.core.pruning import Leftover
from zrun.core.retention import Fate, Keep


@click.command("pin")
@click.argument("step", type=int)
@where_argument
def pin(step: int, where: str | None) -> int:
    """Keep the checkpoint of STEP whatever the rules say, in the run and in `prune`."""
    directory = directory_of(where)
    one = of_step(directory, manifest.scan(directory), step)
    if one.state != "complete":
        raise UsageError(f"the checkpoint of step {step} is {one.state}: {one.reason}", "pin a complete one")
    pins.pin(directory, one, stamp(datetime.now(UTC)))
    screen.put(f"pinned {one.path}")
    return Exit.DONE


@click.command("unpin")
@click.argument("step", type=int)
@where_argument
def unpin(step: int, where: str | None) -> int:
    """Let the checkpoint of STEP go when the rules say so."""
    directory = directory_of(where)
    if not pins.unpin(directory, step):
        raise UsageError(f"step {step} is not pinned in {directory}", "`zrun ckpt ls` shows what is")
    screen.put(f"unpinned step {step}; the next prune decides")
    return Exit.DONE


@click.command("prune", short_help="Delete old checkpoints as the run does, and what dead saves left.")
@where_argument
@click.option("--dry-run", is_flag=True, help="Only say what would go and why the rest stays.")
@click.option("--last", type=click.IntRange(min=1), help="Keep so many of the newest; else checkpoint.keep of the job.")
@click.option("--every", type=click.IntRange(min=1), help="Keep each step that is a multiple of this.")
@click.option("--older-than", default="1d", show_default=True, metavar="AGE",
              help="Leftovers of dead saves go when nothing in them changed for so long.")  # fmt: skip
@click.option("--damaged", is_flag=True, help="Delete partial and corrupt ones too.")
@json_option
def prune(
    where: str | None, dry_run: bool, last: int | None, every: int | None, older_than: str, damaged: bool, as_json: bool
) -> int:
    """Delete checkpoints that no rule keeps. Never the last good one, nor one that is pinned or being read.

    The rule is the job's own checkpoint.keep. Unfinished saves, leftovers and trash go by age.
    """
    age_s = seconds(older_than)
    directory = directory_of(where)
    decided = pruning.fates(directory, manifest.scan(directory), _rule(where, last, every), damaged_too=damaged)
    left = pruning.leftovers(directory, time.time())
    old = [one for one in left if one.age_s >= age_s]
    gone = {fate.found.path for fate in decided if not fate.keep} | {one.path for one in old}
    failed: list[str] = []
    if not dry_run:
        gone, failed = _delete(directory, decided, old)
    rows = [*(_of_fate(fate, gone) for fate in decided), *(_of_leftover(one, gone, older_than) for one in left)]
    if as_json:
        screen.put_json({"directory": str(directory), "dry_run": dry_run, "rows": rows})
    else:
        _show(directory, rows, dry_run=dry_run)
    for text in failed:
        screen.say(f"zrun: {text}", "red")
    return Exit.OWN_FAILURE if failed else Exit.DONE


def _rule(where: str | None, last: int | None, every: int | None) -> Keep:
    """As the job has it; what the command line says comes first, and alone where it names `--last`."""
    if last is not None:
        return Keep(last, every)
    from zrun.spec.job import Keep as Usual

    of_job = keep_of(where)
    if of_job is None:
        raise UsageError("this folder belongs to no known run, so how many to keep?", "say it: --last 3")
    usual = Usual()
    return Keep(int(of_job.get("last", usual.last)), every or of_job.get("every_steps", usual.every_steps))


def _delete(directory: Place, decided: list[Fate], old: list[Leftover]) -> tuple[set[Place], list[str]]:
    """(what is gone, what could not be deleted); one that fails does not keep the others."""
    gone: set[Place] = set()
    failed: list[str] = []
    with bar("deleting", sum(_bytes(f) for f in decided if not f.keep) + sum(one.bytes for one in old)) as advance:
        for fate in reversed(decided):  # the oldest first
            try:
                if pruning.delete(directory, [fate]):
                    gone.add(fate.found.path)
                    advance(_bytes(fate))
            except OSError as error:
                failed.append(f"{fate.found.path} could not be deleted: {error.strerror or error}")
        for one in old:
            try:
                if pruning.clear(directory, one):
                    gone.add(one.path)
                    advance(one.bytes)
            except OSError as error:
                failed.append(f"{one.path} could not be deleted: {error.strerror or error}")
    return gone, failed


def _bytes(fate: Fate) -> int:
    return fate.found.manifest.bytes if fate.found.manifest else 0


def _of_fate(fate: Fate, gone: set[Place]) -> dict[str, Any]:
    reason = fate.reason
    if not fate.keep and fate.found.path not in gone:
        reason = "somebody began to read it"
    return {"step": fate.found.step, "path": str(fate.found.path), "deleted": fate.found.path in gone,
            "bytes": _bytes(fate), "reason": reason}  # fmt: skip


def _of_leftover(one: Leftover, gone: set[Place], older_than: str) -> dict[str, Any]:
    young = "" if one.path in gone else f", younger than {older_than}"
    return {**asdict(one), "step": None, "path": str(one.path), "deleted": one.path in gone,
            "reason": f"{one.what}; last written {screen.span(one.age_s)} ago{young}"}  # fmt: skip


def _show(directory: Place, rows: list[dict[str, Any]], *, dry_run: bool) -> None:
    if not rows:
        screen.say(f"zrun: no checkpoint in {directory}")
        return
    verb = "would go" if dry_run else "deleted"
    cells = [[verb if row["deleted"] else "kept", place_of(row["path"]).name, screen.size(row["bytes"]), row["reason"]]
             for row in rows]  # fmt: skip
    screen.put(screen.table(["", "what", "size", "why"], cells))
    freed = sum(row["bytes"] for row in rows if row["deleted"])
    screen.say(f"zrun: {screen.size(freed)} {'would be freed' if dry_run else 'freed'}")
