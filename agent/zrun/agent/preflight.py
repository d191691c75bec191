"""What can be known to be wrong before anything is started: missing script, python, folder, memory, disk, GPUs.

Each finding is a LaunchError whose text a person can act on. Starts nothing.
"""

import os
import shutil
from pathlib import Path

from zrun.agent.line_buffering import check_library
from zrun.core.errors import LaunchError
from zrun.spec.job import JobSpec, Resources
from zrun.wire.report import Vitals


def check_script(spec: JobSpec, python: str) -> None:
    """Raises LaunchError."""
    check_workdir(spec)
    check_library(spec)
    workdir = Path(spec.workdir)
    if resolve(python, workdir) is None:
        raise LaunchError(f"python {python} does not exist or is no program", "set python, or leave it out")
    if not spec.run:
        raise LaunchError("run is empty", "run: train.py")
    script = spec.run[0]
    if script.startswith("-"):
        return  # -m module: found (or not) by the rank's own python
    path = workdir / script
    if not path.is_file():
        raise LaunchError(f"script {path} does not exist", "run is looked up in workdir")
    if not os.access(path, os.R_OK):
        raise LaunchError(f"script {path} may not be read by this user")


def check_workdir(spec: JobSpec) -> None:
    """Raises LaunchError."""
    workdir = Path(spec.workdir)
    if not workdir.is_dir():
        raise LaunchError(
            f"workdir {workdir} is not a folder on this node", "set workdir to a folder that every node sees"
        )
    if not os.access(workdir, os.R_OK | os.X_OK):
        raise LaunchError(f"workdir {workdir} may not be read by this user")


def resolve(program: str, workdir: Path) -> str | None:
    """The program's path: beside `workdir` if it has a slash, else on PATH."""
    if "/" in program:
        path = workdir / program
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(program)


def check_resources(wanted: Resources, vitals: Vitals, run_dir: Path, shm: Path) -> None:
    """Raises LaunchError that names everything that is short."""
    short: list[str] = []
    if wanted.gpus is not None and vitals.gpus < wanted.gpus:
        short.append(f"{wanted.gpus} GPUs wanted, {vitals.gpus} here")
    for name, asked, free in (
        ("memory", wanted.memory_bytes, vitals.memory_bytes),
        ("shared memory", wanted.shm_bytes, _free(shm)),
        (f"disk under {run_dir}", wanted.disk_bytes, _free(run_dir)),
    ):
        if asked is not None and free < asked:
            short.append(f"{name}: {_size(asked)} wanted, {_size(free)} here")
    if short:
        raise LaunchError("this node is too small: " + "; ".join(short), "lower resources, or choose another node")


def _free(path: Path) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def _size(value: int) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"
