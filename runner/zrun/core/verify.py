"""Is a checkpoint whole? Reads every byte of its files and compares digests; needs no torch and unpickles nothing.

For `zrun ckpt verify`, offline: the manifest alone says what the files must hold.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from zrun.core.errors import CheckpointError
from zrun.core.manifest import MANIFEST, Chunk, Manifest, ShardFile, TensorEntry

_BLOCK: Final = 4 << 20
_ITEM_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
}  # fmt: skip
"""Bytes of an element; one for every other dtype that zrun writes."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` saw. No problems: every byte is the one that was written."""

    path: Path
    manifest: Manifest | None
    bytes: int
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(folder: Path, on_bytes: Callable[[int], None] | None = None) -> Verified:
    """Check one checkpoint folder; `on_bytes` hears how many more bytes were read, for a progress bar."""
    try:
        manifest = Manifest.from_json((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return Verified(folder, None, 0, [f"{folder.name}: no {MANIFEST}, so this is no checkpoint"])
    except (OSError, CheckpointError, UnicodeDecodeError) as error:
        return Verified(folder, None, 0, [f"{MANIFEST}: {error}"])
    problems = _coverage(manifest)
    chunks: dict[str, list[tuple[str, Chunk]]] = {shard.path: [] for shard in manifest.files}
    for name, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            chunks.get(chunk.file, []).append((name, chunk))
    for shard in manifest.files:
        problems += _file(folder, shard, chunks[shard.path], on_bytes or (lambda _: None))
    return Verified(folder, manifest, manifest.bytes, problems)


def _file(
    folder: Path, shard: ShardFile, chunks: list[tuple[str, Chunk]], on_bytes: Callable[[int], None]
) -> list[str]:
    if Path(shard.path).name != shard.path:
        return [f"the manifest names a file outside its folder: {shard.path!r}"]
    try:
        with (folder / shard.path).open("rb") as file:
            return _digests(file, shard, chunks, on_bytes)
    except FileNotFoundError:
        return [f"{shard.path} is missing"]
    except (OSError, ValueError) as error:
        return [f"{shard.path}: {error}"]


def _digests(
    file: Any, shard: ShardFile, chunks: list[tuple[str, Chunk]], on_bytes: Callable[[int], None]
) -> list[str]:
    """One pass over the file: its own digest tells whether it is whole, its chunks' digests which tensors are not."""
    problems: list[str] = []
    whole = hashlib.new(shard.digest.partition(":")[0])
    at = 0

    def take(end: int, also: Any) -> None:
        nonlocal at
        while at < end:
            block = file.read(min(_BLOCK, end - at))
            if not block:
                return
            whole.update(block)
            if also is not None:
                also.update(block)
            at += len(block)
            on_bytes(len(block))

    for name, chunk in sorted(chunks, key=lambda item: (item[1].start, item[1].end)):
        take(chunk.start, None)
        algorithm, _, wanted = chunk.digest.partition(":")
        own = hashlib.new(algorithm)
        take(chunk.end, own)
        if own.hexdigest() != wanted:
            problems.append(f"{shard.path}: {name}: digest mismatch in bytes {chunk.start} to {chunk.end}")
    take(shard.bytes + 1, None)
    if at != shard.bytes:
        problems.insert(0, f"{shard.path} has {'more than ' if at > shard.bytes else ''}{at} bytes, not {shard.bytes}")
    elif whole.hexdigest() != shard.digest.partition(":")[2] and not problems:
        problems.append(f"{shard.path}: digest mismatch outside its tensors")
    return problems


def _coverage(manifest: Manifest) -> list[str]:
    files = {shard.path: shard.bytes for shard in manifest.files}
    problems: list[str] = []
    for name, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            if chunk.file not in files:
                problems.append(f"{name}: its file {chunk.file!r} is not among the files of the manifest")
            elif not _fits(tensor, chunk, files[chunk.file]):
                problems.append(f"{name}: a chunk of {chunk.file} does not fit the tensor's shape")
        # A rank's own copy of a sharded tensor is one block of it only.
        if "#" not in name and sum(math.prod(chunk.shape) for chunk in tensor.chunks) != math.prod(tensor.shape):
            problems.append(f"{name}: its chunks do not make up the whole tensor")
    return problems


def _fits(tensor: TensorEntry, chunk: Chunk, file_bytes: int) -> bool:
    inside = len(chunk.offsets) == len(chunk.shape) == len(tensor.shape) and all(
        offset >= 0 and size >= 0 and offset + size <= whole
        for offset, size, whole in zip(chunk.offsets, chunk.shape, tensor.shape, strict=False)
    )
    length = math.prod(chunk.shape) * _ITEM_BYTES.get(tensor.dtype, 1)
    return inside and chunk.start >= 0 and chunk.end <= file_bytes and chunk.end - chunk.start == length
