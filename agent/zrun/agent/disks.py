"""Disks that have no room, in words. Looks once and not for long; knows nothing about jobs."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TOO_LITTLE: Final = 64 << 10
"""Bytes; what a file system keeps back (a block or two) is no room."""


LIMIT_S: Final = 0.5
"""A file system that does not answer (its server is gone) is not waited for."""


def full_disks(places: Iterable[Path]) -> list[str]:
    """`/data (0 bytes free of 1048576)`: those on which nothing can be written, each file system once."""
    found: list[str] = []
    look = threading.Thread(target=lambda: found.extend(_look(places)), name="zrun-disks", daemon=True)
    look.start()
    look.join(LIMIT_S)
    return list(found)


def _look(places: Iterable[Path]) -> list[str]:
    told: dict[int, str] = {}
    for wanted in places:
        place = next((folder for folder in (wanted, *wanted.parents) if folder.exists()), wanted)
        try:
            disk, device = os.statvfs(place), place.stat().st_dev
        except OSError:
            continue
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        if size and free < TOO_LITTLE:
            told.setdefault(device, f"{place} ({free} bytes free of {size})")
        elif disk.f_files and not disk.f_favail:
            told.setdefault(device, f"{place} (no inodes free of {disk.f_files})")
    return list(told.values())
