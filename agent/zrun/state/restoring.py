"""One collective restore: which checkpoints there are, do they fit, load the newest that every rank finds whole.

A rank loads in place and checks each digest on the way; if any rank finds a flaw, all load the next older one over
it. There is no way on with a half-loaded state: either one loads everywhere, or every rank raises.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from zrun.core import manifest as manifests
from zrun.core import storage
from zrun.core.errors import CheckpointError, DamagedError, StoreError
from zrun.core.manifest import MANIFEST, Manifest, claims, mark_damaged, scan
from zrun.core.place import Place, place_of
from zrun.state import commit
from zrun.state.agree import Agreement
from zrun.state.fits import Difference, differences
from zrun.state.parts import Parts
from zrun.state.progress import Progress, Restored
from zrun.state.source import RANKS, Source
from zrun.state.values import decode

_ANEW: Final = "start anew with --fresh, or name one with checkpoint.resume: PATH"

_LISTED: Final = 8
_OWN_NAMES: Final = {"progress": "run.state"}
_SAID_APART: Final = ("rng/", "hook/", "arrival/")
"""What of them is not taken over from rank 0, or where only rank 0's ever counts."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One checkpoint folder, as rank 0 saw it; `reason` says why it cannot be used, if so."""

    path: str
    state: str
    reason: str
    job: str | None

    @property
    def place(self) -> Place:
        return place_of(self.path)


