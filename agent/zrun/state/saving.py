"""One collective save: agree who writes what, write, agree again, and let rank 0 publish.

No rank goes on before all know how it ended; if one fails, all raise and nothing changed under a final name.
"""

import hashlib
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from zrun.core.errors import CheckpointError
from zrun.core.manifest import Chunk, Manifest, ShardFile, TensorEntry, folder_name
from zrun.state import claims, commit
from zrun.state.agree import Agreement
from zrun.state.blocks import Block, Copies
from zrun.state.progress import Progress
from zrun.state.safetensors_file import write
from zrun.state.source import RANKS
from zrun.state.tensor_bytes import dtype_name
from zrun.state.values import encode
from zrun.state.writers import Held, assign


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a manifest says about where it comes from."""

    job: str
    name: str
    attempt: int
    fingerprint: dict[str, Any]


@dataclass(slots=True)
class Saver:
    """Saves one rank's blocks into `directory`; keeps the division of work from one save to the next."""

    directory: Path
    agreement: Agreement
    warn: Callable[[str], None]
    _plans: dict[tuple[str, ...], dict[int, str]] = field(default_factory=dict)

    def save(self, blocks: list[Block], values: dict[str, Any], progress: Progress, stamp: Stamp) -> tuple[Path, int]:
        """(folder, bytes). Collective. CheckpointError on every rank if any failed; a dead peer is a RuntimeError."""
        mine, merged = self._divide(blocks, values)
        needed = sum(self.agreement.gather(sum(blocks[i].bytes for i in mine)))
        unfinished = self.directory / f"{folder_name(progress.step)}.attempt-{stamp.attempt}.tmp"
        self._first(lambda: commit.begin(self.directory, progress.step, stamp.attempt, needed, self.warn))
        try:
            written = self._write(unfinished, blocks, mine, progress.step)
            final = self._first(lambda: self._publish(unfinished, written, merged, progress, stamp))
        except CheckpointError:
            self._drop(unfinished)
            raise
        return Path(str(final)), sum(shard["bytes"] for shard, _ in written if shard)

    def _first(self, act: Callable[[], Path]) -> str:
        """Let rank 0 act; its failure becomes everybody's."""
        answer: list[str] = ["", "", ""]
        if self.agreement.rank == 0:
            answer = _outcome(act, self.directory)
        answer = self.agreement.from_first(answer)
        _raise_if({0: answer} if answer[1] else {})
        return answer[0]

    def _divide(self, blocks: list[Block], values: dict[str, Any]) -> tuple[dict[int, str], dict[str, Any]]:
        """(index of each block this rank writes -> its name, the values of all ranks in one)."""
        if self.agreement.world_size == 1:
            return {index: block.name for index, block in enumerate(blocks)}, values
        outcome: list[Held] = []
        problem = None
        try:
            outcome = [_held(block) for block in blocks]
        except CheckpointError as error:
            problem = str(error)
        layout = [[h.name, h.whole, h.place, h.bytes, h.copies] for h in outcome]
        seen = self.agreement.gather(
            [problem, _sha(layout), _sha([[h.name, h.digest] for h in outcome if h.digest]), _sha(values)]
        )
        _raise_if({rank: ["", "CheckpointError", str(entry[0])] for rank, entry in enumerate(seen) if entry[0]})
        merged = values
        if len({entry[3] for entry in seen}) > 1:
            merged = merge(self.agreement.gather(values))
        key = tuple(entry[1] for entry in seen)
        if len({entry[2] for entry in seen}) > 1:
            return self._plan(outcome), merged
        if key not in self._plans:
            alike = len(set(key)) == 1
            self._plans = {key: assign([outcome] * len(seen))[self.agreement.rank] if alike else self._plan(outcome)}
        return self._plans[key], merged

    def _plan(self, mine: list[Held]) -> dict[int, str]:
        all_of_them = self.agreement.gather([list(asdict(h).values()) for h in mine])
        return assign([[Held(*fields) for fields in rank] for rank in all_of_them])[self.agreement.rank]

    def _write(self, unfinished: Path, blocks: list[Block], mine: dict[int, str], step: int) -> list[Any]:
        """Every rank's [file, chunks], after all of them are on disk."""
        rank = self.agreement.rank
        made: list[Any] = [None, []]

        def act() -> Path:
            if mine:
                made[:] = _write_shard(unfinished, rank, {name: blocks[i] for i, name in mine.items()}, step)
            return unfinished

        outcome = _outcome(act, unfinished)
        gathered = self.agreement.gather([outcome, made])
        _raise_if({rank: entry[0] for rank, entry in enumerate(gathered) if entry[0][1]})
        return [entry[1] for entry in gathered]

    def _publish(
        self, unfinished: Path, written: list[Any], values: dict[str, Any], progress: Progress, stamp: Stamp
    ) -> Path:
        claims.refuse_if_overtaken(self.directory, stamp.attempt)
        manifest = Manifest(
            job=stamp.job,
            name=stamp.name,
            attempt=stamp.attempt,
            step=progress.step,
            batch=progress.batch,
            world_size=self.agreement.world_size,
            strategy=progress.strategy,
            saved_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            files=[ShardFile(**shard) for shard, _ in written if shard],
            tensors=_entries([chunk for _, chunks in written for chunk in chunks]),
            values=values
            | {"progress": encode({"run_state": progress.run_state, "quarantined": progress.quarantined}, "progress")},
            cursor=progress.cursor,
            fingerprint=stamp.fingerprint,
            versions={"torch": torch.__version__, "python": platform.python_version()},
        )
        return commit.publish(unfinished, manifest, self.warn)

    def _drop(self, unfinished: Path) -> None:
        if self.agreement.rank == 0 and unfinished.exists():
            try:
                commit.discard(self.directory, unfinished)
            except OSError as error:
                self.warn(f"{unfinished} could not be removed: {error}")


def _held(block: Block) -> Held:
    own = block.copies is Copies.OWN
    return Held(
        block.name,
        f"{dtype_name(block.local.dtype, block.name)}{list(block.shape)}",
        f"{list(block.offsets)}:{list(block.local.shape)}",
        block.bytes,
        block.copies.value,
        block.digest() if own else "",
    )


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


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


def _write_shard(folder: Path, rank: int, blocks: dict[str, Block], step: int) -> list[Any]:
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


def _outcome(act: Callable[[], Path], path: Path) -> list[str]:
    """[result, kind of error, its text]: a failure as something that other ranks can be told."""
    try:
        return [str(act()), "", ""]
    except OSError as error:
        told = commit.explained(error, path)
        return ["", type(told).__name__, str(told)]
    except CheckpointError as error:
        return ["", type(error).__name__, str(error)]
    except Exception as error:  # whatever it is, the other ranks wait to hear that it failed
        return ["", "CheckpointError", f"{type(error).__name__}: {error}"]


def _raise_if(failed: dict[int, list[str]]) -> None:
    if not failed:
        return
    kind = commit.DiskFullError if any(f[1] == "DiskFullError" for f in failed.values()) else CheckpointError
    # Who ran out of room comes first: the others may only have seen the echo.
    order = sorted(failed, key=lambda rank: (failed[rank][1] != kind.__name__, rank))
    raise kind("; ".join(f"rank {rank}: {failed[rank][2]}" for rank in order))
