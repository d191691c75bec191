"""`zrun batches`: which samples were in which batch, from the run's folder; and one batch again, by the script itself.

Needs no torch: `--replay` starts the job's own python for that.
"""

import sys
from typing import Any

import click

from zrun.cli import screen
from zrun.cli.lookup import Target, find, read_json
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.core.batches import DataFacts
from zrun.core.errors import Exit, UsageError
from zrun.core.known_batches import about, batch_of, facts_of
from zrun.core.place import place_of


@click.command()
@job_argument
@click.option("--step", type=click.IntRange(min=1), help="The batch of this step; default: the newest step.")
@click.option("--id", "batch", metavar="ID", help="The batch of this name, for example e2-s001840-7f3a9c21.")
@click.option("--replay", metavar="ID", help="Run the script in one process up to this batch and hand it over.")
@click.option("--debug/--no-debug", default=None, help="With --replay: stop in the debugger (default: on a terminal).")
@coordinator_option
@json_option
def batches(job: str | None, step: int | None, batch: str | None, replay: str | None, debug: bool | None,
            coordinator: str | None, as_json: bool) -> int:  # fmt: skip
    """Which samples were in a batch of JOB."""
    if sum(asked is not None for asked in (step, batch, replay)) > 1:
        raise UsageError("--step, --id and --replay exclude each other")
    target = find(job, coordinator)
    if replay is not None:
        return _replay(target, replay, sys.stdin.isatty() if debug is None else debug)
    found = _ask(target, step, batch)
    if as_json:
        screen.put_json({"job": target.job, **found})
    else:
        screen.put("\n".join(_lines(found)))
    return Exit.DONE


def _ask(target: Target, step: int | None, batch: str | None) -> dict[str, Any]:
    if target.folder is None:
        with target.client() as client:
            found: dict[str, Any] = client.read(target.job, "batches", step=step, batch=batch)
        return found
    facts, skip = _known(target)
    if step is None and batch is None:
        step = int(target.written().get("step") or 1)
    return {**batch_of(facts, skip, step=step, batch=batch), "data": about(facts, skip)}


def _known(target: Target) -> tuple[DataFacts, list[str]]:
    """What the run's batches follow from, and which it leaves out."""
    folder = target.folder
    if folder is None:
        raise UsageError(f"the folder of {target.job} is not on this machine", "run this where it is")
    named = (read_json(folder.spec_json).get("checkpoint") or {}).get("dir") or "checkpoints"
    facts = facts_of(folder, place_of(str(named), folder.root))
    return facts, [str(name) for name in target.written().get("quarantined") or []]


def _lines(found: dict[str, Any]) -> list[str]:
    done = "skipped" if found["skipped"] else f"step {found['step']}"
    data = found["data"]
    head = f"{found['batch']}: {done}, epoch {found['epoch']}, {len(found['samples'])} samples"
    lines = [
        head if found["known_end"] else f"{head} (fewer if its epoch ended in it)",
        f"  {found['samples_are']}: {', '.join(map(str, found['samples']))}",
        f"  data {data['fingerprint']}, seed {data['seed']}, global batch {data['global_batch']}",
    ]
    return lines + [f"  skipped from now on: {', '.join(data['skip'])}"] * bool(data["skip"])


def _replay(target: Target, batch: str, debug: bool) -> int:
    from zrun.cli.replaying import replayed

    facts, skip = _known(target)
    if facts.kind != "sampler":  # a wrong name is told before anything starts
        batch_of(facts, skip, step=None, batch=batch)
    if target.folder is None:
        raise AssertionError("facts come from a folder")
    return replayed(target.folder, facts, skip, batch, debug=debug)
