# ruff: noqa: FAST003 - {job} in a path is read by the dependency that finds the job
"""The GET routes: how jobs stand and what is known of them. Changes nothing.

No request names a file: jobs are looked up in memory, everything else is a number or a word from a fixed set.
"""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from fastapi import Path as InPath

from zrun.coordinator import logs, stacks
from zrun.coordinator.fleet import Fleet
from zrun.coordinator.held import HeldJob
from zrun.coordinator.papers import evidence_texts
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.known_batches import about, batch_of, facts_of
from zrun.core.log_merge import Filter
from zrun.core.manifest import scan
from zrun.core.place import place_of

MOST_LINES: Final = 10_000
LARGEST_NUMBER: Final = 1_000_000

Attempt = Annotated[int | None, Query(ge=1, le=LARGEST_NUMBER)]
Tail = Annotated[int, Query(ge=0, le=MOST_LINES)]
Level = Literal["debug", "info", "warning", "error", "critical"]


def job_finder(fleet: Fleet) -> Any:
    """A dependency: JOB in the path = id, unique prefix, or name (newest)."""

    async def find(job: str) -> HeldJob:
        held = fleet.find(job)
        if held is None:
            raise NotFoundError(f"no job {job[:80]!r} here", "`zrun ls` lists all jobs")
        return held

    return Depends(find)


