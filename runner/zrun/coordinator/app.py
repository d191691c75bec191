"""The coordinator as one ASGI application: routes, the gate before them, metrics, the stream and the login.

Builds; holds no state but what it is handed. The page's routes come from outside and are served behind the same gate.
"""

import json
import time
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, FastAPI, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from zrun.coordinator import refusals
from zrun.coordinator.agents import agents_router
from zrun.coordinator.commands import Commands
from zrun.coordinator.fleet import Fleet
from zrun.coordinator.gate import SESSION_S, Gate, Keys
from zrun.coordinator.metrics import Metrics
from zrun.coordinator.reading import reading_router
from zrun.coordinator.stream import Changes
from zrun.coordinator.telling import telling_router
from zrun.core.errors import NotFoundError

LARGEST_BODY = 1 << 20
_LOGIN = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>zrun</title><h1>zrun</h1>"
    "<form method=post action=/login><label>Token <input name=token type=password autofocus required></label> "
    "<button>Log in</button></form><p>`zrun token JOB` prints it.</p></html>"
)


def create_app(
    fleet: Fleet,
    commands: Commands,
    changes: Changes,
    keys: Keys,
    host: str,
    routers: Sequence[APIRouter] = (),
    open_paths: Iterable[str] = (),
) -> tuple[FastAPI, ASGIApp]:
    """(the application, the same behind its gate: this one is served)."""
    app = FastAPI(
        title="zrun coordinator", openapi_url="/api/openapi.json", docs_url=None, redoc_url=None,
        max_body_size=LARGEST_BODY, redirect_slashes=False,
    )  # fmt: skip
    refusals.install(app)
    for router in routers:
        app.include_router(router)
    for router in (
        reading_router(fleet), telling_router(commands), agents_router(fleet), _stream_router(fleet, changes),
        _door_router(fleet, keys),
    ):  # fmt: skip
        app.include_router(router)
    return app, Gate(app, keys, host, open_paths)


def _stream_router(fleet: Fleet, changes: Changes) -> APIRouter:
    router = APIRouter(tags=["reading"])

    @router.get("/api/stream", response_class=EventSourceResponse)
    async def stream(
        job: Annotated[str | None, Query(max_length=100)] = None,
        last_event_id: Annotated[str | None, Header(max_length=40)] = None,
    ) -> AsyncIterable[ServerSentEvent]:
        """`event: job`, data = the status object; each job as it is, then at most twice a second when it changed."""
        held = fleet.find(job) if job else None
        if job and held is None:
            yield ServerSentEvent(event="gone", data={"error": f"no job {job[:80]!r} here"})
            return
        after = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
        async for update in changes.follow(held.id if held else None, after):
            yield ServerSentEvent(event="job", id=str(update.version), data=update.status)

    return router


def _door_router(fleet: Fleet, keys: Keys) -> APIRouter:
    router = APIRouter()
    metrics = Metrics(fleet)

    @router.get("/healthz", tags=["open"])
    async def healthz() -> dict[str, str]:
        """Open to all; says nothing about jobs."""
        return {"status": "ok"}

    @router.get("/metrics", tags=["reading"], response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/login", include_in_schema=False)
    async def login_page() -> HTMLResponse:
        return HTMLResponse(_LOGIN)

    @router.post("/login", tags=["open"], status_code=204, responses={401: {"description": "a wrong token"}})
    async def login(request: Request) -> Response:
        """`{"token": …}` or a form with `token`: gives the page its cookie."""
        is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        if not keys.is_token(_token_in(await request.body(), is_form=is_form)):
            fleet.log.warning(
                "login refused", because="wrong token", peer=request.client.host if request.client else ""
            )
            return refusals.answer(401, "that is not the token", "`zrun token JOB` prints it")
        response = RedirectResponse("/", 303) if is_form else Response(status_code=204)
        response.set_cookie(
            keys.cookie, keys.new_session(time.time()), max_age=int(SESSION_S), path="/", httponly=True,
            samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    @router.post("/logout", tags=["reading"], status_code=204)
    async def logout() -> Response:
        response = Response(status_code=204)
        response.delete_cookie(keys.cookie, path="/", httponly=True, samesite="strict")
        return response

    @router.get("/api/{rest:path}", include_in_schema=False)
    async def nothing_here(rest: str) -> dict[str, Any]:
        raise NotFoundError(f"nothing is served at /api/{rest[:80]}", "/api/openapi.json lists what is")

    return router


def _token_in(body: bytes, *, is_form: bool) -> str:
    try:
        text = body.decode()
        if is_form:
            return parse_qs(text, max_num_fields=10).get("token", [""])[0]
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    token = value.get("token") if isinstance(value, dict) else None
    return token if isinstance(token, str) else ""
