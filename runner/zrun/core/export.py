"""A checkpoint as ordinary safetensors files with whole tensors in them, for programs that know nothing of zrun.

Blocks that ranks wrote are put to their places in the new file as they are read, so memory stays at a few blocks
however large a tensor is, and their digests are checked on the way. Needs neither torch nor numpy.
"""

import hashlib
import itertools
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.core import manifest as manifests
from zrun.core import storage
from zrun.core.durable import fsync_folder, write_json
from zrun.core.errors import CheckpointError, DamagedError, UsageError
from zrun.core.manifest import MANIFEST, Chunk, Manifest, TensorEntry
from zrun.core.place import Place
from zrun.core.safetensors import ITEM_BYTES, Entry, header, in_order
from zrun.core.storage import OpenFile, OpenFolder
from zrun.core.verify import Advance, cores, counted, coverage

_UNFIT: Final = re.compile(r"[^\w.-]")


@dataclass(frozen=True, slots=True)
class Exported:
    """`left_out`: blocks of tensors that one rank alone held, which make up no whole tensor."""

    folder: Path
    step: int
    files: dict[str, int]
    """Name -> bytes."""
    tensors: int
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class _Move:
    """One block on its way: from a shard to its tensor, which begins at `at` in the new file."""

    name: str
    tensor: TensorEntry
    chunk: Chunk
    target: int
    at: int


