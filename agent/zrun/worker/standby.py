"""`python -m zrun.worker.standby`: a process that imports all that a rank needs, waits, and then becomes that rank.

So the next attempt's first step does not wait for imports. It has its rank's number and environment from the start, but
no deck, no notes and no output of its own before it is told; it imports nothing of the user's.
"""

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

from zrun.core import env
from zrun.core.runfolder import LEFT_OUT_MODULES

_ONE_LINE: Final = 4096
_MODULES: Final = (
    "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.distributed.fsdp", "zrun.worker.session",
    "zrun.worker.recorder_built", "zrun.worker.recorder_python", "zrun.worker.step_count", "zrun.worker.store_host",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """[file of learned modules, number of the line to the keeper]."""
    learned, line = Path(arguments[0]), socket.socket(fileno=int(arguments[1]))
    os.set_inheritable(line.fileno(), False)
    manners = Manners()
    warm()
    reason = import_learned(_names(learned), _names(learned.with_name(LEFT_OUT_MODULES)))
    if reason:
        line.sendall(f"leave out {reason}".encode())
        return
    line.sendall(b"ready\n")
    told, descriptors, _, _ = socket.recv_fds(line, _ONE_LINE, 2)
    if not told or not descriptors:
        return  # the keeper is gone, or needs no standby any more
    line.close()
    manners.back()
    become(descriptors)


class Manners:
    """Training goes first: this process takes what is left of the processors, until it is a rank itself."""

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        # Only who may raise it again can lower its own priority; SCHED_BATCH can be left by anybody.
        self._lowered = os.geteuid() == 0
        if self._lowered:
            os.nice(19)
            _set_autogroup(19)
        else:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def back(self) -> None:
        if self._lowered:
            _set_autogroup(0)
        for task in Path("/proc/self/task").iterdir():
            try:
                if self._lowered:
                    os.setpriority(os.PRIO_PROCESS, int(task.name), self._nice)
                else:
                    os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
            except OSError:
                pass  # a thread that has just ended, or a system that does not let it


def _set_autogroup(nice: int) -> None:
    """Where the kernel groups processes by session, one's niceness counts within its own session only."""
    with contextlib.suppress(OSError):  # it does not group them
        Path("/proc/self/autogroup").write_text(str(nice))


def warm() -> None:
    """torch, and what the first optimizer brings with it. A torch that is broken fails where the script imports it."""
    try:
        import torch

        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
        for name in _MODULES:
            importlib.import_module(name)
    except Exception as error:
        print(f"standby: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def import_learned(names: list[str], left_out: list[str]) -> str:
    """Import what the job had imported by its first step; "" or the package that must be left out, and why not.

    One that starts threads or opens a GPU cannot be taken back: this process ends, its successor leaves it out.
    """
    for name in names:
        if name.partition(".")[0] in left_out or name in sys.modules:
            continue
        before = threading.active_count()
        with contextlib.suppress(Exception):  # what it needs is there only in the script: it is imported then
            importlib.import_module(name)
        if threading.active_count() > before or _gpu_open():
            return name.partition(".")[0]
    return ""


def _gpu_open() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def _names(path: Path) -> list[str]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def become(descriptors: list[int]) -> None:
    """The rank, as if it had been started like any other. Ends the process."""
    with os.fdopen(descriptors[0], encoding="utf-8") as page:
        given: dict[str, Any] = json.load(page)
    env.replace_all(given["env"])
    if len(descriptors) > 1:
        from zrun.worker import store_host

        os.set_inheritable(descriptors[1], False)
        store_host.host(descriptors[1])
    from zrun.worker import bootstrap

    sys.argv[:] = [sys.argv[0], *given["argv"]]
    bootstrap.main(given["argv"])


if __name__ == "__main__":
    main(sys.argv[1:])
