"""Agreement between all ranks: small JSON values over a gloo group of its own, used for nothing else.

Object collectives want numpy and pickle; these are uint8 tensors with JSON in them. With one rank nothing is sent.
"""

import ctypes
import json
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from zrun.core.errors import CheckpointError
from zrun.core.standing import BACKGROUND
from zrun.state.tensor_bytes import view_of

_PATIENCE_S: Final = 7200.0
"""How long a rank may be behind in a save before the others give up; the watchdog is faster."""
_kept: Final[set[int]] = set()


def never_freed(group: Any) -> None:
    """Keep a group's memory until the process ends.

    torch 2.13 deadlocks when the last owner of a gloo group lets go of it with the GIL held: its destructor joins
    gloo's threads, while one of them waits for the GIL to drop a tensor.
    """
    if group is not None and id(group) not in _kept:
        _kept.add(id(group))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


class Agreement:
    """All ranks make it and call it in the same order. A peer that dies makes the others raise RuntimeError.

    One made for the `background` is called in another thread than the training one, and only there.
    """

    def __init__(self, rank: int, world_size: int, *, background: bool = False) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group: Any = None
        if world_size > 1:
            if not dist.is_initialized():
                raise CheckpointError(f"{world_size} ranks cannot agree before torch.distributed is initialised")
            self._group = dist.new_group(
                backend="gloo", timeout=timedelta(seconds=_PATIENCE_S),
                group_desc=BACKGROUND if background else "zrun: agreement",
            )  # fmt: skip
            never_freed(self._group)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        text = json.dumps(value, separators=(",", ":")).encode()
        if self.world_size == 1:
            return [json.loads(text)]
        longest = max(sizes := self.numbers(len(text)))
        mine = torch.zeros(longest, dtype=torch.uint8)
        view_of(mine)[: len(text)] = text
        theirs = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        dist.all_gather(theirs, mine, group=self._group)
        return [json.loads(bytes(view_of(tensor)[:size])) for tensor, size in zip(theirs, sizes, strict=True)]

    def numbers(self, number: int) -> list[int]:
        """Every rank's number (of 63 bits), by rank: the cheapest there is."""
        if self.world_size == 1:
            return [number]
        theirs = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(theirs, torch.tensor([number], dtype=torch.int64), group=self._group)
        return [int(one) for one in theirs]

    def from_first(self, value: Any) -> Any:
        """Rank 0's value on every rank; what the others pass is ignored."""
        return self.gather(value if self.rank == 0 else None)[0]

    def problems(self, problem: str | None) -> dict[int, str]:
        """rank -> what went wrong there, the same on every rank; empty if all is well."""
        return {rank: text for rank, text in enumerate(self.gather(problem)) if text is not None}
