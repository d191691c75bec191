"""Which processes are the job's: below its keeper, in its cgroup, bearing its mark, or written down as having none.

A process can leave its session, its parent and its environment behind, but not all that is looked at here. Standard
library only; ends nothing by itself.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from zrun.agent import proc_table
from zrun.agent.cgroup import JobCgroup
from zrun.agent.keeper_lock import Inventory
from zrun.agent.proc_table import Proc

MARK: Final = b"ZRUN_MARK"
PASTS_KEPT: Final = 20_000


class JobProcesses:
    """Also remembers every process that it has seen: what they made may outlive them."""

    def __init__(self, job: str, inventory: Inventory) -> None:
        self._job = job.encode() + b"/"
        self.inventory = inventory
        self.cgroup: JobCgroup | None = None
        self.earlier = [JobCgroup(Path(folder)) for folder in inventory.cgroups]
        self._spared = {os.getpid(), *proc_table.ancestors(os.getpid())}
        self.seen: dict[int, int] = {}
        """Pid -> start time, the newest bearer of a pid."""
        self._marked: set[Proc] = set()

    def living(self) -> set[Proc]:
        """By every sign there is; looks at all processes of the machine."""
        found = self._near()
        marks = [(self._job, b"/" + boot.encode()) for boot in self.inventory.boots]
        found |= set(proc_table.bearing(MARK, marks))
        found |= {proc for proc in self.inventory.strays if proc_table.is_alive(proc)}
        self._remember(found)
        return {proc for proc in found if proc.pid not in self._spared}

    def look(self) -> set[Proc]:
        """By the cheap signs. Those without a mark are put into the inventory, for a successor would not find them."""
        found = {proc for proc in self._near() if proc.pid not in self._spared}
        self._remember(found)
        new = found - self._marked
        bare = {p for p in new if not proc_table.environ(p.pid).get(MARK, b"").startswith(self._job)}
        self._marked = (self._marked & found) | (new - bare)
        self.inventory.unmarked = [(proc.pid, proc.started) for proc in sorted(bare, key=lambda p: p.pid)]
        return found

    def spare(self, pid: int) -> None:
        """It is ours, but no part of what is running."""
        self._spared.add(pid)

    def take(self, pid: int) -> None:
        """It is part of what is running, from now on."""
        self._spared.discard(pid)

    def kill_groups(self) -> None:
        """What is in the cgroups, all at once where the kernel can."""
        for group in (self.cgroup, *self.earlier):
            if group is not None:
                group.kill()

    def remember(self, pid: int) -> None:
        """One that came to us as an orphan: it may end before the next look."""
        found = proc_table.stat(pid)
        if found is not None:
            self.seen[pid] = found.started

    def _near(self) -> set[Proc]:
        """Below this process, or in a cgroup of the job."""
        pids = proc_table.descendants(os.getpid())
        for group in (self.cgroup, *self.earlier):
            pids += group.pids() if group is not None else []
        return {found.proc for pid in set(pids) if (found := proc_table.stat(pid)) is not None and found.alive}

    def _remember(self, procs: Iterable[Proc]) -> None:
        for proc in procs:
            self.seen.pop(proc.pid, None)
            self.seen[proc.pid] = proc.started
        while len(self.seen) > PASTS_KEPT:
            del self.seen[next(iter(self.seen))]
