"""Writing a small file so that a reader sees the old one or the new one, whatever dies meanwhile."""

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Temporary file beside it, fsync, rename, fsync of the folder. Raises OSError; leaves no temporary file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_folder(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """As `write_bytes`, with the value as indented JSON."""
    write_bytes(path, json_bytes(value), mode=mode)


def json_bytes(value: Any) -> bytes:
    """Indented, for people too."""
    return (json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n").encode()


def create_exclusive(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Make a file that must not exist yet (FileExistsError), fsynced, for tokens and claims."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` survive a power cut; file systems without it are left alone."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse fsync on folders; the rename itself is atomic all the same
    finally:
        os.close(handle)