class Restorer:
    """Made on every rank for one restore."""

    def __init__(self, agreement: Agreement, job: str, allowed: Collection[str], tell: Callable[[str], None]) -> None:
        self._agreement = agreement
        self._job = job
        self._allowed = frozenset(allowed)
        self._tell = tell

    def restore(
        self, directory: Place, given: Place | None, parts: Parts, fingerprint: dict[str, Any], *, others: bool
    ) -> Restored:
        """Look in `directory`, then in `given`; `others`: another run's checkpoints in `directory` do not count."""
        candidates, begun_anew = self._candidates(directory, given, others=others)
        skipped: list[dict[str, str]] = []
        for candidate in candidates:
            reason = candidate.reason if candidate.state != "complete" else self._try(candidate, parts, fingerprint)
            if reason is None:
                progress = self._finish(candidate.place, parts)
                return Restored(progress, candidate.place, skipped)
            skipped.append({"path": candidate.path, "reason": reason})
            self._tell(f"{candidate.place.name} passed over: {reason}")
        if skipped and not (begun_anew and all(c.state == "overtaken" for c in candidates)):
            listed = "; ".join(f"{place_of(s['path']).name}: {s['reason']}" for s in skipped)
            raise CheckpointError(f"checkpoints exist in {directory}, but none is valid ({listed})", hint=_ANEW)
        if given is not None and not candidates:
            raise CheckpointError(
                f"there is no checkpoint in {given}", hint="name a step-N folder or the one around it"
            )
        return Restored(None, None, skipped)

    def _candidates(self, directory: Place, given: Place | None, *, others: bool) -> tuple[list[Candidate], bool]:
        """What rank 0 sees, newest first; and whether the newest attempt itself began from nothing."""
        answer: list[Any] = [[], False, None]
        if self._agreement.rank == 0:
            try:
                commit.mend(directory)
                found = [_seen(directory, own=self._job) if others else _seen(directory)]
                if given is not None:
                    found.append(_seen(given))
                claimed = claims(directory)
                answer = [
                    [entry for place in found for entry in place],
                    bool(claimed) and claimed[max(claimed)] == 0,
                    None,
                ]
            except StoreError as error:
                answer[2] = f"{error} ({error.hint})" if error.hint else str(error)
            except OSError as error:
                answer[2] = f"cannot look into {error.filename or directory}: {error.strerror or error}"
        listed, begun_anew, problem = self._agreement.from_first(answer)
        if problem is not None:
            raise CheckpointError(problem)
        candidates = [Candidate(*fields) for fields in listed]
        foreign = sorted({c.job for c in candidates if c.job is not None} - {self._job})
        if foreign and not others:
            raise CheckpointError(f"{directory} holds checkpoints of another run, {', '.join(foreign)}", hint=_ANEW)
        return candidates, begun_anew

    def _try(self, candidate: Candidate, parts: Parts, fingerprint: dict[str, Any]) -> str | None:
        """Load one; the reason why not, the same on every rank. CheckpointError if it is whole but does not fit."""
        path = candidate.place
        manifest, flaw, unfit = None, None, []
        unanswered = False
        try:
            manifest = manifests.read(path)
            unfit = differences(parts.layout(), fingerprint, manifest, self._allowed)
        except (OSError, CheckpointError, UnicodeDecodeError) as error:
            flaw, unanswered = str(error), isinstance(error, StoreError)
        reason = self._agree(flaw, unanswered=unanswered)
        if reason is not None or manifest is None:
            return reason
        self._refuse(path, unfit)
        skip = frozenset(name for difference in unfit for name in difference.skip)
        damaged = False
        try:
            with Source(path, manifest, self._agreement.rank, self._agreement.world_size) as source:
                parts.load(source, skip)
        except (OSError, CheckpointError) as error:
            flaw, damaged, unanswered = str(error), isinstance(error, DamagedError), isinstance(error, StoreError)
        except Exception as error:  # a load_state_dict of the user's; the other ranks wait to hear
            flaw = f"{type(error).__name__}: {error}"
        reason = self._agree(flaw, unanswered=unanswered)
        if reason is not None:
            self._mark(path, manifest, reason, damaged=damaged)
        return reason

    def _mark(self, path: Place, manifest: Manifest, reason: str, *, damaged: bool) -> None:
        """So that no retention counts it among the good ones, and nobody loads half of it again."""
        if any(self._agreement.gather(damaged)) and self._agreement.rank == 0:
            try:
                mark_damaged(path, manifest, reason)
            except OSError as error:
                self._tell(f"{path.name} is damaged, and cannot be marked so: {error}")

    def _agree(self, flaw: str | None, *, unanswered: bool) -> str | None:
        """Why any rank cannot use it. CheckpointError if a store does not answer: that is no reason to take an older
        one, which would make the newer one invalid.
        """
        seen = self._agreement.gather([flaw, unanswered])
        told = "; ".join(f"rank {rank}: {text}" for rank, (text, _) in enumerate(seen) if text is not None)
        if any(silent for _, silent in seen):
            raise CheckpointError(f"a checkpoint could not be read: {told}", hint="nothing is lost; try again later")
        return told or None

    def _refuse(self, path: Place, unfit: list[Difference]) -> None:
        seen = self._agreement.gather([[d.key, d.text] for d in unfit])
        texts = {text: key for rank in seen for key, text in rank}
        refused = {text: key for text, key in texts.items() if key not in self._allowed}
        if refused:
            keys = " ".join(f"--allow-changed {key}" for key in sorted(set(refused.values())))
            raise CheckpointError(
                f"{path} does not fit this job: " + "; ".join(refused),
                hint=f"go on all the same with {keys}, or start anew with --fresh",
            )
        for text in texts:
            self._tell(f"{path.name}: {text} (allowed)")

    def _finish(self, path: Place, parts: Parts) -> Progress:
        manifest = manifests.read(path)
        with Source(path, manifest, self._agreement.rank, self._agreement.world_size) as source:
            for warning in parts.resume(source):
                self._tell(warning)
            progress = progress_of(manifest, source)
        own = _own(manifest)
        if own and manifest.world_size != self._agreement.world_size:
            listed = ", ".join(own[:_LISTED]) + (f" and {len(own) - _LISTED} more" if len(own) > _LISTED else "")
            self._tell(
                f"saved by {manifest.world_size} ranks, which had values of their own; rank 0's are used: {listed}"
            )
        return progress


def progress_of(manifest: Manifest, source: Source) -> Progress:
    """How far the run had come that left it."""
    held = decode(source.values["progress"], source.whole)
    return Progress(
        step=manifest.step,
        cursor=manifest.cursor,
        batch=manifest.batch,
        run_state=held["run_state"],
        quarantined=held["quarantined"],
        strategy=manifest.strategy,
    )


def _own(manifest: Manifest) -> list[str]:
    """What was not the same on all ranks that saved it, by name."""
    values = {key for rank in manifest.values.get(RANKS, {}).values() for key in rank}
    tensors = {name.partition("#")[0] for name in manifest.tensors if "#" in name}
    return sorted(_OWN_NAMES.get(key, key) for key in values | tensors if not key.startswith(_SAID_APART))


def _seen(folder: Place, own: str | None = None) -> list[list[Any]]:
    """The checkpoints in a folder, or the folder itself if it is one; with `own`, that job's only."""
    if storage.of(folder).exists(folder / MANIFEST):
        found = [f for f in scan(folder.parent) if f.path.name == folder.name]
        if not found:
            return [[str(folder), "complete", "", None]]
    else:
        found = scan(folder)
    return [
        [str(f.path), f.state, f.reason, f.manifest.job if f.manifest else None]
        for f in found
        if own is None or (f.manifest is not None and f.manifest.job == own)
    ]