def reading_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(prefix="/api/jobs", tags=["reading"])
    found = job_finder(fleet)

    @router.get("")
    async def jobs(limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> dict[str, Any]:
        """The newest jobs, newest first; `total` counts all."""
        newest = list(fleet.jobs.values())[::-1][:limit]
        return {"jobs": [job.views.summary() for job in newest], "total": len(fleet.jobs)}

    @router.get("/{job}")
    async def status(held: HeldJob = found) -> dict[str, Any]:
        """`secrets_missing`: names whose values a coordinator started again no longer has; resume hands them in."""
        return {**held.views.status(), "secrets_missing": held.missing_secrets}

    @router.get("/{job}/incidents")
    async def incidents(held: HeldJob = found) -> dict[str, Any]:
        return {"job": held.id, "incidents": [held.views.incident(i.number) for i in held.state.incidents]}

    @router.get("/{job}/incidents/{number}")
    async def incident(
        number: Annotated[int, InPath(ge=1, le=LARGEST_NUMBER)], held: HeldJob = found
    ) -> dict[str, Any]:
        """One incident with the texts of its evidence."""
        if number > len(held.state.incidents):
            raise NotFoundError(f"{held.id} has no incident {number}", f"`zrun incidents {held.id}` lists them")
        taken = await asyncio.to_thread(stacks.evidence, held.folder.incident(number))
        told = evidence_texts(held.state.incidents[number - 1])
        on_disk = held.folder.incident(number) / "roll-call.txt"
        written = await asyncio.to_thread(stacks.text_of, on_disk)
        told["roll_call"] = written or told["roll_call"]
        return {**held.views.incident(number), "job": held.id, **told, **taken}

    @router.get("/{job}/stacks")
    async def newest_stacks(held: HeldJob = found) -> dict[str, Any]:
        """The newest stacks somebody asked for (POST to the same path takes new ones), grouped by equal stack."""
        taken = await asyncio.to_thread(stacks.newest, held.folder)
        if taken is None:
            raise NotFoundError(f"no stacks of {held.id} were asked for yet", "POST to the same path takes them")
        return {"job": held.id, **taken}

    _add_history(router, found)
    _add_logs(router, found)
    return router


def _add_history(router: APIRouter, found: Any) -> None:
    @router.get("/{job}/checkpoints")
    async def checkpoints(held: HeldJob = found) -> dict[str, Any]:
        """What lies in the checkpoint folder, newest first."""
        folder = place_of(held.spec.checkpoint.dir, held.folder.root)
        lying = await asyncio.to_thread(scan, folder)
        return {"job": held.id, "checkpoints": [
            {"step": f.step, "state": f.state, "reason": f.reason, "tier": "disk", "name": f.path.name,
             "attempt": f.manifest.attempt if f.manifest else None, "batch": f.manifest.batch if f.manifest else None,
             "bytes": f.manifest.bytes if f.manifest else None, "saved_at": f.manifest.saved_at if f.manifest else None,
             "world_size": f.manifest.world_size if f.manifest else None,
             "strategy": f.manifest.strategy if f.manifest else None}
            for f in lying]}  # fmt: skip

    @router.get("/{job}/events")
    async def events(
        held: HeldJob = found, tail: Tail = 200, after: Annotated[int, Query(ge=0, le=2**62)] = 0
    ) -> dict[str, Any]:
        """Events and decisions, oldest first; `after`: only those of later events."""
        return {"job": held.id, "events": await asyncio.to_thread(_events, held, tail, after)}

    @router.get("/{job}/describe")
    async def describe(held: HeldJob = found) -> dict[str, Any]:
        return held.views.describe()

    @router.get("/{job}/batches")
    async def batches(
        held: HeldJob = found,
        step: Annotated[int | None, Query(ge=1, le=2**62)] = None,
        batch: Annotated[str | None, Query(max_length=80)] = None,
    ) -> dict[str, Any]:
        """Which samples are in the batch of a step (default: the newest one), or in the batch of that name."""
        if step is not None and batch is not None:
            raise UsageError("step and batch exclude each other")
        return {"job": held.id, **await asyncio.to_thread(_batch, held, step, batch)}


def _add_logs(router: APIRouter, found: Any) -> None:
    @router.get("/{job}/logs")
    async def read_logs(
        held: HeldJob = found,
        attempt: Attempt = None,
        rank: Annotated[str | None, Query(pattern=r"^\d{1,6}(,\d{1,6})*$", max_length=8000)] = None,
        stream: Literal["stdout", "stderr"] | None = None,
        tail: Tail = 200,
        grep: Annotated[str | None, Query(max_length=200)] = None,
        level: Level | None = None,
        since: Annotated[str | None, Query(max_length=40)] = None,
        node: Annotated[str | None, Query(max_length=253)] = None,
        first_error: bool = False,
        follow: bool = False,
        after: Annotated[str, Query(max_length=logs.LONGEST_CURSOR)] = "",
    ) -> dict[str, Any]:
        """Log lines, oldest first: of the newest attempt and all ranks unless said otherwise.

        `follow`: the answer has a cursor, and `after` with it gives the lines that came since, of newer attempts too.
        """
        wanted = Filter(
            frozenset(int(r) for r in rank.split(",")) if rank else None, node, level, _instant(since) or "",
            logs.pattern(grep), stream, logs.LONGEST_MATCH,
        )  # fmt: skip
        asked = logs.Asked(tail, attempt, first_error, follow, after)
        return await asyncio.to_thread(_lines, held, asked, wanted)


def _batch(held: HeldJob, step: int | None, batch: str | None) -> dict[str, Any]:
    checkpoints = place_of(held.spec.checkpoint.dir, held.folder.root)
    facts, skip = facts_of(held.folder, checkpoints), list(held.state.quarantined)
    if step is None and batch is None:
        step = int(held.views.status().get("step") or 1)
    return {**batch_of(facts, skip, step=step, batch=batch), "data": about(facts, skip)}


def _lines(held: HeldJob, asked: logs.Asked, wanted: Filter) -> dict[str, Any]:
    attempt = logs.chosen(held.folder, asked.attempt)
    verdicts = [i.verdict for i in held.state.incidents if i.attempt == attempt and i.verdict is not None]
    told = logs.answer(held.folder, asked, wanted, {v.rank for v in verdicts if v.rank is not None})
    return {"job": held.id, **told, "lines": held.redactor.value(told["lines"])}


def _events(held: HeldJob, tail: int, after: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in logs.backwards(held.folder.events):
        number = line.get("n", line.get("because"))
        if len(found) >= tail or (isinstance(number, int) and number <= after):
            break
        found.append(line)
    return found[::-1]


def _instant(text: str | None) -> str | None:
    """RFC 3339 or Unix seconds, in the form that log lines carry."""
    if not text:
        return None
    try:
        try:
            moment = datetime.fromtimestamp(float(text), UTC)
        except ValueError:
            moment = datetime.fromisoformat(text)
            moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"since={text[:40]!r} is no time", "for example 2026-01-31T12:00:00Z") from error
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
