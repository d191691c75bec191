"""Checkpoints as transformers' Trainer writes them (`checkpoint-N/`): which there are, and what one that nobody sealed
lacks. Reads heads of files, unpickles nothing. Knows nothing about training.
"""

import json
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from zrun.integrations.choice import Candidate

PREFIX: Final = "checkpoint"
_NAME: Final = re.compile(rf"{PREFIX}-(\d+)")
_STATE: Final = "trainer_state.json"
_UNFINISHED: Final = "checkpoint-is-incomplete.txt"
"""Trainer itself leaves it in a save that SIGTERM began and nobody ended."""
_MODELS: Final = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0", "global_step*",
)  # fmt: skip
_OPTIMIZERS: Final = ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*")
_SCHEDULERS: Final = ("scheduler.pt", "global_step*")


def found(output: Path) -> list[Candidate]:
    """Newest first, by step. What cannot be read is not there."""
    try:
        entries = [(entry, _NAME.fullmatch(entry.name)) for entry in output.iterdir()]
        there = [Candidate(entry, int(match[1])) for entry, match in entries if match and entry.is_dir()]
    except OSError:
        return []
    return sorted(there, key=lambda candidate: candidate.step, reverse=True)


def single(folder: Path) -> Candidate:
    """The one that a script names."""
    match = _NAME.fullmatch(folder.name)
    return Candidate(folder, int(match[1]) if match else 0)


def newest_whole(output: Path, world_size: int, limit: int | None) -> tuple[Path | None, list[str]]:
    """Up to step `limit`: the newest that lacks nothing, and what the newer ones lack. Never raises."""
    reasons: list[str] = []
    for candidate in found(output):
        if limit is not None and candidate.step > limit:
            continue
        try:
            problem = lacking(candidate.path, world_size)
        except OSError as error:
            problem = str(error)
        if problem is None:
            return candidate.path, reasons
        reasons.append(f"{candidate.path.name}: {problem}")
    return None, reasons


def lacking(folder: Path, world_size: int) -> str | None:
    """Of one without a seal. Raises OSError."""
    if (folder / _UNFINISHED).exists():
        return "Trainer began it and did not end it"
    ranks = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{rank}.pth" for rank in range(world_size)]
    needed = [(_STATE,), _MODELS, _OPTIMIZERS, _SCHEDULERS, *((name,) for name in ranks)]
    for names in needed:
        if not any(next(folder.glob(name), None) for name in names):
            return f"{' or '.join(names[:2])} is missing: a save that was cut short, or one of another kind"
    return next((problem for file in _files(folder) if (problem := _unreadable(file)) is not None), None)


def _files(folder: Path) -> Iterator[Path]:
    yield from (file for file in sorted(folder.rglob("*")) if file.is_file())


def _unreadable(file: Path) -> str | None:
    size = file.stat().st_size
    match file.suffix:
        case ".json":
            return _bad_json(file)
        case ".safetensors":
            return None if _ends_where_it_says(file, size) else f"{file.name} is cut short"
        case ".pt" | ".pth" | ".bin":
            return None if zipfile.is_zipfile(file) else f"{file.name} is cut short"
        case _:
            return None


def _bad_json(file: Path) -> str | None:
    try:
        value = json.loads(file.read_text())
        if file.name.endswith(".index.json"):
            absent = [name for name in sorted(set(value["weight_map"].values())) if not (file.parent / name).exists()]
            return f"{absent[0]} is missing" if absent else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{file.name} cannot be read: {type(error).__name__}: {error}"
    return None


def _ends_where_it_says(file: Path, size: int) -> bool:
    """The head of a safetensors file says where its last tensor ends."""
    with file.open("rb") as handle:
        start = handle.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            return False
        try:
            head = json.loads(handle.read(length))
            ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return False
    return bool(8 + length + max(ends, default=0) == size)


def obstacles(args: Any, dataset: Any) -> list[str]:
    """Why a resume of this training cannot be exact, known before it begins."""
    told: list[str] = []
    if getattr(args, "save_only_model", False):
        told.append("save_only_model=True: the checkpoints hold no optimizer, so no restart can go on from them")
    if getattr(args, "ignore_data_skip", False):
        told.append("ignore_data_skip=True: a resumed epoch begins with its first batch again")
    if getattr(args, "auto_find_batch_size", False):
        told.append("auto_find_batch_size=True: a resume is exact only from the batch size that was found")
    if not hasattr(dataset, "__len__"):
        told.append("a dataset without a length: Trainer finds its place by reading from the beginning, in one epoch")
    return told
