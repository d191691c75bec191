"""The seal of a checkpoint that another program wrote: the digest of each of its files, written last by zrun.

Such a checkpoint is a folder (the seal lies in it) or a single file (the seal lies beside it, hidden). What has a seal
is as whole as on the day it was sealed, or `flaw` says what is not; what has none may be a save that was cut short.
Knows nothing about what the files mean.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from zrun.core.durable import fsync_folder, write_bytes
from zrun.core.errors import CheckpointError

FORMAT: Final = 1
_IN_FOLDER: Final = "zrun-seal.json"
_BESIDE: Final = ".zrun-seal"
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class SealedFile:
    """`digest` is `sha256:hex` of all its bytes."""

    path: str
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Seal:
    """`facts`: JSON values that belong to the checkpoint and stand nowhere else in it."""

    job: str
    attempt: int
    step: int
    world_size: int
    files: list[SealedFile]
    facts: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def place_of(checkpoint: Path) -> Path:
    """Where the seal of a folder or file is."""
    if checkpoint.is_dir():
        return checkpoint / _IN_FOLDER
    return checkpoint.with_name(f".{checkpoint.name}{_BESIDE}")


def close(
    checkpoint: Path, *, job: str, attempt: int, step: int, world_size: int, facts: dict[str, Any] | None = None
) -> Seal:
    """Make every file durable, digest it, then write the seal. Raises OSError."""
    files = _files(checkpoint)
    with ThreadPoolExecutor(_THREADS) as pool:
        sealed = list(pool.map(_sealed, files, [_name(checkpoint, file) for file in files]))
    for folder in {file.parent for file in files}:
        fsync_folder(folder)
    seal = Seal(job, attempt, step, world_size, sealed, facts or {})
    text = _text(asdict(seal))
    write_bytes(place_of(checkpoint), json.dumps({"digest": _digest(text), "seal": asdict(seal)}).encode())
    return seal


def read(checkpoint: Path) -> Seal | None:
    """None: there is no seal. Raises OSError, or CheckpointError for what is none."""
    try:
        text = place_of(checkpoint).read_text()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(text)
        held = value["seal"]
        if value["digest"] != _digest(_text(held)):
            raise CheckpointError("its seal is not as it was written")
        if held["format"] != FORMAT:
            raise CheckpointError(f"seal of format {held['format']}; this version reads {FORMAT}")
        return Seal(**(held | {"files": [SealedFile(**file) for file in held["files"]]}))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"its seal is damaged: {type(error).__name__}: {error}") from error


def flaw(checkpoint: Path, seal: Seal, *, deep: bool) -> str | None:
    """What is not as it was sealed, in words; None if all is. `deep` reads every byte, else sizes are compared."""
    try:
        for file in seal.files:
            path = checkpoint / file.path if checkpoint.is_dir() else checkpoint
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                return f"{file.path} is missing"
            if size != file.bytes:
                return f"{file.path} has {size} bytes, not {file.bytes}"
        if deep:
            paths = [checkpoint / file.path if checkpoint.is_dir() else checkpoint for file in seal.files]
            with ThreadPoolExecutor(_THREADS) as pool:
                for file, digest in zip(seal.files, pool.map(_digest_of, paths), strict=True):
                    if digest != file.digest:
                        return f"{file.path}: digest mismatch: its bytes are not the ones that were written"
    except OSError as error:
        return f"{error.filename or checkpoint}: {error.strerror or error}"
    return None


def forget_orphans(folder: Path) -> None:
    """Remove seals of single files that are gone. Raises OSError."""
    for entry in folder.glob(f".*{_BESIDE}"):
        if not (folder / entry.name[1 : -len(_BESIDE)]).exists():
            entry.unlink(missing_ok=True)


def _files(checkpoint: Path) -> list[Path]:
    if not checkpoint.is_dir():
        return [checkpoint]
    return sorted(file for file in checkpoint.rglob("*") if file.is_file() and file != place_of(checkpoint))


def _name(checkpoint: Path, file: Path) -> str:
    return file.name if file == checkpoint else file.relative_to(checkpoint).as_posix()


def _sealed(file: Path, name: str) -> SealedFile:
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return SealedFile(name, file.stat().st_size, _digest_of(file))


def _digest_of(file: Path) -> str:
    with file.open("rb") as handle:
        return f"sha256:{hashlib.file_digest(handle, 'sha256').hexdigest()}"


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
