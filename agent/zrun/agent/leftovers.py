"""What dead processes of a job left outside its folders: shared memory, sockets' folders, System V segments; and away.

Something is removed only if it is provably the job's: a rank noted that it made it, a process of the job had it mapped
for writing, it is named by the pid of one, or one of them listened in it. It must have come into being during the job,
belong to this user, and be held by no living process. Folders of the user's own are never looked into. Standard library
only; knows nothing about ranks and ends nothing.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from zrun.agent import kernel_tables, proc_table
from zrun.agent.proc_table import Proc
from zrun.core.segment_notes import SegmentNote

NAMED_BY_PID: Final = re.compile(
    r"(?:torch_|__KMP_REGISTERED_LIB_|joblib_memmapping_folder_|sem\.loky-|loky-)(\d+)(?:[_-]|$)"
)
"""How libraries name what they put into shared memory or temporary folders: by who made it."""
LISTENING_PLACES: Final = re.compile(r"(?:pymp-|torch-shm-dir-)[^/]+")
"""Temporary folders of Python's multiprocessing and of torch's shared memory manager, each with sockets in it."""
TEMP: Final = Path("/tmp")  # noqa: S108 - where libraries put theirs unless TMPDIR says otherwise
SEGMENT: Final = "shared memory"
FOLDER: Final = "temporary folder"
CLOCKS_S: Final = 1.0
"""The kernel's coarse clock and the count of ticks since boot differ by less."""

Key = tuple[str, int, int]
"""Path, device, inode: a later file of the same name is another."""


class Leftovers:
    """`since` (unix seconds): what is older was there before the job. `seen`: pid -> start time of its processes."""

    def __init__(self, shm: Path, since: float, seen: Mapping[int, int]) -> None:
        self._shm, self._temps, self._since, self._seen = shm, [TEMP], since, seen
        self._ours: dict[Key, str] = {}
        self._before: set[Key | None] = set()
        self._examined: dict[Key, int] = {}

    def begin_anew(self, now: float) -> None:
        """Nothing of the job is alive or lies about: what is there is somebody else's."""
        self._since = now
        self._before = {_key(path) for folder in (self._shm, *self._temps) for path in _entries(folder)}
        self._examined.clear()

    def also_in(self, temp: Path) -> None:
        if temp not in self._temps:
            self._temps.append(temp)

    def noted(self, notes: Iterable[SegmentNote]) -> None:
        """By the rank that made them, at that moment."""
        for note in notes:
            path = self._shm / note.name
            key = _key(path)
            segment = path.parent == self._shm
            if key is not None and key[2] == note.inode and (segment or LISTENING_PLACES.fullmatch(path.name)):
                self._ours[key] = SEGMENT if segment else FOLDER

    def look(self, procs: Collection[Proc], *, closely: bool = False) -> None:
        """While they live: what of the things nobody has claimed is theirs. Costs next to nothing if there is none."""
        unclaimed = {key[1:]: key for path in _entries(self._shm) if (key := self._unclaimed(path, closely=closely))}
        bound = kernel_tables.unix_sockets(LISTENING_PLACES, self._temps)
        sockets = {inode: key for inode, folder in bound.items() if (key := self._unclaimed(folder, closely=closely))}
        for proc in procs if unclaimed or sockets else ():
            for place in kernel_tables.shared_writable(proc.pid) if unclaimed else ():
                if place in unclaimed:
                    self._ours[unclaimed[place]] = SEGMENT
            for inode in kernel_tables.sockets_of(proc.pid) if sockets else ():
                if inode in sockets:
                    self._ours[sockets[inode]] = FOLDER

    def sweep(self) -> tuple[list[str], list[str]]:
        """(what was removed, what could not be), in words. Called when no process of the job is alive."""
        for path in [*_entries(self._shm), *(entry for temp in self._temps for entry in _entries(temp))]:
            self._claim_by_name(path)
        mine = {key: what for key, what in self._ours.items() if self._may_go(key)}
        held = kernel_tables.held(key[1:] for key in mine) if mine else set()
        gone, left = list[str](), list[str]()
        for key, what in mine.items():
            if key[1:] not in held:
                _remove(Path(key[0]), what, gone, left)
        self._ours = {key: what for key, what in mine.items() if key[1:] in held}
        gone += self._sweep_system_v()
        return gone, left

    def _unclaimed(self, path: Path, *, closely: bool) -> Key | None:
        """One seen often and never with a process of ours is looked for ever more rarely, until it matters."""
        key = _key(path)
        if key is None or key in self._ours or key in self._before or not self._is_young(path):
            return None
        times = self._examined[key] = self._examined.get(key, 0) + 1
        return key if closely or times & (times - 1) == 0 else None

    def _claim_by_name(self, path: Path) -> None:
        named = NAMED_BY_PID.match(path.name)
        key = _key(path) if named else None
        if named and key is not None and self._made_by(int(named[1]), kernel_tables.born(path)):
            self._ours.setdefault(key, SEGMENT if path.parent == self._shm else FOLDER)

    def _made_by(self, pid: int, at: float) -> bool:
        """Was this pid a process of ours at that time?"""
        started = self._seen.get(pid)
        if started is None or at < proc_table.unix_start(started) - CLOCKS_S:
            return False
        now = proc_table.stat(pid)
        return now is None or now.started == started or at < proc_table.unix_start(now.started) - CLOCKS_S

    def _may_go(self, key: Key) -> bool:
        path = Path(key[0])
        return _key(path) == key and self._is_young(path)

    def _is_young(self, path: Path) -> bool:
        return kernel_tables.born(path) >= self._since - CLOCKS_S

    def _sweep_system_v(self) -> list[str]:
        return [
            f"System V shared memory {segment.id} ({_size(segment.size)})"
            for segment in kernel_tables.system_v()
            if segment.uid == os.geteuid() and not segment.attached and self._made_by(segment.creator, segment.changed)
            and kernel_tables.remove_system_v(segment.id)
        ]  # fmt: skip


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []


def _key(path: Path) -> Key | None:
    """Of a file or folder of this user's own; a link or a device is nobody's leftover."""
    try:
        found = path.lstat()
    except OSError:
        return None
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return (str(path), found.st_dev, found.st_ino) if plain and found.st_uid == os.geteuid() else None


def _remove(path: Path, what: str, gone: list[str], left: list[str]) -> None:
    with contextlib.suppress(OSError):
        size = path.lstat().st_size
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        words = f"{what} {path}"
    else:
        with contextlib.suppress(OSError):
            path.unlink()
        words = f"{what} {path} ({_size(size)})"
    (left if path.exists() else gone).append(f"{words} cannot be removed" if path.exists() else words)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
