"""The lock of one job on one node, and what is written into it for the keeper that comes after a dead one.

Whoever holds it is the only keeper here. What it says is what a successor could not find out: the lives of agents
whose mark may still be borne, the cgroups made, the processes that bear no mark, and who held the lock. Standard
library only.
"""

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from zrun.agent.proc_table import Proc

BOOTS_KEPT: Final = 32


@dataclass(slots=True)
class Inventory:
    """What one keeper leaves in writing."""

    machine: str = ""
    """Pids mean nothing elsewhere, nor after the next boot."""
    holder: tuple[int, int] = (0, 0)
    """Pid and start time of the keeper."""
    since: float = 0.0
    """Unix seconds: when the keeper whose things may still lie about began with nothing."""
    boots: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    unmarked: list[tuple[int, int]] = field(default_factory=list)
    """(pid, start time) of processes that neither mark nor ancestry tells once their keeper is dead."""

    @property
    def keeper(self) -> Proc:
        return Proc(*self.holder)

    @property
    def strays(self) -> set[Proc]:
        return {Proc(*pair) for pair in self.unmarked}


class KeeperLock:
    """Released by the end of the process that took it, however it ends."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """False while another keeper holds it."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read(self) -> Inventory:
        """What the last holder wrote; empty if nobody did, or on another machine."""
        text = os.pread(self._handle, 1 << 20, 0).decode("utf-8", "replace")
        try:
            found: Any = json.loads(text)
            said = Inventory(
                machine=str(found["machine"]), holder=_pair(found["holder"]), since=float(found["since"]),
                boots=[str(boot) for boot in found["boots"]], cgroups=[str(path) for path in found["cgroups"]],
                unmarked=[_pair(pair) for pair in found["unmarked"]],
            )  # fmt: skip
        except (ValueError, KeyError, TypeError):
            return Inventory()
        return said if said.machine == this_machine() else Inventory()

    def write(self, inventory: Inventory) -> None:
        """A full disk: a later keeper then knows less, this one all."""
        inventory.boots = inventory.boots[-BOOTS_KEPT:]
        text = json.dumps(asdict(inventory)).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, text, 0)
            os.ftruncate(self._handle, len(text))

    def close(self) -> None:
        os.close(self._handle)


def this_machine() -> str:
    """This boot of this kernel, and the space in which its pids are counted."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path, a name
    except OSError:
        return "unknown"


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return int(first), int(second)
