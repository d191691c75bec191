"""One save of one rank: copied while training stands still, written and committed by all ranks in the background.

No rank ends it before all know how it ended; if one fails, it failed for all and nothing changed under a final name.
"""

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from zrun.core import storage
from zrun.core.errors import CheckpointError
from zrun.core.manifest import Chunk, Manifest, ShardFile, TensorEntry
from zrun.core.place import Place, place_of
from zrun.state import claims, commit
from zrun.state.agree import Agreement
from zrun.state.blocks import Block
from zrun.state.claims import Claim
from zrun.state.disk_errors import DiskFullError, explained
from zrun.state.division import Divider, Division, decided, sha
from zrun.state.kill_points import reached
from zrun.state.progress import Progress
from zrun.state.safetensors_file import write
from zrun.state.source import RANKS
from zrun.state.staging import Buffers
from zrun.state.tensor_bytes import dtype_name


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a manifest says about where it comes from."""

    job: str
    name: str
    fingerprint: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Staged:
    """What training need not stand still for any more. `problem`: why this rank could not copy."""

    blocks: dict[int, Block]
    """The copies."""
    division: Division
    values: dict[str, Any]
    progress: Progress
    problem: str | None


class Saver:
    """Saves one rank's blocks into `directory`. `front` is used on the training thread, `back` in the background."""

    def __init__(
        self, directory: Place, front: Agreement, back: Agreement, cores: int, warn: Callable[[str], None]
    ) -> None:
        self.directory = directory
        self.back = back
        self.divider = Divider(front)
        self.doing = ""
        """What the background is at, in words."""
        self._buffers = Buffers(cores)
        self._warn = warn

    def stage(self, blocks: Sequence[Block], values: dict[str, Any], progress: Progress, problem: str | None) -> Staged:
        """Copy what this rank is to write. Collective. CheckpointError on every rank if any has a `problem`."""
        division = self.divider.divide(blocks, problem)
        copied: dict[int, Block] = {}
        failed = None
        try:
            copies = self._buffers.copy({index: blocks[index] for index in division.copied})
            copied = {index: replace(blocks[index], local=copy) for index, copy in copies.items()}
        except CheckpointError as error:
            failed = str(error)  # the others are told in the background
        reached("copy")
        return Staged(copied, division, values, progress, failed)

    def commit(self, staged: Staged, stamp: Stamp, claim: Claim) -> tuple[Place, int]:
        """(folder, bytes). Collective, in the background.

        CheckpointError on every rank if any failed; a dead peer is a RuntimeError.
        """
        self.doing = "agrees with the other ranks"
        values = self._merged(staged)
        mine = decided(self.back, staged.division, {index: b.local for index, b in staged.blocks.items()})
        blocks = {name: staged.blocks[index] for index, name in mine.items()}
        needed = sum(self.back.numbers(sum(block.bytes for block in blocks.values())))
        step = staged.progress.step
        unfinished = self._first(lambda: self._begin(step, needed, claim))
        try:
            self.doing = "writes"
            written = self._write(unfinished, blocks, step)
            self.doing = "commits"
            final = self._first(lambda: self._publish(unfinished, written, values, staged.progress, stamp, claim))
        except CheckpointError:
            self._drop(unfinished)
            raise
        return final, sum(shard["bytes"] for shard, _ in written if shard)

    def _merged(self, staged: Staged) -> dict[str, Any]:
        """The values of all ranks in one."""
        seen = self.back.gather([staged.problem, sha(staged.values)])
        _raise_if({rank: ["", "CheckpointError", entry[0], ""] for rank, entry in enumerate(seen) if entry[0]})
        if len({entry[1] for entry in seen}) == 1:
            return staged.values
        return merge(self.back.gather(staged.values))

    def _first(self, act: Callable[[], Place]) -> Place:
        """Let rank 0 act; its failure becomes everybody's."""
        answer = ["", "", "", ""]
        if self.back.rank == 0:
            answer = _outcome(act, self.directory)
        made, *failure = self.back.from_first(answer)
        _raise_if({0: [made, *failure]} if failure[0] else {})
        return place_of(made)

    def _begin(self, step: int, needed: int, claim: Claim) -> Place:
        if claims.renewed(self.directory, claim):
            self._warn(f"{self.directory} was removed while the job ran; it is made again")
        return commit.begin(self.directory, step, claim.attempt, needed, self._warn)

    def _write(self, unfinished: Place, blocks: dict[str, Block], step: int) -> list[Any]:
        """Every rank's [file, chunks], after all of them are on disk."""
        rank = self.back.rank
        made: list[Any] = [None, []]

        def act() -> Place:
            if blocks:
                store = storage.of(unfinished)
                made[:] = store.again(lambda: _write_shard(unfinished, rank, blocks, step))
            return unfinished

        outcome = _outcome(act, unfinished)
        reached("part")
        gathered = self.back.gather([outcome, made])
        _raise_if({rank: entry[0] for rank, entry in enumerate(gathered) if entry[0][1]})
        return [entry[1] for entry in gathered]

    def _publish(
        self, unfinished: Place, written: list[Any], values: dict[str, Any], progress: Progress, stamp: Stamp,
        claim: Claim,
    ) -> Place:  # fmt: skip
        claims.refuse_if_overtaken(self.directory, claim.attempt)
        manifest = Manifest(
            job=stamp.job,
            name=stamp.name,
            attempt=claim.attempt,
            step=progress.step,
            batch=progress.batch,
            world_size=self.back.world_size,
            strategy=progress.strategy,
            saved_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            files=[ShardFile(**shard) for shard, _ in written if shard],
            tensors=_entries([chunk for _, chunks in written for chunk in chunks]),
            values=values,
            cursor=progress.cursor,
            fingerprint=stamp.fingerprint,
            versions={"torch": torch.__version__, "python": platform.python_version()},
        )
        return commit.publish(unfinished, manifest, self._warn)

    def _drop(self, unfinished: Place) -> None:
        """At once and not by way of the trash: on a full disk there may be no room for another folder."""
        if self.back.rank == 0:
            store = storage.of(unfinished)
            try:
                if store.exists(unfinished):
                    store.remove_all(unfinished)
            except OSError as error:
                self._warn(f"{unfinished} could not be removed: {error}")


