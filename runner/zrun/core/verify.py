"""Is a checkpoint whole? Reads every byte of its files and compares digests; needs no torch and unpickles nothing.

For `zrun ckpt verify`, offline: the manifest alone says what the files must hold. Digests are taken on all cores:
hashlib lets go of the GIL.
"""

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from zrun.core import manifest as manifests
from zrun.core import storage
from zrun.core.errors import CheckpointError, StoreError
from zrun.core.manifest import MANIFEST, Chunk, Manifest, ShardFile, TensorEntry
from zrun.core.place import Place
from zrun.core.safetensors import ITEM_BYTES
from zrun.core.storage import OpenFile, OpenFolder

_TOGETHER: Final = 16 << 20
"""Small tensors are handed to a thread in lots of about this many bytes."""

Advance = Callable[[int], None]
Piece = tuple[str, str, Chunk]
"""(tensor, dtype, chunk)"""


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` saw. No problems: every byte is the one that was written."""

    path: Place
    manifest: Manifest | None
    bytes: int
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def verify(folder: Place, on_bytes: Advance | None = None, threads: int | None = None) -> Verified:
    """Check one checkpoint folder; `on_bytes` hears, from any thread, how many more bytes were read.

    StoreError where an object store does not answer: that says nothing about the bytes.
    """
    with ExitStack() as stack:
        try:
            place = stack.enter_context(storage.of(folder).held(folder))
            manifest = manifests.read(folder)
        except FileNotFoundError:
            return Verified(folder, None, 0, [f"{folder.name}: no {MANIFEST}, so this is no checkpoint"])
        except StoreError:
            raise
        except (OSError, CheckpointError, UnicodeDecodeError) as error:
            return Verified(folder, None, 0, [f"{MANIFEST}: {error}"])
        pool = stack.enter_context(ThreadPoolExecutor(threads or cores(), "zrun-verify"))
        advance = counted(on_bytes)
        held = _chunks_of(manifest)
        pending = [_begun(pool, place, shard, held[shard.path], advance) for shard in manifest.files]
        problems = [told for collect in pending for told in collect()]
    return Verified(folder, manifest, manifest.bytes, coverage(manifest) + problems)


def _begun(
    pool: ThreadPoolExecutor, place: OpenFolder, shard: ShardFile, chunks: list[Piece], advance: Advance
) -> Callable[[], list[str]]:
    """Have one file checked in the background; what is returned waits for the outcome."""
    handle, problem = _opened(place, shard)
    if handle is None or problem:
        return lambda: [problem]
    lots = [pool.submit(_digests, handle, shard, lot, advance) for lot in _lots(chunks)]
    rest = pool.submit(_outside, handle, shard, chunks, advance)

    def collect() -> list[str]:
        inside = [told for lot in lots for told in lot.result()]
        return inside or rest.result()

    return collect


def counted(on_bytes: Advance | None) -> Advance:
    if on_bytes is None:
        return lambda _: None
    lock = threading.Lock()

    def advance(count: int) -> None:
        with lock:
            on_bytes(count)

    return advance


def _chunks_of(manifest: Manifest) -> dict[str, list[Piece]]:
    """By file, in the order in which they lie there."""
    chunks: dict[str, list[Piece]] = {shard.path: [] for shard in manifest.files}
    for name, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            chunks.get(chunk.file, []).append((name, tensor.dtype, chunk))
    for held in chunks.values():
        held.sort(key=lambda item: (item[2].start, item[2].end))
    return chunks


def _opened(place: OpenFolder, shard: ShardFile) -> tuple[OpenFile | None, str]:
    """(the file, what is wrong with it before a byte is read)."""
    if Path(shard.path).name != shard.path:
        return None, f"the manifest names a file outside its folder: {shard.path!r}"
    try:
        file = place.open(shard.path)
    except FileNotFoundError:
        return None, f"{shard.path} is missing"
    except StoreError:
        raise
    except OSError as error:
        return None, f"{shard.path}: {error.strerror or error}"
    return file, "" if file.bytes == shard.bytes else f"{shard.path} has {file.bytes} bytes, not {shard.bytes}"


def _lots(chunks: list[Piece]) -> Iterator[list[Piece]]:
    lot: list[Piece] = []
    size = 0
    for piece in chunks:
        lot.append(piece)
        size += piece[2].end - piece[2].start
        if size >= _TOGETHER:
            yield lot
            lot, size = [], 0
    yield lot


def _outside(file: OpenFile, shard: ShardFile, chunks: list[Piece], advance: Advance) -> list[str]:
    """The head is all there may be beside the tensors."""
    head = chunks[0][2].start if chunks else shard.bytes
    ends = [head, *(chunk.end for _, _, chunk in chunks)]
    begins = [*(chunk.start for _, _, chunk in chunks), shard.bytes]
    try:
        if ends == begins and digest(file, 0, head, shard.digest, advance):
            return []
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        return [f"{shard.path}: {error}"]
    return [f"{shard.path}: digest mismatch outside its tensors"]


def _digests(file: OpenFile, shard: ShardFile, lot: list[Piece], advance: Advance) -> list[str]:
    problems: list[str] = []
    for name, _, chunk in lot:
        try:
            right = digest(file, chunk.start, chunk.end, chunk.digest, advance)
        except StoreError:
            raise
        except (OSError, ValueError) as error:
            return [*problems, f"{shard.path}: {name}: {error}"]
        if not right:
            problems.append(f"{shard.path}: {name}: digest mismatch in bytes {chunk.start} to {chunk.end}")
    return problems


def digest(file: OpenFile, start: int, end: int, wanted: str, advance: Advance | None = None) -> bool:
    """Do bytes [start, end) have this digest? Raises OSError, ValueError for a digest of an unknown kind."""
    algorithm, _, expected = wanted.partition(":")
    found = hashlib.new(algorithm)
    buffer = memoryview(bytearray(min(file.block, max(0, end - start))))
    at = start
    while at < end:
        got = file.read_into(buffer[: end - at], at)
        if not got:
            break
        found.update(buffer[:got])
        at += got
        if advance is not None:
            advance(got)
    return found.hexdigest() == expected


def coverage(manifest: Manifest) -> list[str]:
    """What is wrong with the manifest by itself: chunks without a file, outside their tensor, or too few of them."""
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
    length = math.prod(chunk.shape) * ITEM_BYTES.get(tensor.dtype, 1)
    return inside and chunk.start >= 0 and chunk.end <= file_bytes and chunk.end - chunk.start == length
