"""One whole copy of a rank's state in memory that outlives it: an anonymous file its node's keeper holds open.

The tensors' bytes, then JSON that says what they are, then a seal: without the seal there is no copy. Knows nothing
about which step is wanted, nor about other ranks.
"""

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from zrun.core.errors import CheckpointError
from zrun.state.free_memory import free_memory
from zrun.state.safetensors_file import ALGORITHM
from zrun.state.staging import copy_pairs
from zrun.state.tensor_bytes import dense, view_of

_SEAL: Final = struct.Struct("<8sQQ32s")
"""magic, bytes before the JSON, bytes of the JSON, sha256 of the JSON."""
_MAGIC: Final = b"ZRUNSLOT"
_ALIGN: Final = 64
_ROOM: Final = 0.5
"""Of the memory that is free, so much may be taken at most."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Bytes [start, end) of each tensor, in the order given, and their copies in the file's own memory."""

    handle: int
    size: int
    spans: list[tuple[int, int]]
    copies: list[torch.Tensor]

    def seal(self, about: dict[str, Any]) -> None:
        """Digest what was copied and make it count; `about` gets "spans": [[start, end, digest], …]. Raises OSError."""
        try:
            digests = [hashlib.new(ALGORITHM, view_of(copy)).hexdigest() for copy in self.copies]
            spans = [[*span, f"{ALGORITHM}:{digest}"] for span, digest in zip(self.spans, digests, strict=True)]
            text = json.dumps({**about, "spans": spans}, separators=(",", ":")).encode()
            seal = _SEAL.pack(_MAGIC, self.size, len(text), hashlib.sha256(text).digest())
            os.pwrite(self.handle, text + seal, self.size)
        finally:
            os.close(self.handle)


def fill(path: str, tensors: Sequence[torch.Tensor], threads: int = 1) -> Filled:
    """Copy them into the file at `path`, whose former content is gone from now on. CheckpointError without memory."""
    spans: list[tuple[int, int]] = []
    at = 0
    for tensor in tensors:
        spans.append((at, at + tensor.numel() * tensor.element_size()))
        at = -(-spans[-1][1] // _ALIGN) * _ALIGN
    size = max(at, _ALIGN)
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(handle, 0)
        _look_for_room(size)
        os.ftruncate(handle, size)
        whole = torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)
        copies = [
            whole[begin:end].view(tensor.dtype).view(tensor.shape)
            if end > begin
            else torch.empty(tensor.shape, dtype=tensor.dtype)
            for (begin, end), tensor in zip(spans, tensors, strict=True)
        ]
        with torch.no_grad():
            copy_pairs(list(zip(copies, map(dense, tensors), strict=True)), threads)
    except BaseException:
        os.close(handle)
        raise
    return Filled(handle, size, spans, copies)


def read(path: str) -> dict[str, Any] | None:
    """What a slot holds, as it was told to `seal`; None if there is no whole copy in it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        length = os.fstat(handle).st_size
        if length < _SEAL.size:
            return None
        magic, size, count, digest = _SEAL.unpack(os.pread(handle, _SEAL.size, length - _SEAL.size))
        if magic != _MAGIC or size + count + _SEAL.size != length:
            return None
        text = os.pread(handle, count, size)
        if hashlib.sha256(text).digest() != digest:
            return None
        value = json.loads(text)
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)
    return value if isinstance(value, dict) else None


def _look_for_room(size: int) -> None:
    """A copy must never be what brings the kernel's out-of-memory killer."""
    free = free_memory()
    if size > _ROOM * free:
        raise CheckpointError(
            f"a copy of {size >> 20} MiB in memory would leave too little of the {free >> 20} MiB free"
        )
