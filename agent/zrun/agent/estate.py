"""All that one job has on this node, processes and what they leave, and its end: killed, waited for, swept.

Standard library only; the keeper's hands. Knows nothing about the agent or why something ends.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.agent import cgroup, proc_table
from zrun.agent.child_watch import ChildWatch, kill
from zrun.agent.keeper_lock import KeeperLock, this_machine
from zrun.agent.leftovers import Leftovers
from zrun.agent.proc_table import Proc
from zrun.agent.processes import JobProcesses
from zrun.core.segment_notes import read_notes

KILL_LIMIT_S: Final = 5.0
"""What cannot be killed for so long (state D) is reported as left behind; it is tried on."""
QUICK_S: Final = 0.005
WITH_CGROUP: Final = "cgroup"
WITHOUT: Final = "session and mark"


@dataclass(frozen=True, slots=True)
class Swept:
    """In words."""

    left: list[str]
    """What could not be ended or removed."""
    removed: list[str]


class Estate:
    """Takes over what the keepers before it left, as their inventory says."""

    def __init__(self, job: str, boot: str, shm: Path, lock: KeeperLock, holder: Proc) -> None:
        self._job, self._boot, self._shm, self._lock = job, boot, shm, lock
        inventory = self._inventory = lock.read()
        inventory.machine, inventory.holder = this_machine(), (holder.pid, holder.started)
        inventory.since = inventory.since or time.time()
        inventory.boots = [*dict.fromkeys([*inventory.boots, boot])]
        self._processes = JobProcesses(job, inventory)
        self._leftovers = Leftovers(shm, inventory.since, self._processes.seen)
        self._written = ""
        self._write()
        self.stuck: set[Proc] = set()
        """Could not be ended when it was last tried."""

    def begin(self, *, grouped: bool) -> str:
        """Once what was taken over is gone. Returns by which means processes are found from now on."""
        earlier = self._processes.earlier = [group for group in self._processes.earlier if not group.remove()]
        group = self._processes.cgroup = cgroup.make(f"zrun-{self._job}-{self._boot}") if grouped else None
        self._inventory.since = time.time()
        self._inventory.cgroups = [str(one.folder) for one in (group, *earlier) if one is not None]
        self._leftovers.begin_anew(self._inventory.since)
        self._write()
        return WITH_CGROUP if group is not None else WITHOUT

    def close(self) -> None:
        groups = [group for group in (self._processes.cgroup, *self._processes.earlier) if group is not None]
        self._inventory.cgroups = [str(group.folder) for group in groups if not group.remove()]
        self._write()

    def enter(self) -> None:
        """Called in a new process of the job, before it becomes what it is to be."""
        if self._processes.cgroup is not None:
            with contextlib.suppress(OSError):  # then it is found by its other signs
                self._processes.cgroup.enter()

    def spare(self, pid: int) -> None:
        """This process is to outlive an attempt: only `take` makes it part of one."""
        self._processes.spare(pid)

    def forget(self, pid: int) -> None:
        """It is to be ended with everything else, if it has not ended."""
        self._processes.take(pid)

    def take(self, pid: int) -> None:
        self._processes.take(pid)
        if self._processes.cgroup is not None:
            with contextlib.suppress(OSError):  # then it is found by its other signs
                self._processes.cgroup.take(pid)

    def uses_temp(self, folder: str) -> None:
        self._leftovers.also_in(Path(folder))

    def reaped(self, pid: int) -> None:
        self._processes.remember(pid)

    def look_around(self) -> None:
        """Every so often: what there is now, while it can be told whose it is."""
        self._look(closely=False)
        self._write()

    def _look(self, *, closely: bool) -> str:
        """Whatever is odd about this machine's tables must end no job, and keep nothing alive. What went wrong."""
        try:
            procs = self._processes.living() if closely else self._processes.look()
            for folder in self._own_folders(self._boot):
                self._leftovers.noted(read_notes(folder))
            self._leftovers.look(procs, closely=closely)
        except Exception as error:
            return f"what the job left outside its folders cannot be told ({type(error).__name__}: {error})"
        return ""

    def _own_folders(self, boot: str) -> list[Path]:
        return list(self._shm.glob(f"zrun-{self._job}-*-{boot[:4]}"))

    def end_all(self, watch: ChildWatch, waiting: Callable[[], None]) -> Swept:
        """Everything at once and until it is gone, then what it left. `waiting` is called while it takes time."""
        trouble = self._look(closely=True)
        self.stuck = self._kill(watch, waiting)
        stuck = [f"{proc_table.describe(proc)} cannot be killed" for proc in sorted(self.stuck, key=lambda p: p.pid)]
        removed, left = self._sweep()
        return Swept([*stuck, *left, *([trouble] if trouble else [])], removed)

    def freed(self) -> bool:
        """Did one that could not be ended end after all? It is tried again."""
        before = len(self.stuck)
        kill(self.stuck)
        self.stuck = {proc for proc in self.stuck if proc_table.is_alive(proc)}
        return len(self.stuck) < before

    def _kill(self, watch: ChildWatch, waiting: Callable[[], None]) -> set[Proc]:
        """Returns those that could not be ended in time; those known for that are not waited for again."""
        deadline = time.monotonic() + KILL_LIMIT_S
        watch.expect_none()
        while True:
            ours = self._processes.living()
            known = bool(ours) and ours <= self.stuck
            if known or not (ours or watch) or time.monotonic() >= deadline:
                watch.give_up(ours)
                return ours
            self._processes.kill_groups()
            kill(ours)
            time.sleep(QUICK_S)
            watch.woken_unix = time.time()
            watch.turn(watch.all_pidfds())
            waiting()

    def _sweep(self) -> tuple[list[str], list[str]]:
        """(removed, left): first what lies in folders of ours, which tell what lies elsewhere."""
        left: list[str] = []
        for boot in self._inventory.boots:
            for folder in self._own_folders(boot):
                self._leftovers.noted(read_notes(folder))
                shutil.rmtree(folder, ignore_errors=True)
                if folder.exists():
                    left.append(f"{folder} cannot be removed")
        removed, kept = self._leftovers.sweep()
        return removed, left + kept

    def _write(self) -> None:
        if (now := repr(self._inventory)) != self._written:
            self._written = now
            self._lock.write(self._inventory)
