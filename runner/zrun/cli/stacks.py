"""`zrun stacks`: what every rank is doing now, ranks with equal stacks together."""

import time
from typing import Any

import click

from zrun.cli import screen
from zrun.cli.client import Client
from zrun.cli.lookup import Target, find
from zrun.cli.options import coordinator_option, job_argument, json_option, numbers
from zrun.core.errors import NotFoundError, UnreachableError, ZrunError
from zrun.core.states import FINAL

_WITHIN_S = 15.0


@click.command()
@job_argument
@click.option("--rank", metavar="R[,R]", help="Only these ranks.")
@coordinator_option
@json_option
def stacks(job: str | None, rank: str | None, coordinator: str | None, as_json: bool) -> int:
    """Stacks of all ranks of the live JOB, grouped by equal stack."""
    chosen = set(numbers(rank, "rank")) if rank else None
    target = find(job, coordinator)
    _refuse_if_over(target)
    with target.live_client() as client:
        found = _taken(client, target.job, _ranks_of(target.status()))
    groups = only(found, chosen)
    if as_json:
        screen.put_json(groups)
    elif not groups:
        raise ZrunError(f"no rank of {target.job} gave its stack within {_WITHIN_S:.0f} s", "see `zrun status`")
    for group in groups if not as_json else ():
        screen.put(f"rank {', '.join(map(str, group['ranks']))}:")
        screen.put("\n".join(f"    {screen.clean(row)}" for row in str(group["stack"]).splitlines()) + "\n")
    return 0


def _refuse_if_over(target: Target) -> None:
    state = target.written().get("state")
    if target.folder is not None and state in FINAL:
        where = f"its incidents' stacks are in {target.folder.root / 'incidents'}; `zrun incidents {target.job}`"
        raise UnreachableError(f"{target.job} is over ({state})", where)


def _ranks_of(status: dict[str, Any]) -> int:
    return sum(len(node.get("ranks") or []) for node in status.get("nodes") or [])


def _taken(client: Client, job: str, expected: int) -> list[dict[str, Any]]:
    """Ask for a dump and wait until all ranks gave theirs: [{ranks, stack}]."""
    taken = str(client.tell(job, "stacks")["taken"])
    deadline = time.monotonic() + _WITHIN_S
    found: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        try:
            answer = client.read(job, "stacks")
        except NotFoundError:
            answer = {}  # none has been written yet
        if str(answer.get("taken", "")) >= taken:
            found = answer["groups"]
            if len(answer["ranks"]) >= expected:
                break
        time.sleep(0.1)
    return found


def only(groups: list[dict[str, Any]], chosen: set[int] | None) -> list[dict[str, Any]]:
    """The groups with nothing but the chosen ranks in them."""
    if chosen is None:
        return groups
    kept = ({**group, "ranks": [r for r in group["ranks"] if r in chosen]} for group in groups)
    return [group for group in kept if group["ranks"]]
