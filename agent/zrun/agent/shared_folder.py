"""Is checkpoint.dir one and the same folder on every node of an attempt? The first node leaves a file there that has
a name nobody else could know, and every other node has to see it before it starts a rank.

The others look only once the first one has told its port, which it does after the file is there. Decides nothing.
"""

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import Final

from zrun.core.durable import create_exclusive
from zrun.core.manifest import CONTROL
from zrun.core.private import make_folder
from zrun.wire.order import LaunchPlan

LOOK_S: Final = 10.0
"""A network file system may show a new name late."""
_AGAIN_S: Final = 0.1


async def look(directory: Path, job: str, plan: LaunchPlan) -> str:
    """What keeps this node from sharing the folder with the first one, in words; nothing if it does.

    In a thread: a file system whose server is gone does not answer, and this agent has to go on breathing.
    """
    name = name_of(job, plan)
    if plan.node_rank == 0:
        return await asyncio.to_thread(_leave, directory, name)
    until = time.monotonic() + LOOK_S
    while not await asyncio.to_thread((directory / CONTROL / name).exists):
        if time.monotonic() >= until:
            return _unseen(directory, plan)
        await asyncio.sleep(_AGAIN_S)
    return ""


def name_of(job: str, plan: LaunchPlan) -> str:
    """The same on every node of this attempt; another one for every other attempt anywhere."""
    return f"nonce-{plan.attempt}-{hashlib.sha256(f'{job}/{plan.attempt}/{plan.key}'.encode()).hexdigest()[:16]}"


def _leave(directory: Path, name: str) -> str:
    try:
        make_folder(directory / CONTROL)
        for old in (directory / CONTROL).glob("nonce-*"):
            old.unlink(missing_ok=True)
        create_exclusive(directory / CONTROL / name, b"")
    except OSError as error:
        return f"checkpoint.dir {directory} cannot be written: {os.strerror(error.errno or 0)}"
    return ""


def _unseen(directory: Path, plan: LaunchPlan) -> str:
    first = plan.peers[0].node if plan.peers else plan.master_addr
    return (
        f"checkpoint.dir {directory} is not the folder that node {first} has under that name, so checkpoints would be "
        f"in pieces; set checkpoint.dir to a folder that all nodes share"
    )
