"""One form for every refusal over HTTP: `{"error": what is wrong, "hint": the way out}` with a fitting status.

Knows zrun's errors and FastAPI's, nothing about routes.
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from zrun.coordinator.commands import ConflictError
from zrun.core.errors import NotAllowedError, NotFoundError, UsageError, ZrunError


def install(app: FastAPI) -> None:
    app.add_exception_handler(ZrunError, _of_ours)
    app.add_exception_handler(RequestValidationError, _of_input)
    app.add_exception_handler(HTTPException, _of_http)


def answer(status: int, error: str, hint: str = "") -> JSONResponse:
    return JSONResponse({"error": error, "hint": hint}, status)


async def _of_ours(_request: Request, error: Exception) -> JSONResponse:
    match error:
        case NotFoundError():
            status = 404
        case ConflictError():
            status = 409
        case UsageError():
            status = 422
        case NotAllowedError():
            status = 403
        case _:
            status = 500
    return answer(status, str(error), getattr(error, "hint", ""))


async def _of_input(_request: Request, error: Exception) -> JSONResponse:
    """Says where and what, and never repeats the input: it may hold a secret."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    text = "; ".join(f"{'.'.join(_word(p) for p in one['loc'])}: {one['msg']}" for one in problems[:10])
    return answer(422, text or "the request is not understood")


def _word(part: Any) -> str:
    return str(part)[:80].encode("utf-8", "replace").decode()


async def _of_http(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return answer(500, "the coordinator failed")
    made = answer(error.status_code, str(error.detail))
    made.headers.update(error.headers or {})
    return made
