"""A copy of a rank's blocks in host memory, taken while training stands still, so that it may go on while they are
written.

The memory is kept from one save to the next: only the first one pays for its pages. Where a block lies on a GPU it is
pinned. Knows nothing about files or other ranks.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

from zrun.core.errors import CheckpointError
from zrun.state.blocks import Block
from zrun.state.tensor_bytes import dense

_ALIGN: Final = 64
_PIECE: Final = 16 << 20
"""Large tensors are copied in pieces of this many bytes, so that threads share them evenly."""
_WORTH_THREADS: Final = 64 << 20
_MOST_THREADS: Final = 4
"""A few cores fill the memory's bandwidth."""

Pair = tuple[torch.Tensor, torch.Tensor]


class Buffers:
    """`cores` this rank may use for the copy. The tensors given out are overwritten by the next copy."""

    def __init__(self, cores: int = 1) -> None:
        self._threads = max(1, min(_MOST_THREADS, cores))
        self._slots: dict[tuple[str, int], torch.Tensor] = {}
        self.bytes = 0
        """Of host memory that are held."""

    def copy(self, blocks: Mapping[int, Block]) -> dict[int, torch.Tensor]:
        """The blocks' values as they are now, contiguous on the CPU, under the same keys.

        CheckpointError for a tensor that cannot be saved, or if there is no memory.
        """
        sources = {key: dense(block.local) for key, block in blocks.items()}
        try:
            places = self._places(blocks)
            with torch.no_grad():
                copy_pairs([(places[key], source) for key, source in sources.items()], self._threads)
        except (MemoryError, RuntimeError) as error:
            self._slots, self.bytes = {}, 0
            wanted = sum(block.bytes for block in blocks.values())
            raise CheckpointError(
                f"no copy of this rank's {wanted} bytes could be made in host memory: {str(error).splitlines()[0]}"
            ) from error
        for device in {source.device for source in sources.values() if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return places

    def _places(self, blocks: Mapping[int, Block]) -> dict[int, torch.Tensor]:
        wanted = {key: (block.key, block.bytes) for key, block in blocks.items() if block.bytes}
        if self.bytes > 2 * sum(_aligned(size) for _, size in wanted.values()):
            self._slots, self.bytes = {}, 0
        pinned = any(block.local.is_cuda for block in blocks.values())
        missing = [slot for slot in dict.fromkeys(wanted.values()) if slot not in self._slots]
        size = sum(_aligned(size) for _, size in missing)
        room = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        at = 0
        for slot in missing:
            self._slots[slot] = room[at : at + slot[1]]
            at += _aligned(slot[1])
        self.bytes += size
        return {
            key: self._slots[wanted[key]].view(block.local.dtype).view(block.local.shape)
            if key in wanted
            else torch.empty(block.local.shape, dtype=block.local.dtype)
            for key, block in blocks.items()
        }


def copy_pairs(pairs: Sequence[Pair], threads: int) -> None:
    """Each (target, source): large ones in pieces, shared evenly among `threads`."""
    pieces = [piece for target, source in pairs for piece in _pieces(target, source)]
    if threads == 1 or sum(target.nbytes for target, _ in pieces) < _WORTH_THREADS:
        _copy_all(pieces)
        return
    lots: list[list[Pair]] = [[] for _ in range(threads)]
    loads = [0] * threads
    for piece in pieces:
        least = loads.index(min(loads))
        lots[least].append(piece)
        loads[least] += piece[0].nbytes
    with ThreadPoolExecutor(threads, "zrun-copy") as beside:
        for done in [beside.submit(_copy_all, lot) for lot in lots]:
            done.result()


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _pieces(target: torch.Tensor, source: torch.Tensor) -> Sequence[Pair]:
    if target.nbytes <= _PIECE or not source.is_contiguous():
        return [(target, source)]
    step = _PIECE // target.element_size()
    return list(zip(torch.split(target.view(-1), step), torch.split(source.view(-1), step), strict=True))


def _copy_all(pairs: list[Pair]) -> None:
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
