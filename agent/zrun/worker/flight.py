"""Writes out torch's own flight recorder when the agent asks for it: what was enqueued, started and finished.

On a GPU a collective is over for Python as soon as it is enqueued; only torch's recorder knows which one the device
has not finished. Never run on NCCL. The watcher thread calls it, so it waits for nobody.
"""

import sys
from pathlib import Path

from zrun.worker.rank import ThisRank

_TOO_LARGE = 32 << 20


class FlightDump:
    """A sweeper: looks into the deck whether something new is asked for; `path` is replaced in one move."""

    def __init__(self, rank: ThisRank, path: Path) -> None:
        self._rank = rank
        self._path = path
        self._answered = 0

    def sweep(self, _moved_on: bool) -> None:
        """Never raises: these are inner parts of torch, and evidence is worth less than training."""
        asked = self._rank.deck.flight_asked() if self._rank.deck is not None else 0
        if asked == self._answered:
            return
        self._answered = asked
        try:
            module = sys.modules.get("torch._C._distributed_c10d")
            dump = getattr(module, "_dump_fr_trace_json", None)
            text: bytes = dump() if dump is not None else b""
            if text and len(text) <= _TOO_LARGE:
                unfinished = self._path.with_suffix(".flight-tmp")
                unfinished.write_bytes(text)
                unfinished.chmod(0o600)
                unfinished.replace(self._path)
        except Exception as error:
            self._rank.warn(f"torch's flight recorder cannot be read: {type(error).__name__}: {error}")
