"""The page's own files, as routes that the coordinator serves behind its gate; knows nothing about jobs.

The page reads the JSON API like any other program and can change nothing by itself.
"""

from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_PAGES: Final = {"/": "page.html", "/login": "login.html"}
_PREFIX: Final = "/assets/"
OPEN_PATHS: Final = frozenset({"/login", *(_PREFIX + name for name in ("page.css", "login.js"))})
"""What a browser needs before it has logged in; nothing in it is secret."""


def dashboard_router() -> APIRouter:
    """`/`, `/login` and `/assets/NAME`. A name is looked up among the files read here, never on the disk."""
    found = {entry.name: entry.read_bytes() for entry in (files("zrun.dashboard") / "static").iterdir()}
    router = APIRouter(include_in_schema=False)
    for path, name in _PAGES.items():
        router.add_api_route(path, _giver(found.pop(name), name), methods=["GET", "HEAD"])
    for name, content in found.items():
        router.add_api_route(_PREFIX + name, _giver(content, name), methods=["GET", "HEAD"])
    return router


def _giver(content: bytes, name: str) -> "_Giver":
    return _Giver(content, _TYPES[name.rpartition(".")[2]])


class _Giver:
    """One file as an endpoint."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._content = content
        self._type = media_type

    async def __call__(self) -> Response:
        return Response(self._content, media_type=self._type, headers={"cache-control": "no-cache"})
