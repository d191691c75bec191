"""Files of the safetensors format, written and read with the standard library and torch alone.

A file is eight bytes of header length, a JSON header, and the tensors' bytes without a gap. Digests are taken on the
way: one for each tensor, one for what comes before them. Knows nothing about ranks, steps or manifests.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from zrun.core import storage
from zrun.core.errors import CheckpointError, DamagedError
from zrun.core.place import Place
from zrun.core.safetensors import HEADER_LIMIT, Entry, header, in_order
from zrun.core.storage import OpenFile
from zrun.state.kill_points import reached
from zrun.state.tensor_bytes import dtype_name, dtype_of, on_cpu, view_of

ALGORITHM: Final = "sha256"
"""The fastest sound one in hashlib where the processor has SHA instructions: 2.0 GB/s against 1.3 of blake2b."""
_BLOCK: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Where one tensor lies in the file, bytes [start, end) counted from its first byte, and their digest."""

    start: int
    end: int
    digest: str


@dataclass(frozen=True, slots=True)
class Written:
    """What `write` made; digests are `algorithm:hex`, `digest` that of the bytes before the first tensor."""

    bytes: int
    digest: str
    spans: dict[str, Span]


@dataclass(frozen=True, slots=True)
class Stored:
    """One line of a file's header: dtype as the format names it, shape, bytes [start, end) from the first byte."""

    dtype: str
    shape: list[int]
    start: int
    end: int


def write(path: Place, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Written:
    """Make `path` (FileExistsError if it is on a disk already), durable, and say what is in it. Raises OSError.

    Of tensors that are not contiguous, or not on the CPU, a copy is held meanwhile.
    """
    entries = in_order(_entry(name, tensor) for name, tensor in tensors.items())
    head = header(entries, metadata or {})
    held = {entry.name: on_cpu(tensors[entry.name]) for entry in entries}
    views = {name: view_of(tensor) for name, tensor in held.items()}
    size = len(head) + sum(map(len, views.values()))
    beside = ThreadPoolExecutor(1, "zrun-digest")  # hashlib lets go of the GIL: digests are taken beside the writes
    with storage.of(path).new_file(path, size) as file:
        try:
            pending = {name: beside.submit(hashlib.new, ALGORITHM, view) for name, view in views.items()}
            file.write(memoryview(head))
            half = sum(map(len, views.values())) // 2
            for view in views.values():
                file.write(view)
                if 0 <= half < len(view):
                    reached("write")
                half -= len(view)
            reached("fsync")
            file.finish()
            digests = {name: taken.result().hexdigest() for name, taken in pending.items()}
        finally:
            beside.shutdown(cancel_futures=True)  # after a failed write nobody wants the rest
    spans: dict[str, Span] = {}
    at = len(head)
    for name, view in views.items():
        spans[name] = Span(at, at + len(view), f"{ALGORITHM}:{digests[name]}")
        at += len(view)
    return Written(at, f"{ALGORITHM}:{hashlib.new(ALGORITHM, head).hexdigest()}", spans)


def _entry(name: str, tensor: torch.Tensor) -> Entry:
    return Entry(name, dtype_name(tensor.dtype, name), list(tensor.shape), tensor.numel() * tensor.element_size())


def read_header(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """(tensors, metadata) of a file; CheckpointError if it is not whole and well-formed."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(HEADER_LIMIT, size - 8):
                raise CheckpointError(f"{path.name}: header of {length} bytes in a file of {size}")
            value = json.loads(file.read(length))
        metadata = value.pop("__metadata__", {})
        begin = 8 + length
        stored = {
            name: Stored(str(t["dtype"]), [int(n) for n in t["shape"]], begin + int(a), begin + int(b))
            for name, t in value.items()
            for a, b in [t["data_offsets"]]
        }
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{path.name}: not a safetensors file: {type(error).__name__}: {error}") from error
    _check_layout(path, stored, begin, size)
    return stored, {str(k): str(v) for k, v in metadata.items()}


def _check_layout(path: Path, stored: Mapping[str, Stored], begin: int, size: int) -> None:
    at = begin
    for name, entry in sorted(stored.items(), key=lambda item: (item[1].start, item[1].end)):
        needed = dtype_of(entry.dtype, name).itemsize
        for n in entry.shape:
            needed *= n
        if entry.start != at or entry.end - entry.start != needed:
            raise CheckpointError(f"{path.name}: {name} lies at the wrong place")
        at = entry.end
    if at != size:
        raise CheckpointError(f"{path.name}: {size} bytes where its header promises {at}")


def read_into(file: OpenFile, start: int, end: int, target: torch.Tensor, digest: str, what: str) -> None:
    """Fill a contiguous CPU tensor from bytes [start, end) of a file and check them against `digest`.

    Raises CheckpointError naming `what`; the target then holds whatever was read.
    """
    view = view_of(target)
    if len(view) != end - start:
        raise CheckpointError(f"{what}: {end - start} bytes stored where {len(view)} are needed")
    check = Check(digest, what)
    file.expect(start, end)
    at, block = 0, max(_BLOCK, file.block)
    while at < len(view):
        got = file.read_into(view[at : at + block], start + at)
        if got == 0:
            raise CheckpointError(f"{what}: the file ends at byte {start + at}")
        check.update(view[at : at + got])
        at += got
    check.finish()


class Check:
    """Feed bytes to `update`, then `finish` raises CheckpointError if their digest is another one."""

    def __init__(self, digest: str, what: str) -> None:
        algorithm, _, self._wanted = digest.partition(":")
        self._what = what
        try:
            self._hash = hashlib.new(algorithm)
        except ValueError as error:
            raise CheckpointError(f"{what}: digest {digest[:40]!r} is of an unknown kind") from error

    def update(self, data: memoryview) -> None:
        self._hash.update(data)

    def finish(self) -> None:
        if self._hash.hexdigest() != self._wanted:
            raise DamagedError(f"{self._what}: digest mismatch, its bytes are not the ones that were written")


def read(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a file as CPU tensors of their own, without a digest check (a manifest holds the digests)."""
    stored, _ = read_header(path)
    found: dict[str, torch.Tensor] = {}
    with path.open("rb") as file:
        for name, entry in stored.items():
            tensor = torch.empty(entry.shape, dtype=dtype_of(entry.dtype, name))
            view = view_of(tensor)
            at = 0
            while at < len(view):
                got = os.preadv(file.fileno(), [view[at:]], entry.start + at)
                if got == 0:
                    raise CheckpointError(f"{path.name}: {name} is cut short")
                at += got
            found[name] = tensor
    return found
