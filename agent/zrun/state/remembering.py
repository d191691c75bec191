"""One collective restore from memory: the newest step that every rank finds whole in its node's memory.

Only where that is no older than the newest checkpoint, and no later attempt went on from before it. Whatever is wrong
with it, checkpoints on disk are the way on: nothing here ends a job.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zrun.core.errors import CheckpointError, StoreError
from zrun.core.local_disk import LocalFile
from zrun.core.manifest import claims, newest_complete, overtaken_by
from zrun.core.place import Place
from zrun.core.storage import OpenFile
from zrun.state import recalling
from zrun.state.agree import Agreement
from zrun.state.fits import differences
from zrun.state.parts import Parts
from zrun.state.places import on_this_node
from zrun.state.progress import Progress, Restored
from zrun.state.recalling import Key, Memory, Recalled
from zrun.state.restoring import progress_of
from zrun.state.source import Source


class MemorySource(Source):
    """A step in memory as one rank sees it."""

    def __init__(self, recalled: Recalled, rank: int) -> None:
        super().__init__(Path("memory"), recalled.manifest, rank, recalled.manifest.world_size)
        self._paths = recalled.files

    def _hold(self) -> None:
        """Its keeper holds it."""

    def _opened(self, name: str) -> OpenFile:
        handle = os.open(self._paths[name], os.O_RDONLY | os.O_CLOEXEC)
        self._open.callback(os.close, handle)
        return LocalFile(handle)


class Remembering:
    """Made on every rank for one restore."""

    def __init__(self, agreement: Agreement, job: str, tell: Callable[[str], None]) -> None:
        self._agreement, self._job, self._tell = agreement, job, tell

    def restore(self, directory: Place, parts: Parts, fingerprint: dict[str, Any]) -> Restored | None:
        """None: the disk has to do."""
        offered: dict[Key, Recalled] = {}
        refused: list[tuple[int, str]] = []
        try:
            self._look(offered, refused)
        except Exception as error:  # left by another version of zrun, for one; the other ranks wait to hear
            self._tell(f"what is in memory cannot be read: {type(error).__name__}: {error}")
        common = self._common(directory, list(offered), refused)
        for key in common:
            recalled = offered[key]
            reason = self._try(recalled, parts, fingerprint)
            if reason is None:
                return Restored(self._finish(recalled, parts), None, tier="memory")
            self._tell(f"step {key.step} in memory passed over: {reason}")
        return None

    def _look(self, offered: dict[Key, Recalled], refused: list[tuple[int, str]]) -> None:
        """What this node's memory can give back, and why not of the rest."""
        places = on_this_node()
        memory = recalling.look(places, self._job, self._agreement.world_size) if places else Memory()
        for key in memory.moments():
            recalled = memory.recall(key, places)
            if isinstance(recalled, str):
                refused.append((key.step, recalled))
            else:
                offered[key] = recalled

    def _common(self, directory: Place, offered: list[Key], refused: list[tuple[int, str]]) -> list[Key]:
        """What all ranks offer and nothing speaks against, newest first."""
        disk: dict[str, Any] = {}
        if self._agreement.rank == 0:
            try:
                disk = {"newest": newest_complete(directory, self._job), "claims": list(claims(directory).items())}
            except (StoreError, OSError):  # it may hold a newer one, and a claim that speaks against all there is here
                disk = {"newest": None, "claims": [], "silent": True}
        heard = self._agreement.gather([[[key.attempt, key.step] for key in offered], refused[:1], disk])
        if heard[0][2].get("silent"):
            return []
        newest = heard[0][2]["newest"] or 0
        claimed = {int(attempt): int(step) for attempt, step in heard[0][2]["claims"]}
        on_all = [key for key in offered if all([key.attempt, key.step] in keys for keys, _, _ in heard)]
        chosen = [
            key for key in on_all if key.step >= newest and overtaken_by(key.attempt, key.step, claimed) is None
        ]  # fmt: skip
        told = [f"step {step}: {why}" for _, said, _ in heard for step, why in said if step > newest]
        if told and not chosen:
            self._tell(f"what is in memory cannot be used, {told[0]}")
        return sorted(chosen, key=lambda key: (-key.step, -key.attempt))

    def _try(self, recalled: Recalled, parts: Parts, fingerprint: dict[str, Any]) -> str | None:
        """Load it; the reason why not, the same on every rank."""
        flaw = None
        try:
            unfit = differences(parts.layout(), fingerprint, recalled.manifest, frozenset())
            flaw = "; ".join(d.text for d in unfit) or None
        except CheckpointError as error:
            flaw = str(error)
        if (reason := self._agree(flaw)) is not None:
            return reason
        try:
            with MemorySource(recalled, self._agreement.rank) as source:
                parts.load(source)
        except Exception as error:  # whatever it is, the other ranks wait to hear; the disk is next
            flaw = str(error) or type(error).__name__
        return self._agree(flaw)

    def _agree(self, flaw: str | None) -> str | None:
        failed = self._agreement.problems(flaw)
        return "; ".join(f"rank {rank}: {text}" for rank, text in failed.items()) or None

    def _finish(self, recalled: Recalled, parts: Parts) -> Progress:
        with MemorySource(recalled, self._agreement.rank) as source:
            for warning in parts.resume(source):
                self._tell(warning)
            return progress_of(recalled.manifest, source)
