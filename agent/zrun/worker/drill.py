"""Faults by appointment inside a rank: each comes where a real one would, between a step's backward and its update.

Armed only by `zrun drill` (ZRUN_DRILL). That the others notice, and what becomes of the job, is no business of this
file. Faults from outside a rank are in zrun.drill.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zrun.core.appointments import Appointment, Drill
from zrun.core.batch import BatchId
from zrun.state import kill_points
from zrun.worker.rank import ThisRank
from zrun.worker.trace import Trace

EXIT_CODE: Final = 7
SLOW_STEPS: Final = 60
"""A straggler is told after 50."""
_SLOW_AT_LEAST_S: Final = 0.05
_TOO_MUCH: Final = 1 << 60
"""Bytes: no address space holds them, so the allocator refuses at once and no memory is taken."""
_POISON: Final = "poison"
_DISK_FULL: Final = "disk-full"
_SLOW: Final = "slow"


def arm(rank: ThisRank, text: str) -> None:
    """Trace this rank, and await what is to befall it. Raises OSError or ValueError if no drill has written `text`."""
    drill = Drill.from_json(text)
    rank.trace = Trace(drill, rank)
    mine = [one for one in drill.faults if one.rank == rank.rank]
    if not mine:
        return
    rank.faults = faults = Faults(rank, drill, mine)

    def before_update(*_: Any) -> None:
        faults.before_update()

    # A compiled step calls us as we are; its graph ends here anyway.
    hook = torch._disable_dynamo(before_update)  # type: ignore[attr-defined]  # noqa: SLF001
    register_optimizer_step_pre_hook(cast("Callable[..., None]", hook))
    if any(one.kind == _DISK_FULL for one in mine):
        kill_points.listen(faults.saving)


class Faults:
    """Of one rank, for one attempt of a drill."""

    def __init__(self, rank: ThisRank, drill: Drill, mine: list[Appointment]) -> None:
        self._rank, self._drill = rank, drill
        self._waiting = [
            one for one in mine if one.kind not in (_POISON, _DISK_FULL) and not drill.has_come(one.number)
        ]
        self._poisons = [one for one in mine if one.kind == _POISON]
        self._full = [one for one in mine if one.kind == _DISK_FULL and not drill.has_come(one.number)]
        self._begun_at, self._begun, self._step_s = time.monotonic(), 0, 0.0
        self._slow_until, self._slow_s = 0, 0.0
        self._save_fails: Appointment | None = None

    def before_update(self) -> None:
        """An optimizer is about to step: of several in one step, the first one counts."""
        step = self._step()
        if step == self._begun:
            return
        now = time.monotonic()
        self._begun_at, self._begun, self._step_s = now, step, now - self._begun_at
        if step <= self._slow_until:
            time.sleep(self._slow_s)
        for one in self._waiting:
            if step >= one.step and self._comes(one, step):
                self._waiting.remove(one)
                self._bring(one, step)
                return

    def reading(self, step: int, batch: BatchId) -> None:
        """A batch is about to be read. The appointed one cannot be, on whatever attempt."""
        for one in self._poisons:
            if batch.ordinal == one.step:
                self._comes(one, step, batch=str(batch))
                raise ValueError(f"fault by appointment: batch {batch} cannot be read")

    def saving(self, point: str) -> None:
        """A save stands at `point`: the first one requested at or after the appointed step fails in mid-file."""
        if point == "copy" and self._full and self._completed() >= self._full[0].step:
            self._save_fails = self._full.pop(0)
        elif point == "write" and self._save_fails is not None:
            one, self._save_fails = self._save_fails, None
            if self._comes(one, self._completed()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _step(self) -> int:
        """The step being done; scripts without a Session have no number before their first step is done."""
        return max(1, self._rank.deck.step()) if self._rank.deck is not None else 0

    def _completed(self) -> int:
        return self._rank.deck.completed() if self._rank.deck is not None else 0

    def _comes(self, one: Appointment, step: int, **where: Any) -> bool:
        first = self._drill.comes(one.number, attempt=self._rank.attempt, step=step, rank=self._rank.rank, **where)
        if first:
            print(f"zrun: fault by appointment: {one.kind} at step {step}", flush=True)
        return first

    def _bring(self, one: Appointment, step: int) -> None:
        if one.kind == _SLOW:
            self._slow_until, self._slow_s = step + SLOW_STEPS - 1, max(_SLOW_AT_LEAST_S, self._step_s)
            time.sleep(self._slow_s)
            return
        _BY_KIND[one.kind](one)


def _kill(_: Appointment) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_: Appointment) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit(_: Appointment) -> NoReturn:
    os._exit(EXIT_CODE)


def _raise(one: Appointment) -> NoReturn:
    raise RuntimeError(f"fault by appointment: {one.kind} on rank {one.rank} at step {one.step}")


def _hang(_: Appointment) -> NoReturn:
    while True:
        time.sleep(3600.0)


def _spin(_: Appointment) -> NoReturn:
    while True:
        pass


def _oom(_: Appointment) -> None:
    """The very exception this job's allocator raises."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.empty(_TOO_MUCH, dtype=torch.uint8, device=device)


_BY_KIND: Final[dict[str, Callable[[Appointment], None]]] = {
    "kill": _kill, "stop": _stop, "exit": _exit, "raise": _raise, "hang": _hang, "spin": _spin, "oom": _oom,
}  # fmt: skip
