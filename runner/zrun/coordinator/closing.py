"""The end of an embedded coordinator: verdict on disk, agents released and sent home, a moment for the last readers."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from zrun.coordinator.fleet import Fleet
from zrun.wire.order import Leave

RELEASE_S: Final = 5.0
"""For the agents to sweep and forget the job."""
LEAVE_S: Final = 5.0
LOOK_S: Final = 0.02


async def close_when_over(fleet: Fleet, linger_s: float) -> str:
    """Returns the job's id when everything is done and the readers had their time."""
    await _within(math.inf, lambda: bool(fleet.jobs) and all(job.state.over for job in fleet.jobs.values()))
    job = next(iter(fleet.jobs.values()))
    await fleet.until_committed(fleet.last_n)
    job.papers.write_verdict()
    await asyncio.to_thread(fleet.scribe.drain, RELEASE_S)
    await _within(RELEASE_S, lambda: fleet.book.released(job.id) or not fleet.links)
    for link in list(fleet.links.values()):
        link.send(Leave(f"{job.id} is {job.state.state}"))
    if not await _within(LEAVE_S, lambda: not fleet.links):
        fleet.log.warning("agents stay", because=f"not gone {LEAVE_S:.0f} s after they were sent home",
                          nodes=sorted(fleet.links))  # fmt: skip
    await asyncio.sleep(linger_s)  # sweeps go on meanwhile and write again what the disk had no room for
    job.papers.write_lost()
    return job.id


async def _within(seconds: float, ready: Callable[[], bool]) -> bool:
    until = asyncio.get_running_loop().time() + seconds
    while not ready():
        if asyncio.get_running_loop().time() >= until:
            return False
        await asyncio.sleep(LOOK_S)
    return True
