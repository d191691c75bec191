"""What is small and a rank's own, put down at the end of each step where it outlives the rank, a killed one too.

A page holds what the rank has (once, as JSON) and places that take turns: small tensors after each step, those that a
forward has changed in the step under way, and now and then the small values. Written without system calls; only what is
whole counts. Knows nothing about models.
"""

import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

_HEAD: Final = struct.Struct("<8sQ")
"""magic, bytes of the JSON that describes the page."""
_MAGIC: Final = b"ZRUNPAGE"
_PLACE: Final = struct.Struct("<QQQ")
"""1 if whole, the step that was done (in `after`: is under way), bytes of JSON."""
_ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Small:
    """Small tensors as they were found: their bytes, and where they lie in the file."""

    tensors: list[bytes]
    spans: list[tuple[int, int]]


@dataclass(slots=True)
class Page:
    """`about` as given to the writer; the rest by the step that was done."""

    about: dict[str, Any]
    tensors: dict[int, Small] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    after: dict[int, Small] = field(default_factory=dict)
    """By the step that was under way: what its forward had made of the first of the tensors."""


class PageWriter:
    """At `path`, an anonymous file of the keeper's. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._places: dict[str, int] = {}
        self._room = 0
        self._turns = {"tensors": 0, "values": 0}
        self._copies: dict[str, list[torch.Tensor]] = {}
        self.newest: list[torch.Tensor] = []
        """The copies that were put down at the newest step's end."""

    def lay_out(self, about: dict[str, Any], tensors: Sequence[torch.Tensor], changed: int, room: int) -> None:
        """For tensors of these kinds, the first `changed` of which a forward changes, and JSON of at most `room` bytes;
        what was there before is gone.
        """
        spans, size = _spans(tensors)
        count = {"tensors-0": len(spans), "tensors-1": len(spans), "after": changed}
        sizes = {"values-0": room, "values-1": room, "tensors-0": size, "tensors-1": size, "after": size}
        offsets, at = {}, 0
        for name, needed in sizes.items():
            offsets[name], at = at, at + _aligned(_PLACE.size) + _aligned(needed)
        described = {**about, "spans": [list(span) for span in spans], "places": offsets, "changed": changed}
        text = json.dumps(described, separators=(",", ":")).encode()
        begin = _aligned(_HEAD.size + len(text))
        handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(handle, 0)
            os.ftruncate(handle, begin + at)
            self._map = mmap.mmap(handle, begin + at)
        finally:
            os.close(handle)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self._room, self._places = room, {name: begin + offset for name, offset in offsets.items()}
        self._copies = {
            name: list(_views(whole, self._places[name] + _aligned(_PLACE.size), spans[:number], tensors))
            for name, number in count.items()
        }
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._map, 0, _MAGIC, len(text))

    def put_values(self, step: int, values: bytes) -> bool:
        """JSON. False: it has outgrown its place, and was not put down."""
        if self._map is None or len(values) > self._room:
            return False
        at = self._places[self._turn("values")]
        _PLACE.pack_into(self._map, at, 0, step, len(values))
        begin = at + _aligned(_PLACE.size)
        self._map[begin : begin + len(values)] = values
        _PLACE.pack_into(self._map, at, 1, step, len(values))
        return True

    def put_tensors(self, step: int, tensors: Sequence[torch.Tensor]) -> None:
        """As they are after `step`."""
        name = self._turn("tensors")
        self.newest = self._copies[name]
        self._put(name, step, tensors)

    def put_changed(self, step: int, tensors: Sequence[torch.Tensor]) -> None:
        """As the forward of `step`, which is under way, has left them."""
        self._put("after", step, tensors)

    def _put(self, name: str, step: int, tensors: Sequence[torch.Tensor]) -> None:
        assert self._map is not None
        at = self._places[name]
        _PLACE.pack_into(self._map, at, 0, step, 0)
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._copies[name], list(tensors))
        _PLACE.pack_into(self._map, at, 1, step, 0)

    def _turn(self, kind: str) -> str:
        now = self._turns[kind]
        self._turns[kind] = 1 - now
        return f"{kind}-{now}"


def read(path: str) -> Page | None:
    """None: no rank has laid out a page there."""
    try:
        data = Path(path).read_bytes()
        magic, count = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            return None
        about = json.loads(data[_HEAD.size : _HEAD.size + count])
        page, begin = Page(about), _aligned(_HEAD.size + count)
        for name, offset in about["places"].items():
            _read_place(page, name, data, begin + offset)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
    return page


def _read_place(page: Page, name: str, data: bytes, at: int) -> None:
    whole, step, count = _PLACE.unpack_from(data, at)
    if not whole:
        return
    begin = at + _aligned(_PLACE.size)
    if name.startswith("values"):
        page.values[step] = json.loads(data[begin : begin + count])
        return
    spans = [(begin + first, begin + last) for first, last in page.about["spans"]]
    small = Small([data[first:last] for first, last in spans], spans)
    (page.after if name == "after" else page.tensors)[step] = small


def _spans(tensors: Sequence[torch.Tensor]) -> tuple[list[tuple[int, int]], int]:
    spans: list[tuple[int, int]] = []
    at = 0
    for tensor in tensors:
        spans.append((at, at + tensor.numel() * tensor.element_size()))
        at = _aligned(spans[-1][1])
    return spans, at


def _views(
    whole: torch.Tensor, at: int, spans: Sequence[tuple[int, int]], tensors: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    for (begin, end), tensor in zip(spans, tensors, strict=False):
        if end > begin:
            yield whole[at + begin : at + end].view(tensor.dtype).view(tensor.shape)
        else:
            yield torch.empty(tensor.shape, dtype=tensor.dtype)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
