"""The data side of one Session: from which batch on the Loader reads, what it leaves out, and what is kept of that.

Knows nothing about steps, and not how samples are read (zrun.data).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from zrun.core import durable, env
from zrun.core.notes import NoteKind
from zrun.core.runfolder import RunFolder
from zrun.data.loader import Loader, Share
from zrun.state.progress import Progress
from zrun.worker.rank import ThisRank

_JOB: Final = "job"
_INHERITED: Final = "inherited"


class Feeding:
    """One per Session with a Loader."""

    def __init__(self, here: ThisRank, loader: Loader, number: int) -> None:
        self.loader = loader
        self._here = here
        self._number = number
        self._skipped: list[str] = []
        self._inherited: list[str] = []
        self._ended = -1

    def attach(self, world_size: int) -> dict[str, Any]:
        """What a checkpoint must agree with. Refuses data that cannot be sought, before anything is loaded."""
        loader = self.loader
        loader.attach(self._number, world_size, self._here.settings.seed)
        if self._number == 0:
            for remark in loader.remarks():
                self._here.warn(remark)
        return {"data": loader.fingerprint(), "global_batch": loader.global_batch, "order": loader.order}

    def seek(self, progress: Progress | None) -> None:
        """To where `progress` stands, or to the beginning.

        What is left out is the order's word; what another run had left out when it saved this stays left out too.
        """
        cursor = progress.cursor if progress is not None else {}
        known = cursor.get("data") or {}
        if progress is not None:
            self._skipped = list(progress.quarantined)
            own = cursor.get(_JOB) == env.get(env.JOB)
            self._inherited = list(cursor.get(_INHERITED, []) if own else known.get("skip", []))
        ordered = self._here.settings.quarantined
        for batch in sorted({*self._inherited} - {*ordered}) if self._number == 0 else ():
            self._here.warn(f"batch {batch} is left out: the run whose checkpoint this is had found it bad")
        done = cursor.get("ordinal", progress.step if progress is not None else 0)
        self.loader.seek(done, {*ordered, *self._inherited}, known.get("ended", ()))
        self._tell()

    def cursor(self, done: int | None = None) -> dict[str, Any]:
        """For the checkpoint; after batch `done`, or as it is now."""
        return {**self.loader.cursor(done), _JOB: env.get(env.JOB), _INHERITED: self._inherited}

    def cursor_later(self) -> Callable[[], dict[str, Any]]:
        """The cursor as it is now, made when it is wanted."""
        return partial(self.cursor, self.loader.done)

    @property
    def skipped(self) -> list[str]:
        """Batches left out so far."""
        return list(self._skipped)

    def next(self, shares: Iterator[Share], step: int) -> Share | None:
        """This rank's share of the next global batch; None: the data is over, on every rank alike."""
        share = next(shares, None)
        for batch in share.skipped if share is not None else ():
            self._skipped.append(str(batch))
            self._here.note(NoteKind.QUARANTINED, step=step, batch=str(batch))
        self._tell()
        return share

    def _tell(self) -> None:
        """`data.json` of the run's folder: what `zrun batches` computes its answer from. Anew when an epoch ended."""
        run, ended = env.get(env.RUN_DIR), self.loader.epochs_ended
        if self._number != 0 or not run or ended == self._ended:
            return
        self._ended = ended
        try:
            durable.write_json(RunFolder(Path(run)).data, self.loader.facts().to_dict())
        except OSError as error:  # no reason to end training: each checkpoint has them too
            self._here.warn(f"what `zrun batches` answers from cannot be written: {error}")
