"""Which steps the memory of this node can give back, judged from what its ranks left there, and as what manifest.

A rank that could not copy its state is made up for by one that holds the very same, if what is its own lies on its
page. Reads the files once; knows nothing about which step is wanted, or what other nodes hold.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zrun.core.manifest import Chunk, Manifest, TensorEntry
from zrun.state import memory_page, memory_slot
from zrun.state.blocks import Copies
from zrun.state.memory_page import Page, Small
from zrun.state.optimizer import with_settings
from zrun.state.places import Places
from zrun.state.safetensors_file import ALGORITHM
from zrun.state.saving import merge
from zrun.state.writers import Held, assign


@dataclass(frozen=True, slots=True)
class Key:
    """One moment of one attempt."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Lying:
    """One block and where its bytes lie."""

    name: str
    dtype: str
    shape: list[int]
    offsets: list[int]
    local: list[int]
    copies: str
    file: str = ""
    start: int = 0
    end: int = 0
    digest: str = ""

    @property
    def place(self) -> tuple[str, str]:
        return self.name, f"{self.offsets}:{self.local}"

    @property
    def held(self) -> Held:
        digest = "" if self.copies == Copies.EQUAL else self.digest
        return Held(self.name, f"{self.dtype}{self.shape}", self.place[1], self.end - self.start, self.copies, digest)


@dataclass(frozen=True, slots=True)
class Part:
    """All that one rank gives for one step."""

    about: Mapping[str, Any]
    blocks: list[Lying]


@dataclass(frozen=True, slots=True)
class Recalled:
    """A step that can be given back: its manifest, and the path of each file that it names."""

    manifest: Manifest
    files: dict[str, str]


@dataclass(slots=True)
class Memory:
    """What lies in this node's memory of one job."""

    parts: dict[Key, dict[int, Part]] = field(default_factory=dict)
    pages: dict[int, Page] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """file name in a manifest -> path"""

    def moments(self) -> list[Key]:
        """Newest first."""
        return sorted(self.parts, key=lambda key: (-key.attempt, -key.step))

    def recall(self, key: Key, ranks: Iterable[int]) -> Recalled | str:
        """The state at `key` for these ranks of this node, or why it cannot be had."""
        parts = self.parts[key]
        done = {rank: part for rank, part in parts.items() if part.about["done"]}
        if not done:
            return "no rank had ended that step"
        given = dict(done)
        for rank in ranks:
            if rank not in done:
                part = self._made_up(key, rank, parts.get(rank), done)
                if isinstance(part, str):
                    return f"rank {rank} {part}"
                given[rank] = part
        world = int(next(iter(done.values())).about["world_size"])
        return Recalled(_manifest(key, given, world), self.files)

    def _made_up(self, key: Key, rank: int, own: Part | None, done: Mapping[int, Part]) -> Part | str:
        """What this rank would have left after the step, from what it did leave and from a rank that ended it."""
        page = self.pages.get(rank)
        if page is None or page.about["attempt"] != key.attempt:
            return "had no time to copy its state, and left nothing small either"
        described = [Lying(*fields) for fields in page.about["blocks"]]
        changed, small = int(page.about["changed"]), len(page.about["spans"])
        big = described[small:]
        twin = next((part for part in done.values() if _same_big(part, big, page)), None)
        if own is not None:
            blocks: list[Lying] | str = own.blocks
            twin = twin or next(iter(done.values()))
        elif twin is not None:
            places = {block.place for block in big}
            blocks = [block for block in twin.blocks if block.place in places]
            least = self._small(key, rank, page, described[:changed], described[changed:small])
            blocks = [*least, *blocks] if isinstance(least, list) else least
        else:
            return "had no time to copy its state, which no other rank holds"
        values = self._values(key, page, twin)
        if isinstance(blocks, str) or isinstance(values, str):
            return blocks if isinstance(blocks, str) else str(values)
        return Part({**twin.about, "values": values}, blocks)

    def _small(
        self, key: Key, rank: int, page: Page, changed: Sequence[Lying], loose: Sequence[Lying]
    ) -> list[Lying] | str:
        """Small blocks as they were after the step; buffers that are rank 0's word anyway may be missing elsewhere."""
        found, file = page.tensors.get(key.step), f"rank-{rank}.page"
        if found is not None:
            return _lying([*changed, *loose], found, file)
        if loose:
            return f"had not put down {loose[0].name} of that step"
        found = page.after.get(key.step)
        if found is not None:
            return _lying(changed, found, file)
        lost = [block.name for block in changed if not (block.copies == Copies.FIRST and rank != 0)]
        return f"had not put down {lost[0]} of that step" if lost else []

    def _values(self, key: Key, page: Page, twin: Part) -> dict[str, Any] | str:
        """Its own if it had put them down, else the twin's where both had the same before."""
        mine = page.values.get(key.step)
        static = {name: value for name, value in page.about["values"].items() if name not in twin.about["values"]}
        if mine is not None:
            optimizers = {n: with_settings(page.about["values"][n], own) for n, own in mine["settings"].items()}
            return {**page.about["values"], **optimizers, **mine["values"]}
        other = self.pages.get(int(twin.about["rank"]))
        common = page.values.keys() & other.values.keys() if other is not None else set()
        if other is None or not common or page.values[max(common)] != other.values[max(common)]:
            return "may have had values of its own at that step"
        return {**static, **twin.about["values"]}


