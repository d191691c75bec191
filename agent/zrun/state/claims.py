"""Which attempt may write: a claim file before its first step, looked at again at every commit.

A writer of a dead attempt that wakes up late finds a higher claim and stops. Rank 0 alone does these things.
"""

import contextlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from zrun.core.durable import create_exclusive
from zrun.core.errors import CheckpointError
from zrun.core.manifest import CONTROL, claims, scan
from zrun.core.private import make_folder
from zrun.state.disk_errors import room


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim file as far as it can be read; an unreadable one belongs to no job."""

    attempt: int
    job: str | None


def read_claims(directory: Path) -> list[Claimed]:
    """All claims, lowest attempt first. Raises OSError."""
    found: list[Claimed] = []
    for attempt in sorted(claims(directory)):
        try:
            job = json.loads((directory / CONTROL / f"claim-{attempt}").read_text()).get("job")
        except (ValueError, AttributeError):
            job = None
        found.append(Claimed(attempt, job))
    return found


@dataclass(frozen=True, slots=True)
class Claim:
    """Of this attempt, as it was made: `device` is the file system it lies on."""

    job: str
    attempt: int
    resumed_from: int
    device: int

    def text(self) -> bytes:
        return json.dumps({"resumed_from": self.resumed_from, "job": self.job, "attempt": self.attempt}).encode()


def claim(directory: Path, job: str, attempt: int, resumed_from: int) -> Claim:
    """Make the claim. Attempt 0 takes the next free number (a job without an agent).

    CheckpointError if this attempt, or a newer one, was claimed before. Raises OSError.
    """
    make_folder(directory / CONTROL)
    newest = max((c.attempt for c in read_claims(directory)), default=0)
    number = attempt or newest + 1
    if number < newest:
        raise CheckpointError(f"attempt {number} is not the newest: attempt {newest} has claimed {directory}")
    made = Claim(job, number, resumed_from, _device(directory))
    try:
        create_exclusive(directory / CONTROL / f"claim-{number}", made.text())
    except FileExistsError:
        raise CheckpointError(f"attempt {number} has already claimed {directory}: is it running twice?") from None
    return made


def renewed(directory: Path, made: Claim) -> bool:
    """See to it that this attempt's claim lies where it was made; True if somebody had removed the folder.

    CheckpointError if that is now another file system (what was mounted there is gone, and its mount point would be
    filled), or if the folder is another run's by now. Raises OSError.
    """
    path = directory / CONTROL / f"claim-{made.attempt}"
    if path.exists():
        return False
    if _device(directory) != made.device:
        raise CheckpointError(
            f"cannot write, the file system is gone: {directory} is no longer on the one it was on ({room(directory)})",
            hint="mount it again; saves go on by themselves once it is there",
        )
    if directory.is_dir() and read_claims(directory):
        raise CheckpointError(f"attempt {made.attempt} has lost {directory}: another run has claimed it")
    make_folder(directory / CONTROL)
    create_exclusive(path, made.text())
    return True


def _device(directory: Path) -> int:
    """Of the folder, or of the nearest one above it that is there. Raises OSError."""
    for folder in (directory, *directory.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return folder.stat().st_dev
    return 0  # a path that leads nowhere at all


def refuse_if_overtaken(directory: Path, attempt: int) -> None:
    """CheckpointError if an attempt after this one has claimed the folder."""
    newest = max(claims(directory), default=0)
    if newest > attempt:
        raise CheckpointError(f"attempt {attempt} is not the newest: attempt {newest} has claimed {directory}")


def others(directory: Path, job: str) -> list[Path]:
    """Checkpoints and claims in the folder that belong to another job. Raises OSError."""
    foreign = [f.path for f in scan(directory) if f.manifest is not None and f.manifest.job != job]
    return foreign + [
        directory / CONTROL / f"claim-{c.attempt}" for c in read_claims(directory) if c.job not in {job, None}
    ]


def put_away(directory: Path, entries: list[Path]) -> Path:
    """Move another job's checkpoints and claims into a folder of their own, where they stay whole. Raises OSError."""
    target = directory / CONTROL / f"before-{secrets.token_hex(3)}"
    make_folder(target / CONTROL)
    for entry in entries:
        entry.rename(target / entry.relative_to(directory))
    return target
