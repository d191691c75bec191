"""The keeper: parent of everything a job runs on this node, and the one that ends it all when the agent is gone.

Standard library only, one thread, `python -m zrun.agent.keeper`. It obeys JSON lines from its agent and tells it of
every end at once. It knows nothing about steps, logs or orders: which rank ends when is the agent's decision, unless
the agent is dead or has been standing still for a lease; then nothing of the job survives it.
"""

import argparse
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from zrun.agent import proc_table
from zrun.agent.child_watch import ChildWatch
from zrun.agent.estate import Estate
from zrun.agent.keeper_lock import KeeperLock
from zrun.agent.lock_queue import LockQueue
from zrun.agent.memory_files import MemoryFiles
from zrun.agent.standbys import NotReadyError, Standbys
from zrun.agent.virtual_clock import VirtualClock
from zrun.core.own_log import log_line
from zrun.core.private import open_append

PR_SET_CHILD_SUBREAPER: Final = 36
POLL_S: Final = 0.25
QUICK_S: Final = 0.02
LOOK_S: Final = 2.0
"""How often it is looked what there is, while it can be told whose it is."""
PULSE_S: Final = 1.0
SAY_LIMIT_S: Final = 1.0
"""An agent that leaves a full buffer unread for so long reads no more."""
LARGEST_LINE: Final = 16 << 20


