"""Checkpoints that a person wants to keep: one small file each in `checkpoint.dir/.zrun/pins`.

A pin names step and job, so it outlives a checkpoint that is saved again and means nothing for another run's.
Knows nothing about what is kept or deleted otherwise.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from zrun.core.durable import write_json
from zrun.core.manifest import CONTROL, Found, folder_name
from zrun.core.private import make_folder

_PIN: Final = re.compile(r"step-(\d{6,})\.json")


def pin(directory: Path, found: Found, at: str) -> None:
    """`at`: when, for people. Raises OSError."""
    folder = directory / CONTROL / "pins"
    make_folder(folder)
    job = found.manifest.job if found.manifest else None
    write_json(folder / f"{folder_name(found.step)}.json", {"step": found.step, "job": job, "at": at})


def unpin(directory: Path, step: int) -> bool:
    """False: it was not pinned. Raises OSError."""
    try:
        (directory / CONTROL / "pins" / f"{folder_name(step)}.json").unlink()
    except FileNotFoundError:
        return False
    return True


def pinned(directory: Path, found: Sequence[Found]) -> set[int]:
    """The steps among `found` that are pinned. A pin that cannot be read counts: better one too many is kept."""
    folder = directory / CONTROL / "pins"
    if not folder.is_dir():
        return set()
    steps = {f.step: f for f in found}
    kept: set[int] = set()
    for entry in folder.iterdir():
        match = _PIN.fullmatch(entry.name)
        one = steps.get(int(match[1])) if match else None
        if one is not None and _job_of(entry) in {None, one.manifest.job if one.manifest else None}:
            kept.add(one.step)
    return kept


def _job_of(entry: Path) -> str | None:
    try:
        job = json.loads(entry.read_text())["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if job is None else str(job)
