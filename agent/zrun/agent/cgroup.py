"""A cgroup of one job's own, below the one its keeper runs in: whatever a process of the job does, it stays in there.

Where no cgroup can be made (a container with read-only ones, another owner) the job runs without, and nothing here
fails. Standard library only; knows nothing about ranks, marks or sessions. No controller is switched on and no
hierarchy that counts memory is touched: this is for finding and ending processes alone.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

V1_HIERARCHIES: Final = ("freezer", "pids")
"""Of the old kind, those in which a group of ours changes nothing for its processes."""


class JobCgroup:
    """A folder of the cgroup file system; also one that an earlier keeper made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def enter(self) -> None:
        """This process and all it will start. Raises OSError."""
        (self.folder / "cgroup.procs").write_text("0")

    def take(self, pid: int) -> None:
        """Another process of ours. Raises OSError."""
        _write(self.folder / "cgroup.procs", str(pid))

    def pids(self) -> list[int]:
        """Also of groups that the job made inside of it."""
        found: list[int] = []
        for group in self._groups():
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        return found

    def kill(self) -> None:
        """All at once where the kernel can (5.14, the new kind); and what was frozen inside is let go, to die."""
        with contextlib.suppress(OSError):
            _write(self.folder / "cgroup.kill", "1")
        for group in self._groups():
            with contextlib.suppress(OSError):
                _write(group / "freezer.state", "THAWED")

    def remove(self, within_s: float = 0.5) -> bool:
        """True if it is gone; a group with a process in it stays. One that has just died may count for a moment."""
        deadline = time.monotonic() + within_s
        while True:
            for group in reversed(list(self._groups())):
                with contextlib.suppress(OSError):
                    group.rmdir()
            if not self.folder.exists():
                return True
            if self.pids() or time.monotonic() >= deadline:
                return False
            time.sleep(0.01)

    def _groups(self) -> Iterator[Path]:
        """The outermost first."""
        yield self.folder
        for place, folders, _ in os.walk(self.folder):
            yield from (Path(place) / name for name in folders)


def make(name: str) -> JobCgroup | None:
    """The first place where a process can really be put into a group of this name; None where there is no such."""
    for parent in own_folders():
        group = JobCgroup(parent / name)
        try:
            group.folder.mkdir(mode=0o755)
        except OSError:
            continue
        if _takes(group):
            return group
        group.remove()
    return None


def own_folders() -> list[Path]:
    """Where this process is in the hierarchies that can be used, the new kind first."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found: list[Path] = []
    for kind in ("", *V1_HIERARCHIES):
        for _, controllers, path in groups:
            if kind in controllers.split(","):
                found += [place for mount in mounts if (place := _below(mount, kind, path)) is not None]
    return list(dict.fromkeys(found))


def _below(mount: list[str], kind: str, path: str) -> Path | None:
    """The folder of the group `path` in this mount, if the mount shows it."""
    after = mount.index("-")
    root, point, fstype, options = mount[3], mount[4], mount[after + 1], mount[after + 3]
    fits = fstype == "cgroup" and kind in options.split(",") if kind else fstype == "cgroup2"
    if not fits or ".." in Path(path).parts or not Path(path).is_relative_to(root):
        return None
    return Path(point.replace("\\040", " ")) / Path(path).relative_to(root)


def _takes(group: JobCgroup) -> bool:
    """Try it with a process that does nothing else: a group may be there and yet take nobody."""
    child = os.fork()
    if child == 0:
        try:
            group.enter()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _write(path: Path, text: str) -> None:
    """Never makes the file: it is the kernel's, or it is not there."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
