"""Which attempt may write: a claim file before its first step, looked at again at every commit.

A writer of a dead attempt that wakes up late finds a higher claim and stops. Rank 0 alone does these things.
"""

import json
import secrets
from dataclasses import dataclass, replace

from zrun.core import storage
from zrun.core.errors import CheckpointError
from zrun.core.manifest import CONTROL, claims, scan
from zrun.core.place import Place, within
from zrun.state.disk_errors import room


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim file as far as it can be read; an unreadable one belongs to no job."""

    attempt: int
    job: str | None


def read_claims(directory: Place) -> list[Claimed]:
    """All claims, lowest attempt first. Raises OSError."""
    found: list[Claimed] = []
    for attempt in sorted(claims(directory)):
        try:
            job = json.loads(storage.of(directory).read(_file_of(directory, attempt))).get("job")
        except (ValueError, AttributeError):
            job = None
        found.append(Claimed(attempt, job))
    return found


@dataclass(frozen=True, slots=True)
class Claim:
    """Of this attempt, as it was made: `device` is the file system it lies on.

    `unguarded`: the store could not keep another one from making the same claim at the same moment.
    """

    job: str
    attempt: int
    resumed_from: int
    device: int
    unguarded: bool = False
    by: str = ""
    """So that nobody else's text is the same: who reads it back knows whose it is."""

    def text(self) -> bytes:
        said = {"resumed_from": self.resumed_from, "job": self.job, "attempt": self.attempt, "by": self.by}
        return json.dumps(said).encode()


def _file_of(directory: Place, attempt: int) -> Place:
    return directory / CONTROL / f"claim-{attempt}"


def claim(directory: Place, job: str, attempt: int, resumed_from: int) -> Claim:
    """Make the claim. Attempt 0 takes the next free number (a job without an agent).

    CheckpointError if this attempt, or a newer one, was claimed before. Raises OSError.
    """
    newest = max((c.attempt for c in read_claims(directory)), default=0)
    number = attempt or newest + 1
    if number < newest:
        raise CheckpointError(f"attempt {number} is not the newest: attempt {newest} has claimed {directory}")
    store = storage.of(directory)
    made = Claim(job, number, resumed_from, 0, by=secrets.token_hex(8))
    try:
        guarded = store.create(_file_of(directory, number), made.text())
    except FileExistsError:
        raise CheckpointError(f"attempt {number} has already claimed {directory}: is it running twice?") from None
    return replace(made, device=store.identity(directory), unguarded=not guarded)


def renewed(directory: Place, made: Claim) -> bool:
    """See to it that this attempt's claim lies where it was made; True if somebody had removed the folder.

    CheckpointError if that is now another file system (what was mounted there is gone, and its mount point would be
    filled), or if the folder is another run's by now. Raises OSError.
    """
    path, store = _file_of(directory, made.attempt), storage.of(directory)
    if store.exists(path):
        return False
    if store.identity(directory) != made.device:
        raise CheckpointError(
            f"cannot write, the file system is gone: {directory} is no longer on the one it was on ({room(directory)})",
            hint="mount it again; saves go on by themselves once it is there",
        )
    if read_claims(directory):
        raise CheckpointError(f"attempt {made.attempt} has lost {directory}: another run has claimed it")
    store.create(path, made.text())
    return True


def refuse_if_overtaken(directory: Place, attempt: int) -> None:
    """CheckpointError if an attempt after this one has claimed the folder."""
    newest = max(claims(directory), default=0)
    if newest > attempt:
        raise CheckpointError(f"attempt {attempt} is not the newest: attempt {newest} has claimed {directory}")


def others(directory: Place, job: str) -> list[Place]:
    """Checkpoints and claims in the folder that belong to another job. Raises OSError."""
    foreign = [f.path for f in scan(directory) if f.manifest is not None and f.manifest.job != job]
    return foreign + [_file_of(directory, c.attempt) for c in read_claims(directory) if c.job not in {job, None}]


def put_away(directory: Place, entries: list[Place]) -> Place:
    """Move another job's checkpoints and claims into a folder of their own, where they stay whole. Raises OSError."""
    target = directory / CONTROL / f"before-{secrets.token_hex(3)}"
    for entry in entries:
        storage.of(directory).move(entry, target / within(entry, directory))
    return target
