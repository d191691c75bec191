"""Who may come in: one ASGI layer before every route, so that no route can be forgotten.

Checks the Host (against DNS rebinding), the token or the page's cookie, and for a cookie that the request comes from
our own page; puts the security headers on every answer. Knows nothing about what the routes do.
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS: Final = frozenset({"/healthz", "/login"})
SESSION_S: Final = 12 * 3600.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
_TO_LOGIN: Final = (
    "<!doctype html><meta http-equiv=refresh content='0;url=/login'><title>zrun</title><a href='/login'>Log in</a>"
)


class Keys:
    """The token and the sessions signed with it: they stay good over a restart and end with the token."""

    def __init__(self, token: str) -> None:
        self.replace(token)

    def replace(self, token: str) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"zrun session\0" + self._token).digest()
        # Browsers do not tell ports of one host apart: two coordinators must not share a cookie's name.
        self.cookie = f"zrun-{hashlib.sha256(b'name' + self._token).hexdigest()[:8]}"

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def new_session(self, now: float) -> str:
        body = f"{now + SESSION_S:.0f}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign(body)}"

    def is_session(self, given: str, now: float) -> bool:
        body, _, signature = given.rpartition(".")
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(body).encode()):
            return False
        until = body.partition(".")[0]
        return until.isdigit() and float(until) > now

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Gate:
    """`open_paths` need no token (the page's own login files); `host` is what the server is bound to."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        host: str,
        open_paths: Iterable[str] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._keys = keys
        self._open = OPEN_PATHS | set(open_paths)
        self._names = LOOPBACK | {host.lower(), socket.gethostname().lower()}
        self._any_address = host in {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to
        self._wall = wall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope, Headers(scope=scope))
        with_headers = _with_headers(send)
        if refusal is None:
            await self._app(scope, receive, with_headers)
        elif scope["type"] == "http":
            await refusal(scope, receive, with_headers)
        else:
            await _deny_socket(refusal, scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._host_known(headers.get("host", "")):
            return JSONResponse({"error": "this host name is not served here", "hint": "use the printed address"}, 421)
        if scope["path"] in self._open:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._keys.is_token(token.strip()):
            return None
        if scope["type"] == "http" and self._has_session(headers):
            if scope["method"] in {"GET", "HEAD"} or _from_our_page(headers):
                return None
            return JSONResponse({"error": "this request does not come from the page itself"}, 403)
        if scope["type"] == "http" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return HTMLResponse(_TO_LOGIN, 401, {"www-authenticate": "Bearer"})
        hint = "send Authorization: Bearer TOKEN (the file `token` in the run's folder)"
        return JSONResponse({"error": "a token is needed", "hint": hint}, 401, {"www-authenticate": "Bearer"})

    def _has_session(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._keys.cookie)
        except CookieError:
            return False
        return morsel is not None and self._keys.is_session(morsel.value, self._wall())

    def _host_known(self, given: str) -> bool:
        name = _host_of(given)
        if name in self._names:
            return True
        if not self._any_address:
            return False
        try:
            ipaddress.ip_address(name)  # rebinding needs a name; an address is what it says
        except ValueError:
            return False
        return True


def is_loopback(host: str) -> bool:
    """Whether binding to `host` stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(given: str) -> str:
    given = given.strip().lower()
    if given.startswith("["):
        return given[1:].partition("]")[0]
    return given.rpartition(":")[0] if given.count(":") == 1 else given


def _from_our_page(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    return bool(origin) and origin.partition("://")[2].lower() == headers.get("host", "").lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending


async def _deny_socket(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if "websocket.http.response" in scope.get("extensions", {}):
        await refusal(scope, receive, _as_socket_answer(send))
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": "a token is needed"})


def _as_socket_answer(send: Send) -> Send:
    async def sending(message: Message) -> None:
        kind = message["type"]
        await send({**message, "type": kind if kind.startswith("websocket.") else f"websocket.{kind}"})

    return sending
