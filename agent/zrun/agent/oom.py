"""The kernel's own count of processes it killed for want of memory in this process's cgroup (v1 or v2); best effort."""

from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")


def counter_files() -> list[Path]:
    """Where the count may stand, most exact first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if controllers == "":
            files += [CGROUPS / inside / "memory.events", CGROUPS / "unified" / inside / "memory.events"]
        elif "memory" in controllers.split(","):
            root = CGROUPS / "memory"
            files += [root / inside / "memory.oom_control", root / "memory.oom_control"]
    return files


class OomCounter:
    """Kills since it was made, or since the last `moved`."""

    def __init__(self, files: list[Path] | None = None) -> None:
        self._files = counter_files() if files is None else files
        self._count = self._read()

    def moved(self) -> bool:
        """Has the kernel killed somebody here since the last call?"""
        count = self._read()
        moved = count > self._count
        self._count = count
        return moved

    def _read(self) -> int:
        for file in self._files:
            try:
                text = file.read_text()
            except OSError:
                continue
            for line in text.splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdigit():
                    return int(value)
        return 0
