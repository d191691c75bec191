"""Who has what mapped, open or bound, by the kernel's own tables: mappings, sockets, System V segments, birth times.

Standard library only; knows nothing about jobs.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.agent import proc_table

Place = tuple[int, int]
"""Device and inode."""

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_STATX_BTIME: Final = 0x800
_STATX_SIZE: Final = 256
_BORN_AT: Final = 80
"""Where struct statx keeps the birth time: seconds, then nanoseconds."""
_IPC_RMID: Final = 0
_libc: Final = ctypes.CDLL(None, use_errno=True)


def born(path: Path) -> float:
    """Unix seconds at which it was made; where the file system keeps no such time, of its last change. 0: gone."""
    told = ctypes.create_string_buffer(_STATX_SIZE)
    statx = getattr(_libc, "statx", None)
    if statx is not None:
        statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, told)
    if int.from_bytes(told.raw[:4], sys.byteorder) & _STATX_BTIME:
        seconds = int.from_bytes(told.raw[_BORN_AT : _BORN_AT + 8], sys.byteorder, signed=True)
        return seconds + int.from_bytes(told.raw[_BORN_AT + 8 : _BORN_AT + 12], sys.byteorder) / 1e9
    try:
        return path.lstat().st_ctime
    except OSError:
        return 0.0


def shared_writable(pid: int) -> set[Place]:
    """Files that the process shares memory through."""
    return {place for access, place in _mappings(pid) if access[1] == "w" and access[3] == "s"}


def held(places: Iterable[Place]) -> set[Place]:
    """Those of `places` that any process, as far as it may be looked at, has mapped or open."""
    wanted = set(places)
    found: set[Place] = set()
    for pid in proc_table.pids():
        if wanted <= found:
            break
        found |= wanted & {place for _, place in _mappings(pid)}
        found |= wanted & _open_files(pid)
    return found


def _mappings(pid: int) -> list[tuple[str, Place]]:
    try:
        lines = (proc_table.PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found: list[tuple[str, Place]] = []
    for line in lines:
        _, access, _, device, inode, *_ = line.split(None, 5)
        if inode != "0":
            major, _, minor = device.partition(":")
            found.append((access, (os.makedev(int(major, 16), int(minor, 16)), int(inode))))
    return found


def _descriptors(pid: int) -> list[Path]:
    folder = proc_table.PROC / str(pid) / "fd"
    try:
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []


def _open_files(pid: int) -> set[Place]:
    found: set[Place] = set()
    for path in _descriptors(pid):
        try:
            status = path.stat()
        except OSError:
            continue  # closed meanwhile
        found.add((status.st_dev, status.st_ino))
    return found


def unix_sockets(folder: re.Pattern[str], below: Iterable[Path]) -> dict[int, Path]:
    """Inode -> folder, of every socket bound to a path in a folder of such a name directly in one of `below`."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return {}
    places = set(below)
    found: dict[int, Path] = {}
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) < 8 or not fields[7].startswith("/"):
            continue
        place = Path(fields[7]).parent
        if place.parent in places and folder.fullmatch(place.name):
            found[int(fields[6])] = place
    return found


def sockets_of(pid: int) -> set[int]:
    """Inodes of its open sockets."""
    found: set[int] = set()
    for path in _descriptors(pid):
        try:
            target = os.readlink(path)  # noqa: PTH115 - no path, a name
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


@dataclass(frozen=True, slots=True)
class SystemV:
    """A segment of System V shared memory."""

    id: int
    size: int
    creator: int
    """Pid."""
    attached: int
    uid: int
    changed: float


def system_v() -> list[SystemV]:
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    except OSError:
        return []
    names = lines[0].split() if lines else []
    rows = [dict(zip(names, map(int, line.split()), strict=False)) for line in lines[1:]]
    return [
        SystemV(row["shmid"], row["size"], row["cpid"], row["nattch"], row["cuid"], float(row["ctime"])) for row in rows
    ]


def remove_system_v(segment: int) -> bool:
    return bool(_libc.shmctl(segment, _IPC_RMID, None) == 0)
