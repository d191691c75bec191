"""Checkpoints that a person wants to keep: one small file each in `checkpoint.dir/.zrun/pins`.

A pin names step and job, so it outlives a checkpoint that is saved again and means nothing for another run's.
Knows nothing about what is kept or deleted otherwise.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from zrun.core import storage
from zrun.core.durable import json_bytes
from zrun.core.manifest import CONTROL, Found, folder_name
from zrun.core.place import Place

_PIN: Final = re.compile(r"step-(\d{6,})\.json")


def pin(directory: Place, found: Found, at: str) -> None:
    """`at`: when, for people. Raises OSError."""
    job = found.manifest.job if found.manifest else None
    said = json_bytes({"step": found.step, "job": job, "at": at})
    storage.of(directory).write(_pin_of(directory, found.step), said)


def unpin(directory: Place, step: int) -> bool:
    """False: it was not pinned. Raises OSError."""
    return storage.of(directory).remove(_pin_of(directory, step))


def _pin_of(directory: Place, step: int) -> Place:
    return directory / CONTROL / "pins" / f"{folder_name(step)}.json"


def pinned(directory: Place, found: Sequence[Found]) -> set[int]:
    """The steps among `found` that are pinned. A pin that cannot be read counts: better one too many is kept."""
    folder = directory / CONTROL / "pins"
    steps = {f.step: f for f in found}
    kept: set[int] = set()
    for name in storage.of(folder).files(folder):
        match = _PIN.fullmatch(name)
        one = steps.get(int(match[1])) if match else None
        if one is not None and _job_of(folder / name) in {None, one.manifest.job if one.manifest else None}:
            kept.add(one.step)
    return kept


def _job_of(entry: Place) -> str | None:
    try:
        job = json.loads(storage.of(entry).read(entry))["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if job is None else str(job)
