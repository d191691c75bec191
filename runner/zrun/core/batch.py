"""The name of one global batch: the same after any restart and at any world size.

It knows the text form and the digest, nothing about datasets or loaders.
"""

import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_TEXT: Final = re.compile(r"e(\d+)-s(\d+)-([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class BatchId:
    """`epoch` counts from 0, `ordinal` from 1 over the whole run; `digest` is 32 bits."""

    epoch: int
    ordinal: int
    digest: int

    def __str__(self) -> str:
        return f"e{self.epoch}-s{self.ordinal:06d}-{self.digest:08x}"

    @classmethod
    def parse(cls, text: str) -> "BatchId":
        """The inverse of `str`; raises ValueError for anything else."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"not a batch id: {text!r} (expected for example e2-s001840-7f3a9c21)")
        return cls(int(found[1]), int(found[2]), int(found[3], 16))


def batch_digest(fingerprint: str, seed: int, indices: Iterable[int]) -> int:
    """The first 32 bits of SHA-256 over (data fingerprint, seed, sample indices in order)."""
    numbers = list(indices)
    head = f"{fingerprint}\0{seed}\0".encode()
    digest = hashlib.sha256(head + struct.pack(f"<{len(numbers)}q", *numbers)).digest()
    return int.from_bytes(digest[:4], "big")