class Keeper:
    """One job on one node, for one life of the agent."""

    def __init__(self, control: socket.socket, beats: int, job: str, boot: str, lock: Path, shm: Path) -> None:
        self._control, self._beats = control, beats
        self._job, self._boot, self._lock_path, self._shm = job, boot, lock, shm
        self._selector = selectors.DefaultSelector()
        self._estate: Estate | None = None
        self._watch = ChildWatch(self._selector, self._say, self._reaped)
        self._standbys: Standbys | None = None
        self._memory = MemoryFiles()
        self._buffer = b""
        self._clock = VirtualClock(time.monotonic())
        self._heard = self._looked = 0.0
        self._pulse = time.monotonic()
        self._lease_s = 3.0
        self._agent_gone = ""
        self._stood_s = 0.0
        self._quit = False

    def run(self, *, grouped: bool) -> int:
        """Until the agent says so or is gone; leaves nothing behind either way. `grouped`: in a cgroup if one is to be
        had.
        """
        self._control.settimeout(SAY_LIMIT_S)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._beats, selectors.EVENT_READ)
        self._say(said="hello", pid=os.getpid())
        lock = KeeperLock(self._lock_path)
        if not self._take(lock):
            return 0
        own = proc_table.stat(os.getpid())
        assert own is not None
        estate = self._estate = Estate(self._job, self._boot, self._shm, lock, own.proc)
        try:
            self._standbys = Standbys(self._selector, self._say, estate)
            swept = estate.end_all(self._watch, self._tell_of_life)
            self._say(said="ready", means=estate.begin(grouped=grouped), **asdict(swept))
            while not self._over:
                self._turn()
        finally:  # also if this file has a bug: nothing may outlive the keeper
            if self._agent_gone:
                self._tell_why()
            if self._standbys is not None:
                self._standbys.drop()
            self._end_all("over")
            estate.close()
            self._memory.close()
        return 0

    @property
    def _over(self) -> bool:
        return self._quit or bool(self._agent_gone)

    def _take(self, lock: KeeperLock) -> bool:
        """Wait for the keeper of an earlier agent to be done. False if our own agent went meanwhile."""
        queue = LockQueue(lock)
        while not lock.take():
            if news := queue.news(self._clock.time):
                self._say(said="waiting", lock=str(self._lock_path), holder=news)
            self._turn(quick=True)
            if self._over:
                return False
        return True

    def _turn(self, *, quick: bool = False) -> None:
        ready = self._selector.select(QUICK_S if quick or self._watch.expecting else POLL_S)
        self._watch.woken_unix = time.time()
        for key, _ in ready:
            if key.fileobj is self._control:
                self._read_control()
            elif key.fileobj == self._beats:
                self._read_beats()
            elif self._standbys is not None:
                self._standbys.hear(key.fileobj)
        self._watch.turn([key.fd for key, _ in ready])
        self._clock.tick(time.monotonic())
        self._tell_of_life()
        self._look_around()
        if self._clock.time >= self._heard + self._lease_s and not self._agent_gone:
            self._stood_s = self._lease_s
            self._agent_gone = f"the agent stood still for {self._lease_s:g} s"

    def _look_around(self) -> None:
        if self._estate is None or self._clock.time < self._looked + LOOK_S:
            return
        self._looked = self._clock.time
        self._estate.look_around()
        if self._estate.stuck and self._estate.freed():
            self._end_all("freed")

    def _tell_of_life(self) -> None:
        """So that an agent can tell a keeper that stands still."""
        if time.monotonic() >= self._pulse + PULSE_S:
            self._pulse = time.monotonic()
            self._say(said="alive")

    def _tell_why(self) -> None:
        """To the log, and to an agent that only stood still: it reads this before it reads of the deaths."""
        with contextlib.suppress(OSError):  # a full disk must not keep the keeper from ending what it keeps
            text = log_line("keeper", "warning", "ending all", {"job": self._job, "why": self._agent_gone})
            print(text, file=sys.stderr, flush=True)
        self._say(said="ending", why=self._agent_gone, stood_s=self._stood_s, at=time.time())

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
            case "standby" if self._standbys is not None:
                self._standbys.spawn(order)
            case "drop-standbys" if self._standbys is not None:
                self._standbys.drop()
            case "activate" if self._standbys is not None:
                self._activate(self._standbys, order)
            case "signal":
                self._watch.signal(order["ranks"], order["signal"])
            case "kill":
                self._end_all("swept", id=order["id"])
            case "lease":
                self._lease_s = float(order["lease_s"])
            case "quit":
                self._quit = True

    def _spawn(self, order: dict[str, Any]) -> None:
        """argv, env, cwd, log, name, id; with `ranks` = [first, count] its children are watched as ranks."""
        assert self._estate is not None
        name = order["name"]
        if temp := order["env"].get("TMPDIR"):
            self._estate.uses_temp(temp)
        try:
            if ranks := order.get("ranks"):
                self._memory.make(range(ranks[0], ranks[0] + ranks[1]))
            with os.fdopen(open_append(Path(order["log"])), "ab") as log:
                child = subprocess.Popen(
                    order["argv"], env=order["env"], cwd=order["cwd"], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=self._estate.enter,  # noqa: PLW1509 - there is one thread
                )  # fmt: skip
        except OSError as error:
            self._say(said="not-spawned", name=name, id=order["id"], error=str(error), errno=error.errno,
                      strerror=error.strerror, path=error.filename)  # fmt: skip
            return
        child.returncode = 0  # reaped by the watch; Popen shall not wait for it
        self._watch.add(child.pid, name, order["id"], order.get("ranks"))
        self._say(said="spawned", name=name, id=order["id"], pid=child.pid)

    def _activate(self, standbys: Standbys, order: dict[str, Any]) -> None:
        try:
            standbys.activate(order, self._watch.add_rank)
        except NotReadyError as error:
            self._say(said="not-activated", id=order["id"], error=str(error))

    def _end_all(self, said: str, **more: Any) -> None:
        """Everything of the job, at once and until it is gone, and what it left; then say so, with `more`."""
        assert self._estate is not None
        swept = self._estate.end_all(self._watch, self._tell_of_life)
        self._heard = self._clock.time
        self._say(said=said, **asdict(swept), **more)

    def _reaped(self, pid: int) -> None:
        if self._estate is not None:
            self._estate.reaped(pid)

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
    parser.add_argument("--no-cgroup", action="store_true")
    parser.add_argument("--shm", default="/dev/shm")  # noqa: S108 - the kernel's own place for shared memory
    given = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN: that would be inherited by torchrun and the ranks
    os.set_inheritable(given.control, False)
    os.set_inheritable(given.beats, False)
    control = socket.socket(fileno=given.control)
    keeper = Keeper(control, given.beats, given.job, given.boot, Path(given.lock), Path(given.shm))
    return keeper.run(grouped=not given.no_cgroup)


if __name__ == "__main__":
    sys.exit(main())
