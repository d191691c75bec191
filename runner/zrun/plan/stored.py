"""The size of a model from what lies on disk: safetensors files, their index, or a checkpoint of an earlier attempt.

Reads heads only, no tensor; needs no torch. Says nothing about dtypes of training: those are the recipe's.
"""

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zrun.core import manifest
from zrun.core.errors import StoreError, UsageError
from zrun.core.place import Place
from zrun.core.safetensors import HEADER_LIMIT

_INDEX: Final = ".safetensors.index.json"
_NUMBERED: Final = re.compile(r"^(.*?\.(\d+))\.")
_WHOLE_NUMBERS: Final = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}


@dataclass(frozen=True, slots=True)
class Stored:
    """`units`: parameters by the first numbered module in the names (`model.layers.0`), in order; may be empty."""

    params: int
    units: tuple[int, ...]
    source: str


def from_path(path: Path) -> Stored:
    """A file, an index or a folder with either. Raises UsageError."""
    try:
        if path.is_dir():
            indexes = sorted(path.glob(f"*{_INDEX}"))
            files = sorted(path.glob("*.safetensors"))
            if not indexes and not files:
                raise UsageError(
                    f"{path} holds no safetensors file", "give --params, or a folder or file with the weights"
                )
            return _from_index(indexes[0]) if indexes else _counted(_heads(files), str(path))
        if path.name.endswith(_INDEX):
            return _from_index(path)
        return _counted(_heads([path]), str(path))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", "--model takes MODULE:CALLABLE or a safetensors path"
        ) from error


def _from_index(path: Path) -> Stored:
    """The files it names, where they are; else what it says itself. Bytes alone are no count: dtypes differ."""
    try:
        value = json.loads(path.read_text())
        names = sorted(set(value["weight_map"].values()))
        total = value.get("metadata", {}).get("total_parameters")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a safetensors index: {error}") from error
    files = [path.parent / str(name) for name in names]
    if all(one.is_file() for one in files):
        return _counted(_heads(files), str(path))
    if isinstance(total, int) and total > 0:
        return Stored(total, (), str(path))
    missing = next(one.name for one in files if not one.is_file())
    raise UsageError(
        f"{path} names {missing}, which is not there, and does not say total_parameters",
        "bytes alone do not tell how many parameters there are: fetch the files, or give --params",
    )


def _heads(files: Sequence[Path]) -> dict[str, tuple[str, list[int]]]:
    """name -> (dtype, shape) of every tensor."""
    found: dict[str, tuple[str, list[int]]] = {}
    for path in files:
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else HEADER_LIMIT + 1
            text = file.read(length) if length <= HEADER_LIMIT else b""
        try:
            value: dict[str, Any] = json.loads(text)
            found |= {n: (str(e["dtype"]), list(e["shape"])) for n, e in value.items() if n != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} is not a safetensors file", "--model takes MODULE:CALLABLE or a safetensors path"
            ) from error
    return found


def _counted(tensors: Mapping[str, tuple[str, list[int]]], source: str) -> Stored:
    sizes = {name: math.prod(shape) for name, (dtype, shape) in tensors.items() if dtype not in _WHOLE_NUMBERS}
    by_unit: dict[tuple[str, int], int] = {}
    for name, size in sizes.items():
        if found := _NUMBERED.match(name):
            key = (found[1].removesuffix(found[2]), int(found[2]))
            by_unit[key] = by_unit.get(key, 0) + size
    if not sizes or not sum(sizes.values()):
        raise UsageError(f"{source} holds no parameters")
    return Stored(sum(sizes.values()), tuple(by_unit[key] for key in sorted(by_unit)), source)


def learned(directory: Place) -> Stored | None:
    """From the newest whole checkpoint in `directory`; None: there is none, or its store does not answer."""
    try:
        found = manifest.scan(directory)
    except StoreError:
        found = []
    for one in found:
        if one.state == "complete" and one.manifest is not None:
            held = one.manifest.tensors.items()
            tensors = {n.removeprefix("model/"): (t.dtype, t.shape) for n, t in held if n.startswith("model/")}
            if tensors:
                return _counted(tensors, str(one.path))
    return None
