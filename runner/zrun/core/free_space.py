"""How much room a disk has. Knows nothing about what is to be written."""

import contextlib
import shutil
from pathlib import Path


def free_bytes(path: Path) -> int:
    """Bytes that may still be written below `path`, which need not exist yet; -1 where nobody can say."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return -1
