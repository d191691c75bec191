"""From what a person typed as JOB to a run: its folder, its coordinator if one lives, and how it stands.

Reads the registry and the run's folder; speaks HTTP only when a coordinator should be alive.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zrun.cli import registry
from zrun.core import env
from zrun.core.errors import NotFoundError, UnreachableError, UsageError, ZrunError
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL

if TYPE_CHECKING:
    from zrun.cli.client import Client


@dataclass(frozen=True, slots=True)
class Target:
    """One job. `folder` is None for a job known only to a coordinator elsewhere."""

    job: str
    name: str
    folder: RunFolder | None
    coordinator: str = ""
    """Given by the person or the registry: a coordinator that is not in the run's folder."""

    def client(self, *, timeout_s: float = 5.0) -> "Client":
        """Raises UnreachableError if no address is known; asks nothing yet."""
        from zrun.cli.client import Client

        if self.coordinator:
            return Client(self.coordinator, outside_token(), timeout_s=timeout_s)
        address = address_in(self.folder) if self.folder else None
        if self.folder is None or address is None:
            raise UnreachableError(f"no coordinator runs for {self.job}", self.way_on())
        return Client(address, token_in(self.folder), timeout_s=timeout_s)

    def live_client(self) -> "Client":
        """A client whose coordinator answered just now. Raises UnreachableError with the way out."""
        client = self.client()
        try:
            client.status(self.job)
        except UnreachableError as error:
            raise UnreachableError(f"{self.job}: no coordinator is alive", self.way_on()) from error
        return client

    def way_on(self) -> str:
        """What a person can do about a job that nobody runs."""
        if self.written().get("state") == "SUCCEEDED":
            return f"it has SUCCEEDED; see `zrun describe {self.job}`"
        return f"`zrun resume {self.job}` goes on with it"

    def written(self) -> dict[str, Any]:
        """verdict.json: how it ended, or how it last stood; {} if there is none."""
        return read_json(self.folder.verdict) if self.folder else {}

    def final(self) -> bool:
        return self.written().get("state") in FINAL

    def status(self) -> dict[str, Any]:
        """Live from the coordinator, else from verdict.json with `live` false."""
        written = self.written()
        if written.get("state") in FINAL:
            return {**written, "live": False}
        try:
            with self.client() as client:
                return {**client.status(self.job), "live": True}
        except UnreachableError:
            if self.coordinator and not written:
                raise
        if not written:
            return {"job": self.job, "name": self.name, "state": "PENDING", "reason": "nothing is known yet",
                    "live": False, "attempts": [], "incidents": []}  # fmt: skip
        reason = f"interrupted: no coordinator is alive; last known: {written.get('reason') or written.get('state')}"
        return {**written, "reason": reason, "live": False}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} if the file is missing or not one."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def address_in(folder: RunFolder) -> str | None:
    address = read_json(folder.coordinator).get("address")
    return str(address) if address else None


def token_in(folder: RunFolder) -> str:
    try:
        return folder.token.read_text().strip()
    except OSError:
        return ""


def outside_token() -> str:
    """The token for a coordinator named by address: ZRUN_TOKEN, else the file ZRUN_TOKEN_FILE names."""
    if token := env.get(env.TOKEN):
        return token.strip()
    if not (path := env.get(env.TOKEN_FILE)):
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"{env.TOKEN_FILE}={path} cannot be read: {error.strerror}") from error


def supervised(folder: RunFolder) -> bool:
    """Is a supervisor alive for this run; it holds the lock as long as it lives."""
    try:
        handle = os.open(folder.supervisor_lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def answering(folder: RunFolder) -> bool:
    """Does this run's own coordinator answer (the supervisor may be dead)."""
    address = address_in(folder)
    if address is None:
        return False
    from zrun.cli.client import Client

    try:
        with Client(address, token_in(folder), timeout_s=2.0) as client:
            client.status(folder.job)
    except ZrunError:
        return False
    return True


def find(job: str | None, coordinator: str | None = None) -> Target:
    """JOB = id, unique prefix, or name (newest); None = the newest. Raises NotFoundError, UsageError."""
    address = coordinator or env.get(env.COORDINATOR)
    if address:
        return _find_there(job, address)
    runs = registry.known()
    candidates = [(entry.job, entry.name) for entry in runs]
    chosen = choose(job, candidates)
    entry = next(e for e in runs if e.job == chosen)
    return Target(entry.job, entry.name, RunFolder(entry.folder) if entry.folder.is_dir() else None, entry.coordinator)


def _find_there(job: str | None, address: str) -> Target:
    from zrun.cli.client import Client

    with Client(address, outside_token()) as client:
        jobs = client.jobs()
    chosen = choose(job, [(str(j["job"]), str(j["name"])) for j in jobs])  # they come newest first
    value = next(j for j in jobs if j["job"] == chosen)
    folder = Path(str(value.get("run_dir") or "/nonexistent"))
    return Target(chosen, str(value["name"]), RunFolder(folder) if folder.is_dir() else None, address)


def choose(job: str | None, candidates: list[tuple[str, str]]) -> str:
    """The id meant by `job` among (id, name) pairs, newest first."""
    if job is None:
        if not candidates:
            raise NotFoundError("there is no job yet", "`zrun launch FILE` starts one")
        return candidates[0][0]
    for found, _ in candidates:
        if found == job:
            return found
    for found, name in candidates:
        if name == job:
            return found
    begins = [found for found, _ in candidates if found.startswith(job)]
    if len(begins) > 1:
        raise UsageError(f"{job!r} begins {len(begins)} jobs: {', '.join(begins[:5])}", "give more of the id")
    if not begins:
        raise NotFoundError(f"no job is called {job!r}", "`zrun ls` shows all")
    return begins[0]