def export(
    folder: Place, target: Path, *, consolidate: bool, only_model: bool, on_bytes: Callable[[int], None] | None = None
) -> Exported:
    """Make the folder `target`: a file for each part (model, optimizer, …), or one file if `consolidate`.

    It appears whole or not at all. Raises CheckpointError, UsageError, OSError.
    """
    if target.exists():
        raise UsageError(f"{target} is there already", "name a folder that is not")
    with ExitStack() as stack:
        try:
            place = stack.enter_context(storage.of(folder).held(folder))
            manifest = manifests.read(folder)
        except FileNotFoundError:
            raise CheckpointError(f"{folder} has no {MANIFEST}, so it is no checkpoint") from None
        problems = coverage(manifest)
        if problems:
            raise CheckpointError(f"{folder}: {problems[0]}")
        chosen, left_out = _chosen(manifest, only_model=only_model)
        files = _files(manifest, chosen, consolidate=consolidate)
        _refuse_if_too_small(target, sum(_bytes(manifest.tensors[name]) for name in chosen))
        unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        unfinished.mkdir(parents=True)
        try:
            written = _write_all(unfinished, place, manifest, files, counted(on_bytes))
            if not only_model:
                write_json(unfinished / "values.json", _values(manifest))
            fsync_folder(unfinished)
            unfinished.rename(target)
            fsync_folder(target.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return Exported(target, manifest.step, written, len(chosen), left_out)


def export_bytes(manifest: Manifest, *, only_model: bool) -> int:
    """What `on_bytes` will add up to."""
    return sum(_bytes(manifest.tensors[name]) for name in _chosen(manifest, only_model=only_model)[0])


def _chosen(manifest: Manifest, *, only_model: bool) -> tuple[list[str], list[str]]:
    """(tensors to export, those that are not whole)."""
    names = [name for name in manifest.tensors if not only_model or re.match(r"model[:/]", name)]
    if not names:
        raise CheckpointError(f"the checkpoint of step {manifest.step} holds no {'model' if only_model else 'tensor'}")
    whole = [name for name in names if _elements(manifest.tensors[name]) == math.prod(manifest.tensors[name].shape)]
    return whole, sorted(set(names) - set(whole))


def _elements(tensor: TensorEntry) -> int:
    return sum(math.prod(chunk.shape) for chunk in tensor.chunks)


def _bytes(tensor: TensorEntry) -> int:
    return math.prod(tensor.shape) * ITEM_BYTES.get(tensor.dtype, 1)


def _files(manifest: Manifest, names: Sequence[str], *, consolidate: bool) -> dict[str, list[Entry]]:
    files: dict[str, list[Entry]] = {}
    for name in names:
        part = "checkpoint" if consolidate else _UNFIT.sub("-", name.partition("/")[0])
        tensor = manifest.tensors[name]
        files.setdefault(f"{part}.safetensors", []).append(Entry(name, tensor.dtype, tensor.shape, _bytes(tensor)))
    return {file: in_order(entries) for file, entries in sorted(files.items())}


def _refuse_if_too_small(target: Path, needed: int) -> None:
    there = next(folder for folder in target.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise CheckpointError(f"{needed} bytes needed in {there}, {free} bytes free", "make room, or name another disk")


def _write_all(
    folder: Path, place: OpenFolder, manifest: Manifest, files: dict[str, list[Entry]], advance: Advance
) -> dict[str, int]:
    with ExitStack() as stack:
        sources = {}
        for shard in manifest.files:
            if Path(shard.path).name != shard.path:
                raise CheckpointError(f"the manifest names a file outside its folder: {shard.path!r}")
            sources[shard.path] = place.open(shard.path)
        moves: list[_Move] = []
        sizes: dict[str, int] = {}
        targets = []
        for file, entries in files.items():
            target = stack.enter_context((folder / file).open("xb", buffering=0))
            head = header(entries, {"format": "pt", "step": str(manifest.step), "job": manifest.job})
            target.write(head)
            at = len(head)
            for entry in entries:
                tensor = manifest.tensors[entry.name]
                moves += [_Move(entry.name, tensor, chunk, target.fileno(), at) for chunk in tensor.chunks]
                at += entry.bytes
            target.truncate(at)
            sizes[file] = at
            targets.append(target.fileno())
        _move_all(moves, sources, advance)
        for handle in targets:
            os.fsync(handle)
    return sizes


def _move_all(moves: list[_Move], sources: dict[str, OpenFile], advance: Advance) -> None:
    with ThreadPoolExecutor(cores(), "zrun-export") as pool:
        pending = [pool.submit(_move, move, sources[move.chunk.file], advance) for move in moves]
        done, rest = wait(pending, return_when=FIRST_EXCEPTION)
        for future in rest:
            future.cancel()
        for future in done:
            future.result()


def _move(move: _Move, source: OpenFile, advance: Advance) -> None:
    chunk = move.chunk
    algorithm, _, wanted = chunk.digest.partition(":")
    found = hashlib.new(algorithm)
    buffer = memoryview(bytearray(min(source.block, max(1, chunk.end - chunk.start))))
    runs = _runs(move.tensor, chunk)
    at, target, left = chunk.start, 0, 0
    while at < chunk.end:
        got = source.read_into(buffer[: chunk.end - at], at)
        if not got:
            raise DamagedError(f"{chunk.file} ends at byte {at}")
        block = buffer[:got]
        found.update(block)
        at += got
        while len(block):
            if not left:
                target, left = next(runs)
            done = os.pwrite(move.target, block[:left], move.at + target)
            block, target, left = block[done:], target + done, left - done
        advance(got)
    if found.hexdigest() != wanted:
        raise DamagedError(f"{chunk.file}: {move.name}: digest mismatch; nothing was exported")


def _runs(tensor: TensorEntry, chunk: Chunk) -> Iterator[tuple[int, int]]:
    """(first byte in the tensor, bytes) of each stretch of a block that lies in one piece, in the block's order."""
    size = ITEM_BYTES.get(tensor.dtype, 1)
    axis = len(chunk.shape)
    stretch = size
    while axis:
        axis -= 1
        stretch *= chunk.shape[axis]
        if chunk.shape[axis] != tensor.shape[axis]:
            break
    strides = [size * math.prod(tensor.shape[after + 1 :]) for after in range(len(tensor.shape))]
    first = sum(offset * stride for offset, stride in zip(chunk.offsets, strides, strict=True))
    for index in itertools.product(*(range(length) for length in chunk.shape[:axis])):
        yield first + sum(i * stride for i, stride in zip(index, strides, strict=False)), stretch


def _values(manifest: Manifest) -> dict[str, object]:
    """Everything of the state that is no tensor: learning rates, counters, the cursor."""
    told = {"step": manifest.step, "batch": manifest.batch, "job": manifest.job, "saved_at": manifest.saved_at}
    return told | {"cursor": manifest.cursor, "values": manifest.values}
