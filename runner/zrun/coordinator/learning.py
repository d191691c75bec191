"""What a job has taught about its own pace, kept in the run folder: for the next attempt, coordinator and launch.

It only sets how soon a suspect is named, so a lost or foreign file costs nothing; replay does not read it.
"""

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from zrun.coordinator.scribe import Scribe
from zrun.core.runfolder import RunFolder
from zrun.machine.limits import Learned
from zrun.spec.job import JobSpec, spec_to_dict

FILE: Final = "learned.json"
EVERY_S: Final = 3.0
_NO_MATTER: Final = {"name", "watchdog", "restart", "logs", "notify", "labels", "allow_changed", "max_duration_s",
                     "stop_grace_s", "preempt", "standby"}  # fmt: skip
"""What a step's pace does not depend on."""


class Learning:
    """Of one job; `learned` is the newest that is known to be on the disk, or on its way there."""

    def __init__(self, folder: RunFolder, scribe: Scribe, spec: JobSpec) -> None:
        self._folder = folder
        self._scribe = scribe
        self.learned = _read(folder.root / FILE, _pace(spec))
        self._looked_at = -math.inf

    def due(self, now: float) -> bool:
        """`now` is machine time."""
        return now - self._looked_at >= EVERY_S

    def keep(self, learned: Learned, spec: JobSpec, now: float) -> None:
        self._looked_at = now
        if learned == self.learned:
            return
        self.learned = learned
        value = {"of": _pace(spec), **asdict(learned)}
        self._scribe.put_json(self._folder.root, self._folder.root / FILE, value)


def _pace(spec: JobSpec) -> str:
    """Equal for two jobs whose steps take equally long."""
    told = {key: value for key, value in spec_to_dict(spec).items() if key not in _NO_MATTER}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read(path: Path, pace: str) -> Learned | None:
    try:
        value = json.loads(path.read_text())
        if value.get("of") != pace:
            return None
        return Learned(
            step_s=_seconds(value["step_s"]), warm_s=_seconds(value["warm_s"]),
            phases_s={str(name): _seconds(seconds) for name, seconds in value["phases_s"].items()},
            pauses_s=tuple(_seconds(pause) for pause in value["pauses_s"]),
        )  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0.0 <= seconds < math.inf:
        raise ValueError(value)
    return seconds
