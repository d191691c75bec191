"""How much memory this process may still take: of the machine, and of every cgroup around it (v1 and v2).

Knows nothing about what it is wanted for.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2: Final = ("memory.max", "memory.current")


def free_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes. What neither the machine nor a cgroup bounds counts as boundless."""
    return min([1 << 62, *_of_machine(proc), *_of_cgroups(proc, cgroups)])


def _of_machine(proc: Path) -> Iterator[int]:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        yield next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return  # a system without it: what cannot be had is refused by the kernel


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, place = (*line.split(":", 2), "", "")[:3]
        if kinds == "":
            yield from _up(cgroups, place, _V2)
        elif "memory" in kinds.split(","):
            yield from _up(cgroups / "memory", place, _V1)


def _up(root: Path, place: str, names: tuple[str, str]) -> Iterator[int]:
    """From the innermost one up to what is seen as the root: in a container that is the container's own."""
    folder = root / place.strip("/")
    for around in (folder, *folder.parents):
        try:
            limit, used = ((around / name).read_text().strip() for name in names)
            yield max(0, int(limit) - int(used))
        except (OSError, ValueError):
            pass  # no such cgroup here, or no limit ("max")
        if around == root:
            return
