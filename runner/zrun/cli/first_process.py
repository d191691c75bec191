"""zrun as process 1 of a container: a small parent that hands signals on, reaps orphans and leaves last.

The kernel shields process 1 from every signal it has no handler for, gives it all orphans, and kills the whole
container when it ends. So the command itself runs in a child, where all of this is as everywhere else, and process 1
ends only after the programs the command left behind: a supervisor, an agent, a keeper. Knows no command and no job.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

HANDED_ON: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1,
                              signal.SIGUSR2, signal.SIGCONT})  # fmt: skip
_BY_THE_KERNEL: Final = 128
"""si_code of what a terminal's key sends, to the whole foreground group: the child has it already."""
_LOOK_S: Final = 0.5


def guard(work: Callable[[], int]) -> int:
    """The exit code of `work`; as process 1 it runs in a child."""
    if os.getpid() != 1:
        return work()
    if not proc_is_ours():
        print("zrun: /proc shows the processes of another container: mount it for this one\n"
              "  unshare -pf --mount-proc; docker and kubernetes do it by themselves", file=sys.stderr)  # fmt: skip
        return 1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*HANDED_ON, signal.SIGCHLD})
    child = os.fork()
    if child:
        return _stand_by(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return work()


def in_its_care() -> bool:
    """Is our parent a zrun that is process 1? Then nobody outlives us for long: there is nowhere to detach to."""
    return os.getppid() == 1 and _command_line(1) == _command_line(os.getpid()) != b""


def proc_is_ours() -> bool:
    """Does /proc show this pid namespace? Everything here that looks at processes needs it."""
    try:
        return Path("/proc/self").readlink() == Path(str(os.getpid()))
    except OSError:
        return False


def _stand_by(child: int) -> int:
    from zrun.cli.children import reap, send  # not at the top: `zrun status` has no time for it

    code: int | None = None
    while True:
        for pid, ended in reap():
            if pid == child:
                code = ended if ended >= 0 else 128 - ended
        left = [child] if code is None else _programs()
        if code is not None and not left:
            return code
        came = signal.sigtimedwait({*HANDED_ON, signal.SIGCHLD}, _LOOK_S)
        if came is None or came.si_signo == signal.SIGCHLD:
            continue
        if came.si_code != _BY_THE_KERNEL or came.si_signo == signal.SIGHUP:
            for pid in left:
                send(pid, came.si_signo)


def _programs() -> list[int]:
    """Programs of zrun that came to us when the command ended: each ends by itself, and its work with it."""
    from zrun.cli.children import children_of

    ours = (b"\0zrun.cli.", b"\0zrun.agent.")
    return [pid for pid in children_of(os.getpid()) if any(name in _command_line(pid) for name in ours)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
