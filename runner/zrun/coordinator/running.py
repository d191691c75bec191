"""The fleet on an event loop: the journal's commits come in, sweeps run, timers fire when they are due."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Final

from zrun.coordinator.begin import forget_resume, submit_embedded
from zrun.coordinator.clock import SWEEP_S
from zrun.coordinator.fleet import Fleet
from zrun.coordinator.journal import Journal
from zrun.coordinator.sweep import Sweep
from zrun.core.runfolder import RunFolder

LEAST_WAIT_S: Final = 0.005


class _Alarm:
    """Wakes the sweep at the earliest deadline of any machine."""

    def __init__(self, fleet: Fleet, sweep: Sweep) -> None:
        self._fleet = fleet
        self._sweep = sweep
        self._handle: asyncio.TimerHandle | None = None
        self._at = math.inf

    def set(self) -> None:
        at = self._fleet.next_deadline()
        if self._handle is not None:
            if at == self._at:
                return
            self._handle.cancel()
            self._handle = None
        self._at = at
        wait = max(LEAST_WAIT_S, at - self._fleet.clock.now())
        if wait <= 2 * SWEEP_S:  # later ones are found by a later sweep
            self._handle = asyncio.get_running_loop().call_later(wait, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._sweep.fire_timers()
        self.set()


@contextlib.asynccontextmanager
async def run_fleet(fleet: Fleet, journal: Journal, embedded: RunFolder | None) -> AsyncIterator[Sweep]:
    """Start journaling and sweeping; at the end the sweep stops, the journal is closed by its owner."""
    loop = asyncio.get_running_loop()
    sweep = Sweep(fleet)
    alarm = _Alarm(fleet, sweep)
    fleet.on_decided = alarm.set
    journal.start(
        lambda n: _from_thread(loop, fleet.committed, n), lambda text: _from_thread(loop, fleet.journal_trouble, text)
    )
    fleet.begin()
    asked = submit_embedded(fleet, embedded) if embedded is not None else 0
    sweeping = asyncio.create_task(_sweep_on(fleet, sweep, alarm))
    try:
        if embedded is not None:
            await fleet.until_committed(asked)
            await asyncio.to_thread(forget_resume, embedded)
        yield sweep
    finally:
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping


async def _sweep_on(fleet: Fleet, sweep: Sweep, alarm: _Alarm) -> None:
    while True:
        try:
            sweep.run()
            alarm.set()
        except Exception as error:  # without sweeps nothing is ever noticed again; the next one may do
            fleet.log.exception("a sweep failed", because=f"{type(error).__name__}: {error}")
        await asyncio.sleep(SWEEP_S)


def _from_thread(loop: asyncio.AbstractEventLoop, call: object, value: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends, and the journal has it anyway
        loop.call_soon_threadsafe(call, value)  # type: ignore[arg-type]
