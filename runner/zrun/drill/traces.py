"""The traces that ranks leave in a drill, read while they grow and when the run is over.

Knows the lines of zrun.worker.trace and nothing else.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zrun.core.appointments import TRACE_SUFFIX


@dataclass(frozen=True, slots=True)
class Step:
    """One step that one rank completed. Metrics by `repr`."""

    attempt: int
    rank: int
    step: int
    at: float
    batch: str | None
    session: bool
    metrics: dict[str, str]


@dataclass(frozen=True, slots=True)
class End:
    """What one rank held when its Session ended after `step`: name -> digest."""

    attempt: int
    rank: int
    step: int
    state: dict[str, str]


@dataclass(slots=True)
class Traced:
    """All that the ranks of one run have said so far."""

    steps: list[Step] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    pids: dict[tuple[int, int], int] = field(default_factory=dict)
    """(attempt, rank) -> pid."""
    world_size: int = 0
    completed: dict[int, dict[int, int]] = field(default_factory=dict)
    """attempt -> rank -> the last step it completed."""

    @property
    def attempt(self) -> int:
        """The newest one of which a rank has come to life."""
        return max((attempt for attempt, _ in self.pids), default=0)

    @property
    def last_step(self) -> int:
        return max((one.step for one in self.steps), default=0)

    @property
    def session(self) -> bool:
        """Did a Session count the steps?"""
        return any(one.session for one in self.steps)

    def done_by_all(self, attempt: int) -> int:
        """The last step that every rank of that attempt has completed."""
        done = self.completed.get(attempt, {})
        ranks = [rank for one, rank in self.pids if one == attempt]
        return min((done.get(rank, 0) for rank in ranks), default=0)

    def done_by_any(self, attempt: int) -> int:
        return max(self.completed.get(attempt, {}).values(), default=0)

    def first_step(self, attempt: int) -> Step | None:
        """The first one that all its ranks completed, by the slowest of them."""
        of_attempt = [one for one in self.steps if one.attempt == attempt]
        first = min((one.step for one in of_attempt), default=0)
        return max((one for one in of_attempt if one.step == first), key=lambda one: one.at, default=None)

    def take(self, line: dict[str, Any], attempt: int, rank: int) -> None:
        """One line of that rank's file."""
        if "pid" in line:
            self.pids[attempt, rank] = int(line["pid"])
            self.world_size = max(self.world_size, int(line["world_size"]))
        elif "ended" in line:
            self.ends.append(End(attempt, rank, int(line["ended"]), dict(line["state"])))
        elif "step" in line:
            step = int(line["step"])
            self.steps.append(
                Step(
                    attempt, rank, step, float(line["at"]), line["batch"], bool(line["session"]), dict(line["metrics"])
                )
            )
            self.completed.setdefault(attempt, {})[rank] = step


class Traces:
    """Of one run; `read` takes in what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.traced = Traced()

    def read(self) -> Traced:
        for path in sorted(self._folder.glob(f"*{TRACE_SUFFIX}")):
            attempt, rank = (int(part.rpartition("-")[2]) for part in path.name.removesuffix(TRACE_SUFFIX).split("."))
            for line in self._new_lines(path):
                self.traced.take(line, attempt, rank)
        return self.traced

    def _new_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        offset = self._offsets.get(path, 0)
        if path.stat().st_size == offset:
            return
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(whole)
        for text in whole.splitlines():
            try:
                yield json.loads(text)
            except ValueError:
                continue  # cut off by a full disk
