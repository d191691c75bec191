"""Is checkpoint.dir one and the same folder on every node of an attempt? The first node leaves a file there that has
a name nobody else could know, and every other node has to see it before it starts a rank.

The others look only once the first one has told its port, which it does after the file is there. An object store is
asked in a process with the ranks' python and variables: so it is known before a rank starts that both are fit. Decides
nothing.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zrun.agent.launch import Where, link_rank_path, python_of
from zrun.core.durable import create_exclusive
from zrun.core.manifest import CONTROL
from zrun.core.place import ObjectPath, place_of
from zrun.core.private import make_folder
from zrun.core.store_look import SIGN, answer_in
from zrun.spec.job import JobSpec
from zrun.wire.order import LaunchPlan

LOOK_S: Final = 10.0
"""A network file system may show a new name late."""
_AGAIN_S: Final = 0.1
_ANSWERS_S: Final = 120.0
"""A store that says nothing for so long, with all its client's tries, is not waited for."""


async def of_job(spec: JobSpec, where: Where, plan: LaunchPlan, environment: Mapping[str, str]) -> str:
    """As `look`, wherever the job's checkpoints are."""
    place = place_of(spec.checkpoint.dir, where.folder.root)
    if not isinstance(place, ObjectPath):
        return await look(place, where.job, plan)
    name = name_of(where.job, plan)
    act = ["leave", str(place), name] if plan.node_rank == 0 else ["seen", str(place), name, str(LOOK_S)]
    try:
        link_rank_path(where.folder.rank_path)
        child = await asyncio.create_subprocess_exec(
            python_of(spec), "-m", "zrun.core.store_look", *act, env=dict(environment), cwd=spec.workdir,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return f"checkpoint.dir {place} cannot be asked for: {error.strerror or error}"
    try:
        said, trouble = await asyncio.wait_for(child.communicate(), _ANSWERS_S)
    except TimeoutError:
        return f"checkpoint.dir {place} did not answer within {_ANSWERS_S:.0f} s"
    finally:
        if child.returncode is None:
            child.kill()
    answer = answer_in(said.decode("utf-8", "replace"), trouble.decode("utf-8", "replace"))
    if "error" in answer:
        return f"checkpoint.dir {place}: {answer['error']}" + (f" ({answer['hint']})" if answer["hint"] else "")
    return "" if answer["seen"] else _unseen(place, plan)


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
    return f"{SIGN}{plan.attempt}-{hashlib.sha256(f'{job}/{plan.attempt}/{plan.key}'.encode()).hexdigest()[:16]}"


def _leave(directory: Path, name: str) -> str:
    try:
        make_folder(directory / CONTROL)
        for old in (directory / CONTROL).glob(f"{SIGN}*"):
            old.unlink(missing_ok=True)
        create_exclusive(directory / CONTROL / name, b"")
    except OSError as error:
        return f"checkpoint.dir {directory} cannot be written: {os.strerror(error.errno or 0)}"
    return ""


def _unseen(directory: Path | ObjectPath, plan: LaunchPlan) -> str:
    first = plan.peers[0].node if plan.peers else plan.master_addr
    return (
        f"checkpoint.dir {directory} is not the folder that node {first} has under that name, so checkpoints would be "
        f"in pieces; set checkpoint.dir to a folder that all nodes share"
    )
