"""Did the kernel kill a rank for want of memory, and how much memory had it: looked at often, judged at a death.

The kernel counts its kills by cgroup (v1 `memory.oom_control`, v2 `memory.events`), not by process, so a death is its
work only if the count of the rank's own cgroup rose about then, and each count explains one death.
Knows nothing about jobs, nor about what a rank said.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
LOOK_S: Final = 0.1
WINDOW_S: Final = 2.0
"""From the kernel's decision to the death; a big process takes longer, by FREES_BYTES_S."""
FREES_BYTES_S: Final = 2 << 30
AHEAD_S: Final = 0.5
"""A death may be timed a little before the look that saw the count rise."""
_HANDED_ON: Final = (137, 247)
"""128 + 9 and -9: what a script exits with that hands on the end of a child that got SIGKILL."""
_KEPT: Final = 64
_UNLIMITED: Final = 1 << 60


@dataclass(slots=True)
class _Rise:
    """The count was still the old one at `after`, and `left` more at `by`; times are Unix seconds."""

    after: float
    by: float
    left: int


@dataclass(slots=True)
class _Rank:
    peak_bytes: int = 0
    limit_bytes: int = 0
    """Of its cgroup and those above; 0 = none."""
    places: list[list[Path]] = field(default_factory=list)
    """Its cgroup folders, one list a hierarchy, innermost first."""


class MemoryWatch:
    """All ranks of one attempt on this node."""

    def __init__(self, unix: float, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._ranks: dict[int, _Rank] = {}
        self._counts: dict[Path, int] = {}
        self._rises: dict[Path, list[_Rise]] = {}
        self._here = self._places(os.getpid())
        self._looked = self._before = unix
        self._count([self._here])

    def look(self, pids: dict[int, int], unix: float) -> None:
        """Called at each poll; looks at most every LOOK_S."""
        if 0 <= unix - self._looked < LOOK_S:
            return
        for rank, pid in pids.items():
            self._see(self._ranks.setdefault(rank, _Rank()), pid)
        self._at(unix)

    def of(self, rank: int) -> tuple[int, int]:
        """(peak resident bytes, limit of its cgroup in bytes); 0 = not known, none."""
        seen = self._ranks.get(rank, _Rank())
        return seen.peak_bytes, seen.limit_bytes

    def took(self, rank: int, code: int | None, signal: str | None, at: float) -> bool:
        """Did the kernel end the rank at `at`, or a child whose end the rank's own code hands on?"""
        return (signal == "SIGKILL" or code in _HANDED_ON) and self.killed(rank, at, time.time())

    def killed(self, rank: int, at: float, unix: float) -> bool:
        """Was the death at `at` (of the rank, or of a process of its own) the kernel's work? Takes one count."""
        self._at(unix)
        seen = self._ranks.get(rank, _Rank())
        window = WINDOW_S + seen.peak_bytes / FREES_BYTES_S
        for file in self._counters(seen):
            for rise in reversed(self._rises.get(file, [])):
                if rise.left and rise.after <= at + AHEAD_S and rise.by >= at - window:
                    rise.left -= 1
                    return True
        return False

    def _at(self, unix: float) -> None:
        self._before, self._looked = self._looked, unix
        every = [self._here]
        every += [seen.places for seen in self._ranks.values() if seen.places not in every]
        self._count(every)

    def _see(self, rank: _Rank, pid: int) -> None:
        places = self._places(pid)
        peak = _number(self._proc / str(pid) / "status", "VmHWM:") * 1024
        if not peak:
            return  # it has ended: the kernel shows such a process in the root cgroup
        rank.peak_bytes = max(rank.peak_bytes, peak)
        if places and places != rank.places:
            rank.places = places
            rank.limit_bytes = _limit(places)

    def _counters(self, rank: _Rank) -> list[Path]:
        """Of each hierarchy the innermost file that counts: those above it count the kills of others too."""
        places = rank.places or self._here
        found = [file for dirs in places if (file := _innermost(dirs)) is not None]
        return found or [self._proc / "vmstat"]

    def _count(self, of: list[list[list[Path]]]) -> None:
        files = {file for places in of for dirs in places if (file := _innermost(dirs)) is not None}
        for file in files or {self._proc / "vmstat"}:
            count, known = _number(file, "oom_kill"), self._counts.get(file)
            if known is not None and count > known:
                rises = self._rises.setdefault(file, [])
                rises.append(_Rise(self._before, self._looked, count - known))
                del rises[:-_KEPT]
            self._counts[file] = count

    def _places(self, pid: int) -> list[list[Path]]:
        """Of the unified hierarchy and of v1's memory controller; a path that is not ours to see is left out."""
        found: list[list[Path]] = []
        for line in _text(self._proc / str(pid) / "cgroup").splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            inside = Path(path.lstrip("/"))
            tops: tuple[Path, ...] = ()
            if controllers == "":
                tops = (self._cgroups, self._cgroups / "unified")
            elif "memory" in controllers.split(","):
                tops = (self._cgroups / "memory",)
            # Seen from inside a container the path may be the host's: then the mount itself is the cgroup.
            found += [[top / up for up in (inside, *inside.parents)] for top in tops if ".." not in inside.parts]
        return found


def _innermost(folders: list[Path]) -> Path | None:
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            file = folder / name
            if "oom_kill " in _text(file):
                return file
    return None


def _limit(places: list[list[Path]]) -> int:
    told = [
        int(text)
        for folders in places
        for folder in folders
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _text(folder / name).strip()).isdigit()
    ]
    return min((limit for limit in told if limit < _UNLIMITED), default=0)


def _number(file: Path, name: str) -> int:
    """Of the line that begins with the word `name`; 0 without one."""
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
