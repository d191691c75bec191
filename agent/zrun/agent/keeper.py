"""The keeper: parent of everything a job runs on this node, and the one that ends it all when the agent is gone.

Standard library only, one thread, `python -m zrun.agent.keeper`. It obeys JSON lines from its agent and tells it of
every end at once. It knows nothing about steps, logs or orders: which rank ends when is the agent's decision, unless
the agent is dead or has been standing still for a lease; then nothing of the job survives it.
"""

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from zrun.agent import proc_table
from zrun.agent.proc_table import Proc
from zrun.agent.virtual_clock import VirtualClock
from zrun.core.private import open_append

MARK: Final = b"ZRUN_MARK"
PR_SET_CHILD_SUBREAPER: Final = 36
POLL_S: Final = 0.25
QUICK_S: Final = 0.02
KILL_LIMIT_S: Final = 5.0
"""What cannot be killed for so long (state D) is reported as left behind."""
LARGEST_LINE: Final = 16 << 20


@dataclass(slots=True)
class Watched:
    """A rank, or a process the keeper spawned itself (`rank` None)."""

    proc: Proc
    pidfd: int
    name: str
    rank: int | None = None
    spawn: int = 0
    """The agent's number for what it had spawned."""


@dataclass(slots=True)
class Expecting:
    """Ranks that torchrun will start as its own children."""

    parent: int
    first: int
    count: int
    since: float
    known: set[int] = field(default_factory=set)


