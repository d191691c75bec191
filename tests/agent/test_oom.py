"""Whose work a SIGKILL was: the kernel's count of the rank's own cgroup, at the time of the death, decides."""

import os
from pathlib import Path
from typing import Any

import pytest

from zrun.agent.oom import AHEAD_S, WINDOW_S, MemoryWatch

V1, V2 = ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"), ("memory.events", "oom_kill {}\n")


class Machine:
    """A /proc and a /sys/fs/cgroup of files."""

    def __init__(self, root: Path, version: int) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.version = version
        self.place(os.getpid(), "/agent")
        self.count("/agent", 0)

    def folder(self, cgroup: str) -> Path:
        top = self.cgroups / "memory" if self.version == 1 else self.cgroups
        return top / cgroup.lstrip("/")

    def place(self, pid: int, cgroup: str, peak_kb: int = 100_000) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"4:memory:{cgroup}\n0::/\n" if self.version == 1 else f"0::{cgroup}\n")
        (folder / "status").write_text(f"Name:\tpython\nVmHWM:\t  {peak_kb} kB\n")

    def count(self, cgroup: str, kills: int, limit: str = "") -> None:
        folder = self.folder(cgroup)
        folder.mkdir(parents=True, exist_ok=True)
        name, text = V1 if self.version == 1 else V2
        (folder / name).write_text(text.format(kills))
        if limit:
            (folder / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")).write_text(f"{limit}\n")

    def watch(self, unix: float) -> MemoryWatch:
        return MemoryWatch(unix, proc=self.proc, cgroups=self.cgroups)


@pytest.fixture(params=[1, 2])
def machine(request: Any, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_a_kill_in_the_ranks_own_cgroup_is_the_kernels(machine: Machine) -> None:
    machine.count("/job", 3, limit="1073741824")
    machine.place(11, "/job")
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    machine.place(11, "/job", peak_kb=900_000)
    watch.look({0: 11}, 102.0)
    machine.count("/job", 4)
    assert watch.killed(0, 102.3, 102.31)
    assert watch.of(0) == (900_000 * 1024, 1 << 30)


def test_one_count_explains_one_death(machine: Machine) -> None:
    machine.count("/job", 0)
    for pid in (11, 12):
        machine.place(pid, "/job")
    watch = machine.watch(100.0)
    watch.look({0: 11, 1: 12}, 101.0)
    machine.count("/job", 1)
    assert watch.killed(1, 101.2, 101.3)
    assert not watch.killed(0, 101.25, 101.3)


def test_somebody_elses_kill_at_another_time_says_nothing(machine: Machine) -> None:
    machine.count("/job", 0)
    machine.place(11, "/job")
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    machine.count("/job", 1)
    watch.look({0: 11}, 101.2)
    assert not watch.killed(0, 102.0 + WINDOW_S, 102.1 + WINDOW_S)
    watch.look({0: 11}, 110.0)
    machine.count("/job", 2)
    watch.look({0: 11}, 110.2)
    assert not watch.killed(0, 109.9 - AHEAD_S, 110.3), "it rose after the death"


def test_somebody_elses_kill_in_another_cgroup_says_nothing(machine: Machine) -> None:
    machine.count("/job", 0)
    machine.count("/", 0)
    machine.place(11, "/job")
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    machine.count("/", 1)
    machine.count("/agent", 1)
    assert not watch.killed(0, 101.2, 101.3)


def test_where_the_own_cgroup_cannot_be_seen_the_nearest_above_counts(machine: Machine) -> None:
    """A container may see the host's path; its own cgroup is then what is mounted."""
    machine.count("/", 5, limit="1000")
    machine.place(11, "/kubepods/burstable/pod1/abc")
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    machine.count("/", 6)
    assert watch.killed(0, 101.2, 101.3)
    assert watch.of(0)[1] == 1000


def test_without_cgroups_the_whole_machine_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.folder("/agent").joinpath("memory.events").unlink()
    vmstat = machine.proc / "vmstat"
    vmstat.write_text("pgfault 12\noom_kill 7\n")
    machine.place(11, "/job")
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    assert not watch.killed(0, 101.0, 101.0)
    vmstat.write_text("pgfault 13\noom_kill 8\n")
    assert watch.killed(0, 101.2, 101.3)


def test_a_dead_process_is_not_followed_to_the_root_cgroup(machine: Machine) -> None:
    machine.count("/job", 0, limit="1000")
    machine.count("/", 0)
    machine.place(11, "/job")
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    machine.place(11, "/")
    (machine.proc / "11" / "status").write_text("Name:\tpython\nState:\tZ (zombie)\n")
    machine.count("/job", 1)
    watch.look({0: 11}, 101.2)
    assert watch.killed(0, 101.15, 101.25)
    assert watch.of(0)[1] == 1000


def test_a_big_process_takes_a_while_to_go(machine: Machine) -> None:
    machine.count("/job", 0)
    machine.place(11, "/job", peak_kb=64 << 20)
    watch = machine.watch(100.0)
    watch.look({0: 11}, 101.0)
    machine.count("/job", 1)
    watch.look({}, 101.2)
    assert watch.killed(0, 120.0, 120.1)


def test_nothing_to_read_is_no_kill(tmp_path: Path) -> None:
    watch = MemoryWatch(100.0, proc=tmp_path / "none", cgroups=tmp_path / "none")
    watch.look({0: 11}, 101.0)
    assert not watch.killed(0, 101.0, 101.0)
    assert watch.of(0) == (0, 0)
