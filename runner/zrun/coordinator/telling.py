# ruff: noqa: FAST003 - {job} in a path is read by the dependency that finds the job
"""The POST routes: handing in a job, and what may be asked of one. Answered once the wish is journaled."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from zrun.coordinator.agents import ask_stacks
from zrun.coordinator.commands import Commands, ConflictError, Wanted
from zrun.coordinator.held import HeldJob
from zrun.coordinator.reading import job_finder
from zrun.coordinator.stacks import folder_of


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Submission(_Body):
    """`spec` as zrun writes it into spec.json; secrets stay in memory."""

    spec: dict[str, Any]
    run_dir: str = Field(max_length=4000)
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    fresh: bool = False


class StopBody(_Body):
    now: bool = False


class PreemptBody(_Body):
    within_s: Annotated[float | None, Field(ge=0, le=1e7)] = None


class ResumeBody(_Body):
    """`secrets`: values for names under the job's secrets, which a coordinator started again no longer has."""

    options: dict[str, Any] = {}
    secrets: dict[str, str] = {}


def telling_router(commands: Commands) -> APIRouter:
    router = APIRouter(prefix="/api/jobs", tags=["telling"])
    found = job_finder(commands.fleet)

    @router.post("", status_code=201)
    async def submit(body: Submission) -> dict[str, Any]:
        held = await commands.submit(Wanted(body.spec, body.run_dir, body.env, body.secrets, body.fresh))
        return {"job": held.id, "state": held.state.state, "reason": held.state.reason}

    async def tell(request: Request, held: HeldJob, what: str, **more: Any) -> dict[str, Any]:
        n = await commands.tell(held, what, _who(request), **more)
        return {"job": held.id, "event": n, "state": held.state.state, "reason": held.state.reason}

    @router.post("/{job}/stop", status_code=202)
    async def stop(request: Request, held: HeldJob = found, body: StopBody | None = None) -> dict[str, Any]:
        """After saving, unless `now`."""
        return await tell(request, held, "stop_now" if body and body.now else "stop")

    @router.post("/{job}/restart", status_code=202)
    async def restart(request: Request, held: HeldJob = found) -> dict[str, Any]:
        return await tell(request, held, "restart")

    @router.post("/{job}/resume", status_code=202)
    async def resume(request: Request, held: HeldJob = found, body: ResumeBody | None = None) -> dict[str, Any]:
        body = body or ResumeBody()
        return await tell(request, held, "resume", options=body.options, secrets=body.secrets)

    @router.post("/{job}/save", status_code=202)
    async def save(request: Request, held: HeldJob = found) -> dict[str, Any]:
        return await tell(request, held, "save")

    @router.post("/{job}/preempt", status_code=202)
    async def preempt(request: Request, held: HeldJob = found, body: PreemptBody | None = None) -> dict[str, Any]:
        return await tell(request, held, "preempt", within_s=body.within_s if body else None)

    @router.post("/{job}/stacks", status_code=202)
    async def stacks(held: HeldJob = found) -> dict[str, Any]:
        """GET the same path a moment later for what was found."""
        name = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
        asked = ask_stacks(commands.fleet, held.id, str(folder_of(held.folder) / name))
        if not asked:
            raise ConflictError(f"no node of {held.id} is connected", f"zrun status {held.id}")
        return {"job": held.id, "taken": name, "nodes": asked}

    return router


def _who(request: Request) -> str:
    return f"http {request.client.host}" if request.client else "http"