def look(places: Mapping[int, Places], job: str, world_size: int) -> Memory:
    """Everything of `job` at this world size."""
    memory = Memory()
    for rank, place in places.items():
        for number, slot in enumerate(place.slots):
            about = memory_slot.read(slot)
            if about is None or about["job"] != job or about["world_size"] != world_size or about["rank"] != rank:
                continue
            file = f"rank-{rank}.slot-{number}"
            memory.files[file] = slot
            blocks = [
                replace(Lying(*fields), file=file, start=span[0], end=span[1], digest=span[2])
                for fields, span in zip(about["blocks"], about["spans"], strict=True)
            ]
            key = Key(int(about["attempt"]), int(about["step"]))
            memory.parts.setdefault(key, {})[rank] = Part(about, blocks)
        page = memory_page.read(place.page)
        if page is not None and page.about["job"] == job and page.about["world_size"] == world_size:
            memory.pages[rank] = page
            memory.files[f"rank-{rank}.page"] = place.page
    return memory


def _same_big(part: Part, big: Sequence[Lying], page: Page) -> bool:
    """Does that rank hold what this one held, and is it kept equal?"""
    optimizers = tuple(f"{name}/" for name in page.about["optimizers"])
    if any(block.copies == Copies.OWN and not block.name.startswith(optimizers) for block in big):
        return False
    return {block.place for block in big} == {block.place for block in part.blocks[int(part.about["small"]) :]}


def _lying(blocks: Sequence[Lying], found: Small, file: str) -> list[Lying]:
    return [
        replace(block, file=file, start=span[0], end=span[1], digest=f"{ALGORITHM}:{_digest(data)}")
        for block, data, span in zip(blocks, found.tensors, found.spans, strict=False)
    ]


def _digest(data: bytes) -> str:
    return hashlib.new(ALGORITHM, data).hexdigest()


def _manifest(key: Key, given: Mapping[int, Part], world_size: int) -> Manifest:
    first = given[min(given)].about
    ranks = range(world_size)
    lists = [given[rank].blocks if rank in given else [] for rank in ranks]
    plan = assign([[block.held for block in blocks] for blocks in lists])
    tensors: dict[str, TensorEntry] = {}
    for blocks, mine in zip(lists, plan, strict=True):
        for index, name in mine.items():
            block = blocks[index]
            chunk = Chunk(block.file, block.start, block.end, block.offsets, block.local, block.digest)
            tensors.setdefault(name, TensorEntry(block.dtype, block.shape, [])).chunks.append(chunk)
    values = merge([given[rank].about["values"] if rank in given else first["values"] for rank in ranks])
    return Manifest(
        job=first["job"], name="", attempt=key.attempt, step=key.step, batch=first["batch"], world_size=world_size,
        strategy=first["strategy"], saved_at="", files=[], tensors=tensors, values=values, cursor=first["cursor"],
        fingerprint=first["fingerprint"],
    )  # fmt: skip
