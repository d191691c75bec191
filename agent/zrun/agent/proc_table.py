"""What /proc says of processes, and signals that reach exactly the process that was meant.

Standard library only (the keeper uses it too); knows nothing about jobs or ranks.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
TICKS_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Proc:
    """A process for ever: the kernel may give the pid again, but not with the same start time."""

    pid: int
    started: int
    """Clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    state: str
    ppid: int
    started: int
    threads: int
    cpu_s: float
    """User and system time used so far."""
    exit_status: int
    """As waitpid gives it; true only in state Z, and only for one who may read it."""

    @property
    def proc(self) -> Proc:
        return Proc(self.pid, self.started)

    @property
    def alive(self) -> bool:
        """A dead main thread (Z) whose other threads still run is a living process."""
        return self.state not in "ZX" or self.threads > 1


def stat(pid: int) -> Stat | None:
    """None if there is no such process (any more)."""
    try:
        raw = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    rest = raw[raw.rfind(b")") + 2 :].split()
    if len(rest) < 50:
        return None  # it went away while it was read
    return Stat(
        pid=pid,
        state=rest[0].decode("ascii", "replace"),
        ppid=int(rest[1]),
        started=int(rest[19]),
        threads=int(rest[17]),
        cpu_s=(int(rest[11]) + int(rest[12])) / TICKS_S,
        exit_status=int(rest[49]),
    )


def is_alive(proc: Proc) -> bool:
    """This very process, not a later owner of its pid."""
    found = stat(proc.pid)
    return found is not None and found.started == proc.started and found.alive


def environ(pid: int) -> dict[bytes, bytes]:
    """The environment a process was started with; empty for zombies and other people's processes."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def children(pid: int) -> list[int]:
    """Direct children, of whichever thread."""
    found: list[int] = []
    try:
        tasks = os.listdir(PROC / str(pid) / "task")  # noqa: PTH208 - names are all that is needed, 50 times a second
    except OSError:
        return found
    for task in tasks:
        try:
            raw = (PROC / str(pid) / "task" / task / "children").read_bytes()
        except OSError:
            continue  # the thread ended meanwhile
        found += [int(child) for child in raw.split()]
    return found


def descendants(pid: int) -> list[int]:
    """All living and dead processes below `pid`, without it."""
    found: list[int] = []
    open_ends = [pid]
    while open_ends:
        below = children(open_ends.pop())
        found += below
        open_ends += below
    return found


def ancestors(pid: int) -> list[int]:
    """Parent, its parent and so on, as they are now."""
    found: list[int] = []
    while (one := stat(pid)) is not None and one.ppid > 0 and one.ppid not in found:
        pid = one.ppid
        found.append(pid)
    return found


def describe(proc: Proc) -> str:
    """`process 123 (python train.py, state D)`: what a person looks for."""
    found = stat(proc.pid)
    try:
        words = (
            (PROC / str(proc.pid) / "cmdline")
            .read_bytes()
            .rstrip(b"\0")
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    except OSError:
        words = ""
    told = [part for part in (words[:60], f"state {found.state}" if found is not None else "") if part]
    return f"process {proc.pid}" + (f" ({', '.join(told)})" if told else "")


def pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - as above


def bearing(name: bytes, is_ours: "Sequence[tuple[bytes, bytes]]") -> list[Proc]:
    """Living processes whose environment has `name` = value with (start, end) of value among `is_ours`."""
    found: list[Proc] = []
    for pid in pids():
        before = stat(pid)
        if before is None or not before.alive:
            continue
        value = environ(pid).get(name)
        if value is not None and any(value.startswith(start) and value.endswith(end) for start, end in is_ours):
            found.append(before.proc)
    return found


def send(proc: Proc, number: int) -> bool:
    """Signal this very process; False if it is gone (a later owner of its pid is never touched)."""
    try:
        handle = os.pidfd_open(proc.pid)
    except OSError:
        return False
    try:
        now = stat(proc.pid)
        if now is None or now.started != proc.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def unix_start(started: int) -> float:
    """Unix seconds of a start time; the wall clock may have been set since, so within reason only."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started / TICKS_S


def signal_name(number: int) -> str:
    """`SIGKILL`; real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def split_status(status: int) -> tuple[int | None, str | None]:
    """(exit code, None) or (None, name of the signal) of a wait status."""
    if os.WIFSIGNALED(status):
        return None, signal_name(os.WTERMSIG(status))
    return os.WEXITSTATUS(status), None