def merge(values: list[dict[str, Any]]) -> dict[str, Any]:
    """All ranks' values in one: the first rank's word counts, others that differ are kept under their rank."""
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for rank, mine in enumerate(values):
        for key, value in mine.items():
            # As text: equal numbers of different types (1 and 1.0, 0.0 and -0.0) are not the same value.
            if json.dumps(shared.setdefault(key, value)) != json.dumps(value):
                own.setdefault(str(rank), {})[key] = value
    return shared | ({RANKS: own} if own else {})


def _write_shard(folder: Place, rank: int, blocks: dict[str, Block], step: int) -> list[Any]:
    path = folder / f"rank-{rank}.safetensors"
    # An empty part of a tensor that others hold needs no place in a file.
    filled = {name: b for name, b in blocks.items() if b.bytes or not all(b.shape)}
    done = write(path, {name: b.local for name, b in filled.items()}, {"format": "pt", "step": str(step)})
    shard = ShardFile(path.name, done.bytes, done.digest, rank)
    chunks = [
        [
            name, dtype_name(b.local.dtype, name), list(b.shape),
            asdict(Chunk(path.name, done.spans[name].start, done.spans[name].end,
                         list(b.offsets), list(b.local.shape), done.spans[name].digest)),
        ]
        for name, b in filled.items()
    ]  # fmt: skip
    return [asdict(shard), chunks]


def _entries(chunks: list[Any]) -> dict[str, TensorEntry]:
    found: dict[str, TensorEntry] = {}
    for name, dtype, shape, chunk in sorted(chunks, key=lambda c: str(c[0])):
        entry = found.setdefault(name, TensorEntry(dtype, shape, []))
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise CheckpointError(f"{name} has another dtype or shape on another rank")
        entry.chunks.append(Chunk(**chunk))
    return found


def _outcome(act: Callable[[], Place], path: Place) -> list[str]:
    """[result, kind of error, its text, its hint]: a failure as something that other ranks can be told."""
    try:
        return [str(act()), "", "", ""]
    except OSError as error:
        told = explained(error, path)
        return ["", type(told).__name__, str(told), told.hint]
    except CheckpointError as error:
        return ["", type(error).__name__, str(error), error.hint]
    except Exception as error:  # whatever it is, the other ranks wait to hear that it failed
        return ["", "CheckpointError", f"{type(error).__name__}: {error}", ""]


def _raise_if(failed: dict[int, list[str]]) -> None:
    if not failed:
        return
    kind = DiskFullError if any(f[1] == "DiskFullError" for f in failed.values()) else CheckpointError
    # Who ran out of room comes first: the others may only have seen the echo.
    order = sorted(failed, key=lambda rank: (failed[rank][1] != kind.__name__, rank))
    raise kind("; ".join(f"rank {rank}: {failed[rank][2]}" for rank in order), hint=failed[order[0]][3])
