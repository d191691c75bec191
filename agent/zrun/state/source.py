"""Reading one checkpoint: any block of any tensor, put together from the chunks that overlap it, digests checked.

So a state saved by 4 ranks loads on 2 or 3, and one saved by DDP loads into shards, wherever names and shapes agree.
Knows nothing about models or about which checkpoint to take.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

import torch

from zrun.core import storage
from zrun.core.errors import CheckpointError
from zrun.core.manifest import Chunk, Manifest, TensorEntry
from zrun.core.place import Place
from zrun.core.storage import OpenFile, OpenFolder
from zrun.state.blocks import Block
from zrun.state.safetensors_file import read_into
from zrun.state.tensor_bytes import dtype_of

RANKS: Final = "#ranks"
"""Key of `manifest.values` under which lie the values that differ from the shared ones, by rank."""


def name_of_own(name: str, rank: int) -> str:
    """Under which name a rank's own tensor is kept where it differs from the first rank's."""
    return f"{name}#rank-{rank}"


class Source:
    """A checkpoint as one rank sees it, to be read inside `with`. `values` are this rank's own where it had its own."""

    def __init__(self, folder: Place, manifest: Manifest, rank: int, world_size: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self._rank = rank
        self.same_world = manifest.world_size == world_size
        """As many ranks as saved it: what each had of its own is this rank's again."""
        self._files: dict[str, OpenFile] = {}
        self._open = ExitStack()
        self._place: OpenFolder | None = None
        own: Mapping[str, Mapping[str, Any]] = manifest.values.get(RANKS, {})
        shared = {key: value for key, value in manifest.values.items() if key != RANKS}
        self.values: dict[str, Any] = shared | dict(own.get(str(rank), {}) if self.same_world else {})
        self.bytes_read = 0

    def __enter__(self) -> Self:
        """From here on nobody deletes it, whatever its own job thinks of it. Raises OSError."""
        self._hold()
        return self

    def _hold(self) -> None:
        self._place = self._open.enter_context(storage.of(self.folder).held(self.folder))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._place = None
        self._open.close()

    def has(self, name: str) -> bool:
        return name in self.manifest.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._entry(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        return dtype_of(self._entry(name).dtype, name)

    def whole(self, name: str) -> torch.Tensor:
        """The whole tensor on the CPU."""
        made = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.fill(Block.whole(name, made))
        return made

    def fill(self, block: Block) -> None:
        """Write the saved values into `block.local`. Raises CheckpointError or OSError; the block is then undefined."""
        entry = self._entry(block.name)
        if tuple(entry.shape) != block.shape or dtype_of(entry.dtype, block.name) != block.local.dtype:
            raise CheckpointError(
                f"{block.name} was saved as {entry.dtype}{entry.shape}, "
                f"here it is {block.local.dtype}{list(block.shape)}"
            )
        missing = block.local.numel()
        for chunk in entry.chunks:
            if missing <= 0:
                break
            overlap = _overlap(chunk, block)
            if overlap is not None:
                missing -= self._copy(chunk, block, overlap)
        if missing > 0:
            raise CheckpointError(f"{block.name}: {missing} of {block.local.numel()} elements are in no file")

    def _entry(self, name: str) -> TensorEntry:
        own = name_of_own(name, self._rank)
        entry = (self.manifest.tensors.get(own) if self.same_world else None) or self.manifest.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{name} is not in the checkpoint")
        return entry

    def _copy(self, chunk: Chunk, block: Block, overlap: list[tuple[int, int]]) -> int:
        target = block.local.detach()
        what = f"{chunk.file}: {block.name}"
        exact = chunk.offsets == list(block.offsets) and chunk.shape == list(target.shape)
        if exact and target.device.type == "cpu" and target.is_contiguous():
            read_into(self._file(chunk.file), chunk.start, chunk.end, target, chunk.digest, what)
            self.bytes_read += chunk.end - chunk.start
            return target.numel()
        staged = torch.empty(chunk.shape, dtype=target.dtype)
        read_into(self._file(chunk.file), chunk.start, chunk.end, staged, chunk.digest, what)
        self.bytes_read += chunk.end - chunk.start
        for axis, (begin, end) in enumerate(overlap):
            staged = staged.narrow(axis, begin - chunk.offsets[axis], end - begin)
            target = target.narrow(axis, begin - block.offsets[axis], end - begin)
        with torch.no_grad():
            target.copy_(staged)
        return staged.numel()

    def _file(self, name: str) -> OpenFile:
        if name not in self._files:
            self._files[name] = self._opened(name)
        return self._files[name]

    def _opened(self, name: str) -> OpenFile:
        """Closed with the source."""
        assert self._place is not None, "outside its `with`"
        if "/" in name or name in {"", ".", ".."}:
            raise CheckpointError(f"the manifest names a file outside its folder: {name!r}")
        return self._place.open(name)


def _overlap(chunk: Chunk, block: Block) -> list[tuple[int, int]] | None:
    """[begin, end) along each axis in the whole tensor, or None where they share nothing."""
    shared: list[tuple[int, int]] = []
    for at, size, mine, length in zip(chunk.offsets, chunk.shape, block.offsets, block.local.shape, strict=True):
        begin, end = max(at, mine), min(at + size, mine + length)
        if begin >= end:
            return None
        shared.append((begin, end))
    return shared
