"""The keeper alone, with an agent's end of its socket in the test's hands: what it ends, and what it must not."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from zrun.agent import cgroup, proc_table
from zrun.agent.keeper_link import Beats, KeeperLink
from zrun.agent.proc_table import Proc

SHM = Path("/dev/shm")

ESCAPES = """
import os, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "300"])
subprocess.Popen(["bash", "-c", "python3 -c 'import time; time.sleep(301)' & wait"])
subprocess.Popen(["bash", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"], start_new_session=True)
if os.fork() == 0:  # a daemon: no parent, no session, no descriptors, no environment
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execve("/bin/sleep", ["sleep", "302"], {})
    os._exit(0)
reader, writer = os.pipe()
if os.fork() == 0:  # a loader worker: in a write to a pipe whose read end it holds as well
    os.write(writer, b"x" * (1 << 20))
print("begun", flush=True)
time.sleep(303)
"""
"""Alive below the keeper: this, setsid, bash, its child, the deaf bash and its sleep, the daemon, the writer."""
PROCESSES = 8


@dataclass
class Bench:
    """One keeper at a time, of one job."""

    folder: Path
    job: str
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    heard: list[dict[str, Any]] = field(default_factory=list)
    beats: Beats = field(default_factory=Beats)
    link: KeeperLink | None = None
    more: list[str] = field(default_factory=list)

    async def start(self, boot: str | None = None) -> KeeperLink:
        """Until it is ready."""
        self.boot = boot or self.boot
        self.heard = []
        self.link = KeeperLink(self.beats, self.heard.append, self.more)
        await self.link.start(self.job, self.boot, self.folder / "lock", self.folder / "keeper.log")
        await self.until(lambda: self.said("ready"), 20)
        return self.link

    async def start_again(self) -> None:
        assert self.link is not None
        await self.link.close()
        await self.start(secrets.token_hex(8))

    def said(self, what: str) -> dict[str, Any]:
        return next((line for line in self.heard if line["said"] == what), {})

    async def until(self, check: Callable[[], Any], within_s: float = 10.0) -> Any:
        deadline = time.monotonic() + within_s
        while not (found := check()):
            assert time.monotonic() < deadline, f"not within {within_s} s; heard: {self.heard}"
            await asyncio.sleep(0.01)
        return found

    async def run(self, script: str, **env: str) -> None:
        """As a process of the job, until it says that it has begun."""
        assert self.link is not None
        log = self.folder / f"{secrets.token_hex(4)}.log"
        given = {**os.environ, "ZRUN_MARK": f"{self.job}/1/{self.boot}", **env}
        self.link.spawn("toy", [sys.executable, "-c", script], given, str(self.folder), log, None)
        await self.until(lambda: log.exists() and b"begun" in log.read_bytes())

    async def kill(self) -> dict[str, Any]:
        assert self.link is not None
        self.heard.clear()
        self.link.kill(1)
        swept: dict[str, Any] = await self.until(lambda: self.said("swept"), 20)
        return swept

    def keeper(self) -> int:
        assert self.link is not None
        assert self.link.pid is not None
        return self.link.pid

    def family(self) -> set[Proc]:
        """All below the keeper."""
        pids = proc_table.descendants(self.keeper())
        return {found.proc for pid in pids if (found := proc_table.stat(pid)) is not None and found.alive}


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    one = Bench(folder, f"toy-{secrets.token_hex(4)}")
    try:
        yield one
    finally:
        if one.link is not None:
            await one.link.close()
        one.beats.close()


def play(folder: Path, story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with bench(folder) as one:
            await story(one)

    asyncio.run(whole())


def living(family: set[Proc]) -> set[Proc]:
    return {proc for proc in family if proc_table.is_alive(proc)}


async def with_all_escaped(one: Bench) -> set[Proc]:
    await one.start()
    await one.run(ESCAPES)
    await one.until(lambda: len(one.family()) >= PROCESSES)
    return one.family()


def test_an_order_to_kill_ends_what_left_session_parent_descriptors_and_environment(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        family = await with_all_escaped(one)
        assert (await one.kill())["left"] == []
        assert living(family) == set()

    play(tmp_path, story)


@pytest.mark.parametrize("means", ["cgroup", "session and mark"])
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_keeper_that_dies_or_stops_is_replaced_by_one_that_ends_all_it_kept(
    tmp_path: Path, number: int, means: str
) -> None:
    async def story(one: Bench) -> None:
        one.more = ["--no-cgroup"] if means != "cgroup" else []
        family = await with_all_escaped(one)
        await one.until(lambda: json.loads((tmp_path / "lock").read_text())["unmarked"])  # the daemon was seen
        os.kill(one.keeper(), number)
        await one.until(lambda: one.said("lost"), 20)
        await one.start()
        assert one.said("ready")["left"] == []
        assert living(family) == set()
        assert one.said("ready")["means"] in (means, "session and mark")  # not every machine lends cgroups

    play(tmp_path, story)


def test_a_keeper_that_waits_for_a_stopped_one_ends_it(tmp_path: Path) -> None:
    """Both the agent and its keeper are gone, but the keeper holds the lock."""

    async def story(one: Bench) -> None:
        family = await with_all_escaped(one)
        old, keeper = one.link, one.keeper()
        os.kill(keeper, signal.SIGSTOP)
        one.link = None
        await one.start(secrets.token_hex(8))
        assert one.said("waiting")
        assert living(family) == set()
        await one.until(lambda: (now := proc_table.stat(keeper)) is None or not now.alive)
        assert old is not None
        await old.close()

    play(tmp_path, story)


def begin_other(folder: Path, mark: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(300)"]
    return subprocess.Popen(argv, cwd=folder, env={**os.environ, "ZRUN_MARK": mark} if mark else None)


def test_no_process_of_another_is_ever_signalled(tmp_path: Path) -> None:
    """The same name and folder, the mark of another job, of another run of this job, of a job whose name begins so."""

    async def story(one: Bench) -> None:
        await one.start()
        await one.run("print('begun', flush=True); import time; time.sleep(300)")
        mine, other = one.boot, secrets.token_hex(8)
        marks = ["", f"other-{one.job}/1/{mine}", f"{one.job}x/1/{mine}", f"{one.job}/1/{other}"]
        others = [begin_other(tmp_path, mark) for mark in marks]
        try:
            await one.kill()
            await one.start_again()
            assert [started.poll() for started in others] == [None] * len(others)
        finally:
            for started in others:
                started.kill()
                started.wait()

    play(tmp_path, story)


def test_a_pid_that_was_given_again_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "300"]) as other:
        found = proc_table.stat(other.pid)
        assert found is not None
        assert not proc_table.send(Proc(other.pid, found.started - 1), signal.SIGKILL)
        assert other.poll() is None
        assert proc_table.send(found.proc, signal.SIGKILL)
        assert other.wait(10) == -signal.SIGKILL


MAKES_THINGS = """
import ctypes, mmap, os, sys, tempfile, time, socket
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from zrun.core import env
from zrun.worker.segments import note_what_is_made
resource_tracker.register = lambda *_: None
name = sys.argv[1] if len(sys.argv) > 1 else os.environ["NAME"]
folder = Path(os.environ["FOLDER"])
note_what_is_made(folder)
noted = shared_memory.SharedMemory(name + "-noted", create=True, size=1 << 20)
noted.close()
handle = os.open("/dev/shm/" + name + "-mapped", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(handle, 4096)
mapped = mmap.mmap(handle, 4096)
Path(f"/dev/shm/torch_{os.getpid()}_1_2").write_bytes(b"x" * 100)
os.mkdir("/dev/shm/" + name + "-folder")
Path("/dev/shm/" + name + "-folder/data").write_text("kept")
Path("/dev/shm/" + name + "-file").write_text("kept")
shared = shared_memory.SharedMemory(name + "-shared", create=True, size=4096)
place = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
listener = socket.socket(socket.AF_UNIX)
listener.bind(place + "/listener-1")
ctypes.CDLL(None).shmget(0, 8192, 0o1000 | 0o600)
print("begun", place, flush=True)
time.sleep(300)
"""


def system_v_segments() -> int:
    return len(Path("/proc/sysvipc/shm").read_text().splitlines())


def shared_by(job: str) -> list[str]:
    return sorted(path.name.removeprefix(job) for path in SHM.glob(f"{job}-*"))


def remove_kept(job: str) -> None:
    (SHM / f"{job}-file").unlink(missing_ok=True)
    shutil.rmtree(SHM / f"{job}-folder", ignore_errors=True)


def test_what_killed_processes_made_is_removed_and_told_and_nothing_else(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        name = one.job
        await one.start()
        before = shared_memory.SharedMemory(f"{name}-before", create=True, size=4096)
        own = SHM / f"zrun-{one.job}-1-{one.boot[:4]}"
        own.mkdir()
        await one.run(MAKES_THINGS, NAME=name, FOLDER=str(own))
        user = shared_memory.SharedMemory(f"{name}-shared")
        segments = system_v_segments()
        try:
            swept = await one.kill()
            told = " ".join(swept["removed"])
            assert f"/dev/shm/{name}-noted (1 MiB)" in told
            assert f"/dev/shm/{name}-mapped" in told
            assert "/dev/shm/torch_" in told
            assert "temporary folder /tmp/pymp-" in told
            assert "System V shared memory" in told
            assert len(swept["removed"]) == 5
            assert system_v_segments() == segments - 1
            assert shared_by(name) == ["-before", "-file", "-folder", "-shared"]
        finally:
            for segment in (before, user):
                segment.close()
                segment.unlink()
            remove_kept(name)

    play(tmp_path, story)


FREEZERS = [folder for folder in cgroup.own_folders() if "freezer" in folder.parts and os.access(folder, os.W_OK)]

if FREEZERS:  # where the machine lends one: what is frozen in it is in state D and outlives any signal

    def test_a_process_that_cannot_be_killed_is_named_within_the_limit_and_again_once_it_has_ended(
        tmp_path: Path,
    ) -> None:
        ice = cgroup.JobCgroup(FREEZERS[0] / f"zrun-test-{secrets.token_hex(4)}")

        async def story(one: Bench) -> None:
            await one.start()
            await one.run("print('begun', flush=True); import time; time.sleep(300)")
            (frozen,) = one.family()
            ice.folder.mkdir()
            (ice.folder / "cgroup.procs").write_text(str(frozen.pid))
            (ice.folder / "freezer.state").write_text("FROZEN")
            began = time.monotonic()
            swept = await one.kill()
            assert time.monotonic() - began < 10
            assert [words.split(" (")[0] for words in swept["left"]] == [f"process {frozen.pid}"]
            assert "state D) cannot be killed" in swept["left"][0]
            began = time.monotonic()
            assert (await one.kill())["left"] == swept["left"]
            assert time.monotonic() - began < 3, "what is known to be stuck is not waited for again"
            ice.kill()  # lets it go, to die of the signal that waits for it
            freed = await one.until(lambda: one.said("freed"))
            assert freed["left"] == []

        try:
            play(tmp_path, story)
        finally:
            ice.kill()
            deadline = time.monotonic() + 5
            while not ice.remove() and time.monotonic() < deadline:
                time.sleep(0.02)
