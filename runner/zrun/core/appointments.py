"""What a drill hands to each rank: which fault comes on which rank at which step, and where it leaves its traces.

One JSON value in the rank's environment; standard library only. Knows nothing about how a fault is brought about.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from zrun.core import durable

TRACE_SUFFIX: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class Appointment:
    """One fault. It comes once, whatever the attempt; a poisoned batch each time it is read."""

    number: int
    kind: str
    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Drill:
    """`folder`: of one of the two runs, with `traces` and `came` in it."""

    folder: str
    faults: tuple[Appointment, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Drill":
        """Raises ValueError, KeyError or TypeError for what no drill has written."""
        value: dict[str, Any] = json.loads(text)
        return cls(str(value["folder"]), tuple(Appointment(**one) for one in value["faults"]))

    @property
    def traces(self) -> Path:
        """attempt-A.rank-R.jsonl: what that rank did, step by step."""
        return Path(self.folder) / "traces"

    def trace(self, attempt: int, rank: int) -> Path:
        return self.traces / f"attempt-{attempt}.rank-{rank}{TRACE_SUFFIX}"

    @property
    def came(self) -> Path:
        """N.json: fault N has come; it holds when and where."""
        return Path(self.folder) / "came"

    def has_come(self, number: int) -> bool:
        return (self.came / f"{number}.json").exists()

    def comes(self, number: int, **where: Any) -> bool:
        """Note that fault `number` comes now; False if it had come before. Raises OSError."""
        try:
            durable.create_exclusive(
                self.came / f"{number}.json", json.dumps({"at": time.time(), **where}).encode() + b"\n"
            )
        except FileExistsError:
            return False
        return True
