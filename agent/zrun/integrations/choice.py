"""Which of a framework's own checkpoints to go on from: the newest that every rank finds whole; the same everywhere.

Knows no framework: who calls says which there are, newest first, and what one without a seal must hold.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zrun.core import seal
from zrun.core.errors import CheckpointError
from zrun.core.seal import Seal
from zrun.state.agree import Agreement

Lacking = Callable[[Path], str | None]
"""What a checkpoint without a seal lacks, in words; None: it has all that one of its kind has."""


@dataclass(frozen=True, slots=True)
class Candidate:
    path: Path
    step: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """`path` None: there is nothing to go on from. `skipped`: {path, reason} of each newer one."""

    path: Path | None
    step: int = 0
    seal: Seal | None = None
    skipped: list[dict[str, str]] = field(default_factory=list)


def choose(
    candidates: Sequence[Candidate], lacking: Lacking, agreement: Agreement, *, reader: bool, job: str | None
) -> Chosen:
    """Collective. `candidates` are rank 0's; `job`: only this one's own sealed ones count.

    `reader`: this rank reads every byte, as one on each file system should; the others look at sizes.
    """
    skipped: list[dict[str, str]] = []
    for path, step in agreement.from_first([[str(c.path), c.step] for c in candidates]):
        found = _Look(Path(path), lacking, reader=reader, job=job)
        if any(agreement.gather(found.foreign)):
            continue
        problems = agreement.problems(found.problem)
        if not problems:
            return Chosen(Path(path), step, found.seal, skipped)
        reason = "; ".join(f"rank {rank}: {text}" for rank, text in problems.items())
        skipped.append({"path": path, "reason": reason})
    return Chosen(None, skipped=skipped)


class _Look:
    """One checkpoint as this rank sees it."""

    def __init__(self, path: Path, lacking: Lacking, *, reader: bool, job: str | None) -> None:
        self.seal: Seal | None = None
        self.foreign = False
        self.problem: str | None = None
        try:
            self.seal = seal.read(path)
            if self.seal is None:
                self.foreign, self.problem = job is not None, lacking(path)
            else:
                self.foreign = job not in (None, self.seal.job)
                self.problem = None if self.foreign else seal.flaw(path, self.seal, deep=reader)
        except CheckpointError as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"{error.filename or path}: {error.strerror or error}"


def refuse_if_none(chosen: Chosen, place: Path, way_out: str) -> None:
    """CheckpointError, on every rank, if there are checkpoints and none is whole: nobody starts anew by accident."""
    if chosen.path is None and chosen.skipped:
        listed = "; ".join(f"{Path(s['path']).name}: {s['reason']}" for s in chosen.skipped)
        raise CheckpointError(f"checkpoints exist in {place}, but none is whole ({listed})", hint=way_out)


def put_aside(chosen: Chosen) -> list[str]:
    """Give those that were passed over other names, for the same steps will be saved again: nothing is deleted.

    What happened to each, in words. On rank 0 alone.
    """
    told: list[str] = []
    for item in chosen.skipped:
        path = Path(item["path"])
        target = path.with_name(f"unusable-{path.name}.{secrets.token_hex(3)}")
        try:
            beside = seal.place_of(path)
            path.rename(target)
            if not target.is_dir():
                beside.unlink(missing_ok=True)
            told.append(f"{path.name} passed over ({item['reason']}); it is now {target.name}")
        except OSError as error:
            told.append(f"{path.name} passed over ({item['reason']}); it cannot be renamed: {error.strerror or error}")
    return told


def as_facts(chosen: Chosen) -> dict[str, Any]:
    """For the agent's note of where this attempt went on."""
    path = str(chosen.path) if chosen.path is not None else None
    return {"tier": "disk" if path else None, "checkpoint": path, "skipped": chosen.skipped}
