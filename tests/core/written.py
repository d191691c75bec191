"""Checkpoints for tests, written byte by byte: tensors cut into blocks over ranks as a sharded job would."""

import hashlib
import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path

from zrun.core.manifest import MANIFEST, Chunk, Manifest, ShardFile, TensorEntry, folder_name
from zrun.core.safetensors import ITEM_BYTES, Entry, header, in_order


@dataclass
class Tensor:
    """`cuts`: into how many parts each axis is cut, one rank a part; () means rank 0 has all of it."""

    dtype: str
    shape: list[int]
    cuts: tuple[int, ...] = ()


MODEL = {
    "model/w": Tensor("F32", [6, 4], (2, 1)),
    "model/b": Tensor("F32", [4]),
    "optimizer/w~exp_avg": Tensor("F32", [6, 4]),
}


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write(
    directory: Path, step: int, tensors: dict[str, Tensor] | None = None, *, attempt: int = 1, job: str = "toy-1"
) -> dict[str, bytes]:
    """Returns the bytes of each whole tensor."""
    folder = directory / folder_name(step)
    folder.mkdir(parents=True)
    whole: dict[str, bytes] = {}
    by_rank: dict[int, list[tuple[str, list[int], list[int], bytes]]] = {}
    wanted = MODEL if tensors is None else tensors
    for name, tensor in wanted.items():
        size = ITEM_BYTES.get(tensor.dtype, 1)
        whole[name] = random.Random(f"{name}{step}").randbytes(math.prod(tensor.shape) * size)
        for rank, (offsets, shape) in enumerate(blocks(tensor)):
            by_rank.setdefault(rank, []).append(
                (name, offsets, shape, cut(whole[name], tensor.shape, offsets, shape, size))
            )
    files: list[ShardFile] = []
    entries = {name: TensorEntry(t.dtype, t.shape, []) for name, t in wanted.items()}
    for rank, held in by_rank.items():
        data = {name: raw for name, _, _, raw in held}
        places = {name: (offsets, shape) for name, offsets, shape, _ in held}
        order = in_order(Entry(name, wanted[name].dtype, places[name][1], len(raw)) for name, raw in data.items())
        raw = head = header(order, {"format": "pt", "step": str(step)})
        for entry in order:
            chunk = Chunk(
                f"rank-{rank}.safetensors", len(raw), len(raw) + entry.bytes, *places[entry.name], sha(data[entry.name])
            )
            entries[entry.name].chunks.append(chunk)
            raw += data[entry.name]
        (folder / f"rank-{rank}.safetensors").write_bytes(raw)
        files.append(ShardFile(f"rank-{rank}.safetensors", len(raw), sha(head), rank))
    made = Manifest(job, "toy", attempt, step, None, len(files), "fsdp", f"2026-01-01T00:00:{step % 60:02d}Z", files, entries,
                    {"optimizer": {"lr": 0.1}}, {"epoch": 1})  # fmt: skip
    (folder / MANIFEST).write_text(made.to_json())
    return whole


def blocks(tensor: Tensor) -> list[tuple[list[int], list[int]]]:
    """(offsets, shape) of each part; later parts may be smaller."""
    cuts = tensor.cuts or (1,) * len(tensor.shape)
    axes = []
    for size, parts in zip(tensor.shape, cuts, strict=True):
        length = -(-size // parts) or 1
        axes.append([(at, min(length, size - at)) for at in range(0, size, length)] or [(0, 0)])
    return [([at for at, _ in part], [length for _, length in part]) for part in itertools.product(*axes)]


def cut(raw: bytes, whole: list[int], offsets: list[int], shape: list[int], size: int) -> bytes:
    """One element at a time: slow and plainly right."""
    found = b""
    for index in itertools.product(*(range(n) for n in shape)):
        at = 0
        for i, offset, length in zip(index, offsets, whole, strict=True):
            at = at * length + i + offset
        found += raw[at * size : (at + 1) * size]
    return found


def flip(directory: Path, step: int, file: str, at: int = -1) -> None:
    path = directory / folder_name(step) / file
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
