"""Files and folders for nobody but their owner: 0600 and 0700 from their first moment on, whatever the umask.

The umask itself is left alone, because ranks inherit it. Knows nothing about what lies where.
"""

import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """With all parents that are missing, 0700 each; what is there already stays as it is. Raises OSError."""
    missing: list[Path] = []
    step = folder
    while not step.exists():
        missing.append(step)
        step = step.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not missing and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder")


def open_append(path: Path) -> int:
    """A descriptor at the end of the file, made 0600 if it is not there. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def write_text(path: Path, text: str) -> None:
    """In place of what was there; for files that nobody reads while they are written. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
