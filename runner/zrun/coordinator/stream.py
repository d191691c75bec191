"""Live updates for pages and followers: the newest status of each job that changed, at most twice a second.

A slow reader misses states, never the newest one. Knows nothing about HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Update:
    """`version` grows with every change of anything and serves as the event's id."""

    version: int
    job: str
    status: dict[str, Any]


class Changes:
    """Which job changed last at which version; `status(job)` gives what a reader is to see."""

    def __init__(self, status: Callable[[str], dict[str, Any]]) -> None:
        self._status = status
        self._versions: dict[str, int] = {}
        self._version = 0
        self._readers: set[asyncio.Event] = set()
        self._over = False

    def touch(self, job: str) -> None:
        self._version += 1
        self._versions[job] = self._version
        for reader in self._readers:
            reader.set()

    def close(self) -> None:
        """Every stream ends: the server is about to stop."""
        self._over = True
        for reader in self._readers:
            reader.set()

    async def follow(self, only: str | None = None, after: int = 0) -> AsyncIterator[Update]:
        """All jobs as they are (but those unchanged since `after`), then each that changes."""
        if after > self._version:
            after = 0  # the number of an earlier life of this process
        wake = asyncio.Event()
        self._readers.add(wake)
        try:
            while not self._over:
                wake.clear()
                news = sorted((v, job) for job, v in self._versions.items() if v > after and only in {None, job})
                for version, job in news:
                    after = max(after, version)
                    yield Update(version, job, self._status(job))
                await wake.wait()
                if not self._over:
                    await asyncio.sleep(EVERY_S)
        finally:
            self._readers.discard(wake)
