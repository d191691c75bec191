"""The head of a safetensors file: eight bytes of length, then JSON that says where each tensor lies; no torch needed.

Knows nothing about the tensors' bytes, nor about checkpoints.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zrun.core.errors import CheckpointError

ITEM_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
}  # fmt: skip
"""Bytes of an element; one for every other dtype that zrun writes."""
HEADER_LIMIT: Final = 100_000_000
"""The library refuses longer headers, so do we."""
_ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file, dtype as the format names it."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Widest elements first, then by name: so every tensor begins at a multiple of its element's size."""
    return sorted(entries, key=lambda e: (-ITEM_BYTES.get(e.dtype, 1), e.name))


def header(ordered: Iterable[Entry], metadata: Mapping[str, str]) -> bytes:
    """The file up to its first tensor; the same bytes for the same tensors. The tensors follow without a gap."""
    value: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for entry in ordered:
        value[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [at, at + entry.bytes]}
        at += entry.bytes
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    if len(text) > HEADER_LIMIT:
        raise CheckpointError(f"{len(value)} tensors need a header of {len(text)} bytes; the format allows 100 MB")
    return struct.pack("<Q", len(text)) + text
