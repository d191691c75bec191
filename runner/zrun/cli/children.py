"""One program that is to be kept alive, and what is left behind when it dies: spawn, adopt, notice, end.

Plain processes, standard library only. Knows nothing about jobs, coordinators or agents.
"""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """From here on orphaned descendants become our children and are reaped by us."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_log(path: Path) -> BinaryIO:
    """To append to, readable by its owner only; the umask is left as it is, for ranks inherit it. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


@dataclass(slots=True)
class Child:
    """A program with its log; `pid` is 0 while it does not run."""

    name: str
    log: Path
    pid: int = 0
    started: int = 0
    """Start time in jiffies since boot; with the pid it names the process for ever, also after its end."""
    born: float = 0.0
    """Monotonic seconds of the last start."""
    short_lives: int = 0
    """Deaths in a row that came soon after the start."""
    deaths: int = 0
    last_exit: int | None = None
    not_before: float = 0.0
    """Monotonic seconds of the next start."""
    pidfd: int = -1
    """Open only for an adopted program, which is no child of ours."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self, argv: list[str], cwd: Path) -> None:
        """In a session of its own, output appended to the log. Raises OSError."""
        with open_log(self.log) as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, start_new_session=True
            )
        self.pid, self.born = self._process.pid, time.monotonic()
        self.started = started_at(self.pid)

    def adopt(self, pid: int) -> bool:
        """Watch a living program that an earlier supervisor started; False if it is gone."""
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        self.pid, self.started, self.born = pid, started_at(pid), time.monotonic()
        return True

    def died(self, code: int | None, *, short_s: float, now: float) -> None:
        """Book a death: `code` None = unknown (adopted). The delay before the next start grows from 0.2 to 5 s."""
        if self._process is not None and code is not None:
            self._process.returncode = code  # reaped here, not by subprocess
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pid, self.pidfd, self._process, self.last_exit = 0, -1, None, code
        self.deaths += 1
        self.short_lives = self.short_lives + 1 if now - self.born < short_s else 1
        self.not_before = now + min(0.2 * 2 ** (self.short_lives - 1), 5.0)

    def adopted_gone(self) -> bool:
        return self.pidfd >= 0 and bool(select.select([self.pidfd], [], [], 0)[0])

    def signal(self, number: int) -> None:
        if self.pid:
            send(self.pid, number, self.started)


def send(pid: int, number: int, started: int | None = None) -> None:
    """To the process that began at `started`, if that is given: a later one with its pid is another's."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if started is None or started_at(pid) == started:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def reap() -> Iterator[tuple[int, int]]:
    """(pid, exit code, negative for a signal) of each child of ours that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def started_at(pid: int) -> int:
    """Start time of a process in jiffies since boot: with the pid it names one process for ever. 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _stat_fields() -> Iterator[tuple[int, int, int, int]]:
    """(pid, parent, session, start time) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                yield int(entry.name), int(fields[1]), int(fields[3]), int(fields[19])


def kill_session(leader: int, started: int) -> None:
    """KILL every process of the session that this process began.

    While one of them lives, no other process gets the leader's pid; if one has it, the session is over.
    """
    if started_at(leader) not in (0, started):
        return
    for pid, _, session, began in _stat_fields():
        if session == leader:
            send(pid, signal.SIGKILL, began)


def children_of(parent: int) -> list[int]:
    return [pid for pid, ppid, *_ in _stat_fields() if ppid == parent]
