"""The one place where the command line speaks HTTP to a coordinator; turns its refusals into zrun's errors.

Imported only by commands that reach a live coordinator. Knows nothing about folders or terminals.
"""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2

from zrun.core.errors import NotAllowedError, NotFoundError, UnreachableError, UsageError, ZrunError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Client:
    """One coordinator. Every call may raise UnreachableError, NotAllowedError, NotFoundError, UsageError."""

    def __init__(self, address: str, token: str, *, timeout_s: float = 5.0) -> None:
        self.address = address.rstrip("/")
        self.token = token
        parts = urlsplit(self.address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"not the address of a coordinator: {address!r}", "for example http://127.0.0.1:7777")
        self._http = httpx2.Client(
            base_url=self.address, headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=timeout_s,
            verify=parts.scheme == "https",  # loading certificates takes 20 ms that plain http need not pay
            trust_env=parts.hostname not in _LOOPBACK,  # a proxy must not see loopback traffic
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    @property
    def page(self) -> str:
        """The page's address with its one-time login; the token stands behind # and never reaches a server log."""
        return f"{self.address}/login#token={self.token}" if self.token else self.address

    def call(self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """One request; the decoded JSON, or text where the answer is none."""
        given = {key: value for key, value in (params or {}).items() if value is not None}
        content = None if body is None else json.dumps(body)  # in ASCII: an environment's value may be no UTF-8
        kind = {} if body is None else {"content-type": "application/json"}
        try:
            answer = self._http.request(method, path, params=given, content=content, headers=kind)
        except httpx2.TimeoutException as error:
            raise UnreachableError(f"the coordinator at {self.address} does not answer in time") from error
        except httpx2.TransportError as error:
            raise UnreachableError(f"no coordinator answers at {self.address} ({error})") from error
        if answer.is_success:
            return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
        raise self._refusal(answer)

    def _refusal(self, answer: httpx2.Response) -> ZrunError:
        text, hint = _reason(answer)
        match answer.status_code:
            case 401 | 403:
                return NotAllowedError(
                    f"the coordinator at {self.address} does not accept the token",
                    "set ZRUN_TOKEN or ZRUN_TOKEN_FILE; `zrun token` prints a run's token",
                )
            case 404:
                return NotFoundError(text, hint)
            case code if code < 500:
                return UsageError(text, hint)
            case code:
                return ZrunError(f"the coordinator at {self.address} failed ({code}): {text}", hint)

    def healthy(self) -> bool:
        try:
            self.call("GET", "/healthz")
        except ZrunError:
            return False
        return True

    def jobs(self) -> list[dict[str, Any]]:
        """Newest first."""
        found: list[dict[str, Any]] = self.call("GET", "/api/jobs")["jobs"]
        return found

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/api/jobs/{quote(job, safe='')}")
        return found

    def read(self, job: str, what: str, **params: Any) -> Any:
        """`what`: logs, incidents, stacks, checkpoints, events, batches."""
        return self.call("GET", f"/api/jobs/{quote(job, safe='')}/{what}", params=params)

    def tell(self, job: str, what: str, body: dict[str, Any] | None = None) -> Any:
        """`what`: stop, restart, resume, save, preempt, stacks."""
        return self.call("POST", f"/api/jobs/{quote(job, safe='')}/{what}", body=body or {})

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.call("POST", "/api/jobs", body=body)
        return found


def _reason(answer: httpx2.Response) -> tuple[str, str]:
    """(text, hint) of a refusal: `{"error", "hint"}`, or whatever a proxy in between says."""
    try:
        value = answer.json()
    except ValueError:
        value = None
    if isinstance(value, dict) and "error" in value:
        return str(value["error"]), str(value.get("hint") or "")
    return answer.text[:500] or answer.reason_phrase, ""