class Keeper:
    """One job on one node, for one life of the agent."""

    def __init__(self, control: socket.socket, beats: int, job: str, boot: str, lock: Path, shm: Path) -> None:
        self._control = control
        self._beats = beats
        self._job, self._boot, self._lock, self._shm = job, boot, lock, shm
        self._boots = [boot]
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Watched] = {}
        self._expecting: Expecting | None = None
        self._buffer = b""
        self._clock = VirtualClock(time.monotonic())
        self._heard = 0.0
        self._lease_s = 3.0
        self._agent_gone = ""
        self._stood_s = 0.0
        self._quit = False
        self._woken_unix = time.time()
        """When the keeper last woke: nearer to a death it then sees than the moment at which it tells of it."""
        self._lock_fd: int | None = None

    def run(self) -> int:
        """Until the agent says so or is gone; leaves nothing behind either way."""
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._beats, selectors.EVENT_READ)
        self._say(said="hello", pid=os.getpid())
        if not self._take_lock():
            return 0
        try:
            self._say(said="ready", left=self._kill_all())
            while not self._quit and not self._agent_gone:
                self._turn()
        finally:  # also if this file has a bug: nothing may outlive the keeper
            if self._agent_gone:
                self._tell_why()
            self._say(said="over", left=self._kill_all())
        return 0

    def _tell_why(self) -> None:
        """To the log, and to an agent that only stood still: it reads this before it reads of the deaths."""
        with contextlib.suppress(OSError):  # a full disk must not keep the keeper from ending what it keeps
            print(f"keeper: {self._agent_gone}: ending all of {self._job}", file=sys.stderr, flush=True)
        self._say(said="ending", why=self._agent_gone, stood_s=self._stood_s, at=time.time())

    def _take_lock(self) -> bool:
        """Wait for the keeper of an earlier agent to be done. False if our own agent went meanwhile."""
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    self._say(said="waiting", lock=str(self._lock))
                    told = True
            self._turn(quick=True)
            if self._quit or self._agent_gone:
                os.close(handle)
                return False
        earlier = os.pread(handle, 65536, 0).decode("ascii", "replace").split()
        self._boots = [*dict.fromkeys([*earlier[-32:], self._boot])]
        with contextlib.suppress(OSError):  # a full disk: a later keeper then knows fewer boots, this one all
            os.pwrite(handle, (text := ("\n".join(self._boots) + "\n").encode()), 0)
            os.ftruncate(handle, len(text))
        self._lock_fd = handle  # closed, and thus released, by our exit
        return True

    def _turn(self, *, quick: bool = False) -> None:
        ready = self._selector.select(QUICK_S if quick or self._expecting else POLL_S)
        self._woken_unix = time.time()
        for key, _ in ready:
            if key.fileobj is self._control:
                self._read_control()
            elif key.fileobj == self._beats:
                self._read_beats()
        self._reap()
        self._look_at_ended([key.fd for key, _ in ready])
        self._find_ranks()
        self._clock.tick(time.monotonic())
        if self._clock.time >= self._heard + self._lease_s and not self._agent_gone:
            self._stood_s = self._lease_s
            self._agent_gone = f"the agent stood still for {self._lease_s:g} s"

    def _read_control(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data or len(self._buffer) > LARGEST_LINE:
            self._agent_gone = "the agent is gone"
            return
        self._heard = self._clock.time
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _read_beats(self) -> None:
        if not os.read(self._beats, 4096):
            self._agent_gone = "the agent is gone"
        self._heard = self._clock.time

    def _obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "spawn":
                self._spawn(order)
            case "signal":
                self._signal(order["ranks"], order["signal"])
            case "kill":
                self._say(said="swept", left=self._kill_all(), id=order["id"])
            case "lease":
                self._lease_s = float(order["lease_s"])
            case "quit":
                self._quit = True

    def _spawn(self, order: dict[str, Any]) -> None:
        """argv, env, cwd, log, name, id; with `ranks` = [first, count] its children are watched as ranks."""
        name = order["name"]
        try:
            with os.fdopen(open_append(Path(order["log"])), "ab") as log:
                child = subprocess.Popen(
                    order["argv"], env=order["env"], cwd=order["cwd"], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._say(said="not-spawned", name=name, id=order["id"], error=str(error), errno=error.errno,
                      strerror=error.strerror, path=error.filename)  # fmt: skip
            return
        child.returncode = 0  # reaped by waitpid(-1) below; Popen shall not wait for it
        found = proc_table.stat(child.pid)
        self._watch(Proc(child.pid, found.started if found else 0), name, None, order["id"])
        if "ranks" in order:
            first, count = order["ranks"]
            self._expecting = Expecting(child.pid, first, count, time.monotonic())
        self._say(said="spawned", name=name, id=order["id"], pid=child.pid)

    def _watch(self, proc: Proc, name: str, rank: int | None, spawn: int = 0) -> None:
        try:
            pidfd = os.pidfd_open(proc.pid)
        except OSError:  # ended, and already reaped by its parent
            self._tell_end(Watched(proc, -1, name, rank, spawn), None)
            return
        self._watched[proc.pid] = Watched(proc, pidfd, name, rank, spawn)
        self._selector.register(pidfd, selectors.EVENT_READ)

    def _find_ranks(self) -> None:
        """torchrun's children say in their environment which rank they are; one that died before is told by order."""
        expecting = self._expecting
        if expecting is None:
            return
        unknown: list[proc_table.Stat] = []
        for pid in proc_table.children(expecting.parent):
            found = proc_table.stat(pid)
            if pid in self._watched or found is None:
                continue
            text = proc_table.environ(pid).get(b"RANK", b"")
            if text.isdigit():
                self._found_rank(found.proc, int(text))
            elif not found.alive:
                unknown.append(found)
        missing = sorted(set(range(expecting.first, expecting.first + expecting.count)) - expecting.known)
        if unknown and len(unknown) == len(missing):
            for found, rank in zip(sorted(unknown, key=lambda s: (s.started, s.pid)), missing, strict=True):
                self._found_rank(found.proc, rank)
        if len(expecting.known) == expecting.count or proc_table.stat(expecting.parent) is None:
            self._expecting = None

    def _found_rank(self, proc: Proc, rank: int) -> None:
        if self._expecting is not None:
            self._expecting.known.add(rank)
        self._say(said="rank", rank=rank, pid=proc.pid, started=proc.started)
        self._watch(proc, "rank", rank)

    def _look_at_ended(self, fds: list[int]) -> None:
        """A rank's exit status is read from its zombie: torchrun will not reap it for an hour."""
        for watched in [w for w in self._watched.values() if w.pidfd in fds and w.rank is not None]:
            found = proc_table.stat(watched.proc.pid)
            if found is None or found.started != watched.proc.started:
                self._ended(watched, None)
            elif not found.alive and found.ppid != os.getpid():
                self._ended(watched, found.exit_status)

    def _reap(self) -> None:
        """Collect our own children and the orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            watched = self._watched.get(pid)
            if watched is not None:
                self._ended(watched, status)

    def _ended(self, watched: Watched, status: int | None) -> None:
        self._selector.unregister(watched.pidfd)
        os.close(watched.pidfd)
        del self._watched[watched.proc.pid]
        self._tell_end(watched, status)

    def _tell_end(self, watched: Watched, status: int | None) -> None:
        code, by = (None, None) if status is None else proc_table.split_status(status)
        said = "exited" if watched.rank is None else "rank-exited"
        self._say(
            said=said, name=watched.name, id=watched.spawn, rank=watched.rank, pid=watched.proc.pid, exit_code=code,
            signal=by, known=status is not None, at=self._woken_unix,
        )  # fmt: skip

    def _signal(self, ranks: list[int], number: int) -> None:
        for watched in self._watched.values():
            if watched.rank is not None and watched.rank in ranks:
                proc_table.send(watched.proc, number)

    def _ours(self) -> list[Proc]:
        """Living processes of the job here: all below us, and whatever bears the mark of this node's agents."""
        below = [found for pid in proc_table.descendants(os.getpid()) if (found := proc_table.stat(pid))]
        job = self._job.encode() + b"/"
        marks = [(job, b"/" + boot.encode()) for boot in self._boots]
        ours = {s.proc for s in below if s.alive} | set(proc_table.bearing(MARK, marks))
        return [proc for proc in ours if proc.pid not in (os.getpid(), os.getppid())]

    def _kill_all(self) -> list[str]:
        """Everything of the job, at once and until it is gone; then its shared memory. What stays, in words."""
        try:
            left = [f"process {proc.pid} cannot be killed" for proc in self._kill_processes()]
        finally:
            swept = self._sweep()
        self._heard = self._clock.time
        return left + swept

    def _kill_processes(self) -> list[Proc]:
        """Returns those that could not be ended in time."""
        deadline = time.monotonic() + KILL_LIMIT_S
        self._expecting = None
        while ((ours := self._ours()) or self._watched) and time.monotonic() < deadline:
            for proc in ours:
                proc_table.send(proc, signal.SIGKILL)
            time.sleep(QUICK_S / 4)
            self._woken_unix = time.time()
            self._look_at_ended([w.pidfd for w in self._watched.values()])
            self._reap()
        return ours

    def _sweep(self) -> list[str]:
        left: list[str] = []
        for boot in self._boots:
            for folder in self._shm.glob(f"zrun-{self._job}-*-{boot[:4]}"):
                shutil.rmtree(folder, ignore_errors=True)
                if folder.exists():
                    left.append(f"{folder} cannot be removed")
        return left

    def _say(self, **line: Any) -> None:
        try:
            self._control.sendall((json.dumps(line) + "\n").encode())
        except OSError:
            self._agent_gone = self._agent_gone or "the agent is gone"


def main() -> int:
    """Started by the agent only."""
    parser = argparse.ArgumentParser(prog="zrun.agent.keeper")
    for name in ("--control", "--beats"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--job", "--boot", "--lock"):
        parser.add_argument(name, required=True)
    parser.add_argument("--shm", default="/dev/shm")  # noqa: S108 - the kernel's own place for shared memory
    given = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN: that would be inherited by torchrun and the ranks
    os.set_inheritable(given.control, False)
    os.set_inheritable(given.beats, False)
    control = socket.socket(fileno=given.control)
    return Keeper(control, given.beats, given.job, given.boot, Path(given.lock), Path(given.shm)).run()


if __name__ == "__main__":
    sys.exit(main())
