"""What a rank did in a drill, one JSON line a step, and a digest of all it holds at the Session's end.

Two runs that are to be equal are compared by these lines (zrun.drill). Knows nothing about faults.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zrun.core.appointments import Drill
from zrun.core.private import open_append
from zrun.worker.rank import ThisRank

if TYPE_CHECKING:
    from zrun.state.blocks import Block

_DIGEST: Final = "sha256"


class Trace:
    """Of one rank in one attempt. Each line is one write, so it outlives the rank. Raises OSError at its begin."""

    def __init__(self, drill: Drill, rank: ThisRank) -> None:
        self._rank = rank
        self._metrics: dict[str, str] = {}
        self._file = open_append(drill.trace(rank.attempt, rank.rank))
        self._say({"rank": rank.rank, "attempt": rank.attempt, "pid": os.getpid(), "world_size": rank.world_size})

    def heard(self, metrics: Mapping[str, Any]) -> None:
        """What the script reports of the step being done. By `repr`, so that every bit counts."""
        self._metrics |= {name: repr(value) for name, value in metrics.items()}

    def completed(self, step: int, batch: str | None, *, session: bool) -> None:
        metrics, self._metrics = self._metrics, {}
        self._say({"step": step, "batch": batch, "session": session, "metrics": metrics})

    def ended(self, step: int, blocks: "Sequence[Block]", values: Mapping[str, Any]) -> None:
        """The state after `step`: a digest of each tensor's bytes and of each value."""
        from zrun.state.tensor_bytes import on_cpu, view_of

        found: dict[str, str] = {}
        for block in blocks:
            host = on_cpu(block.local)
            found[block.key] = hashlib.new(_DIGEST, view_of(host)).hexdigest()
        for name, value in values.items():
            text = json.dumps(value, sort_keys=True, default=repr)
            found[f"{name} (values)"] = hashlib.new(_DIGEST, text.encode()).hexdigest()
        self._say({"ended": step, "state": found})

    def _say(self, line: dict[str, Any]) -> None:
        text = json.dumps({"at": time.time(), **line}) + "\n"
        try:
            os.write(self._file, text.encode())
        except OSError as error:  # without it the drill says that a step is missing; training is not its business
            self._rank.trace = None
            self._rank.warn(f"this drill's trace cannot be written: {error}")
