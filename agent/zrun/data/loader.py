"""Loader: global batches of a map-style dataset, the same at any world size, resumable by one number.

It wraps torch's DataLoader (workers, pinned memory, collation pass through) and decides which samples each rank gets.
It knows nothing about steps, checkpoints or agents; Session attaches it to a rank and seeks it.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from zrun.core.batch import BatchId, batch_digest
from zrun.core.errors import UsageError
from zrun.data.cursor import Cursor, Cut, cut
from zrun.data.order import Order
from zrun.data.sampling import Key, Sampled, as_is

_OURS: Final = frozenset({"batch_size", "sampler", "batch_sampler"})
_AT_ONCE: Final = 4096
"""Places of the order computed together."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One global batch before it is read: its name, what was skipped before it, this rank's part of it."""

    batch_id: BatchId
    skipped: list[BatchId]
    cut: Cut


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of one global batch. `data` is the collated batch, or the list of parts with `micro_batch`."""

    batch_id: BatchId
    data: Any
    parts: list[Any]
    part_weights: list[float]
    samples: int
    weight: float
    skipped: list[BatchId] = field(default_factory=list)


class Loader:
    """`Loader(dataset, global_batch=64, micro_batch=8, num_workers=4, …)`, handed to `Session(data=…)`.

    Raises UsageError for iterable datasets (not yet), and for options that would choose samples themselves.
    """

    def __init__(self, dataset: Any, *, global_batch: int, micro_batch: int | None = None, seed: int | None = None,
                 shuffle: bool = True, drop_last: bool = True, **options: Any) -> None:  # fmt: skip
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise UsageError("iterable datasets: not yet", "Loader needs a dataset with __len__ and __getitem__")
        if not hasattr(dataset, "__len__"):
            raise UsageError("a dataset of unknown length: not yet", "Loader needs a dataset with __len__")
        clash = _OURS & options.keys()
        if clash:
            raise UsageError(f"Loader does not take {', '.join(sorted(clash))}", "it has global_batch and shuffle")
        if micro_batch is not None and micro_batch < 1:
            raise UsageError(f"micro_batch must be at least 1, not {micro_batch}")
        self.dataset = dataset
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.shuffle = shuffle
        self._seed = seed
        self._cursor = Cursor(len(dataset), global_batch, drop_last)
        self._collate = options.pop("collate_fn", None) or default_collate
        self._options = options
        self._fingerprint: str | None = None
        self._place: tuple[int, int] | None = None
        self._ordinal_done = 0
        self._quarantined: frozenset[str] = frozenset()
        self._plans: _Plans | None = None
        self._order: tuple[int, Order] | None = None
        self._block: tuple[int, int, list[int]] = (-1, 0, [])

    def __len__(self) -> int:
        """Global batches in an epoch."""
        return self._cursor.batches

    @property
    def seed(self) -> int:
        return self._seed or 0

    def attach(self, rank: int, world_size: int, seed: int) -> None:
        """Say which rank this is; `seed` holds unless the Loader was given one of its own."""
        self._refuse_while_reading()
        self._place = (rank, world_size)
        if self._seed is None:
            self._seed = seed

    def seek(self, ordinal_done: int, quarantined: Iterable[str] = ()) -> None:
        """Go on after global batch `ordinal_done`, leaving out the named batches. Reads nothing."""
        self._refuse_while_reading()
        self._ordinal_done = ordinal_done
        self._quarantined = frozenset(quarantined)

    def _refuse_while_reading(self) -> None:
        if self._plans is not None:
            raise UsageError("the Loader is being read: attach or seek it before its iteration begins")

    def fingerprint(self) -> str:
        """What the data is: the dataset's own `fingerprint()`, else its class and length."""
        if self._fingerprint is None:  # asked once: it may read much
            own = getattr(self.dataset, "fingerprint", None)
            kind = type(self.dataset)
            name = f"{kind.__module__}.{kind.__qualname__}:{self._cursor.samples}"
            self._fingerprint = str(own()) if callable(own) else name
        return self._fingerprint

    def cursor(self) -> dict[str, Any]:
        """Where it stands: all that a checkpoint keeps of the data."""
        following = self._cursor.span(self._ordinal_done + 1)
        return {
            "ordinal": self._ordinal_done, "epoch": following.epoch, "offset": following.start, "seed": self.seed,
        }  # fmt: skip

    def indices(self, ordinal: int) -> list[int]:
        """The samples of one global batch, in order."""
        span = self._cursor.span(ordinal)
        if self._order is None or self._order[0] != span.epoch:
            self._order = (span.epoch, Order(self._cursor.samples, self.seed, span.epoch, shuffle=self.shuffle))
        order = self._order[1]
        epoch, first, block = self._block
        if epoch != span.epoch or not (first <= span.start and span.start + span.size <= first + len(block)):
            count = min(max(_AT_ONCE, span.size), order.size - span.start)
            first, block = span.start, order.samples(span.start, count)
            self._block = (span.epoch, first, block)
        return block[span.start - first : span.start - first + span.size]

    def batch_id(self, ordinal: int) -> BatchId:
        """The name of one global batch, the same at any world size."""
        return self._name(ordinal, self.indices(ordinal))

    def _name(self, ordinal: int, indices: list[int]) -> BatchId:
        epoch = self._cursor.span(ordinal).epoch
        return BatchId(epoch, ordinal, batch_digest(self.fingerprint(), self.seed, indices))

    def plan(self, after: int) -> tuple[Plan, list[list[Key]]]:
        """The next batch after ordinal `after` that is not quarantined, and the keys of this rank's parts."""
        if self._place is None:
            raise UsageError("this Loader belongs to no rank yet", "hand it to Session(data=loader)")
        skipped: list[BatchId] = []
        while True:
            after += 1
            indices = self.indices(after)
            name = self._name(after, indices)
            if str(name) not in self._quarantined:
                break
            skipped.append(name)
        share = cut(len(indices), *self._place, self.micro_batch)
        # An empty part still takes part in the step: one sample, weight 0.
        keys = [[(name.epoch, i) for i in indices[a:b] or indices[:1]] for a, b in share.parts]
        return Plan(name, skipped, share), keys

    def upcoming(self) -> BatchId:
        """The name of the batch the next `next()` reads: known before it is read."""
        if self._plans is None:
            return self.plan(self._ordinal_done)[0].batch_id
        return self._plans.upcoming().batch_id

    def __iter__(self) -> Iterator[Share]:
        """This rank's share of one global batch after another, epoch after epoch, without end."""
        if self._plans is not None:
            raise UsageError("the Loader is being read already")
        self._plans = plans = _Plans(self)
        # A generator of its own: DataLoader then draws nothing from the script's.
        generator = self._options.pop("generator", None) or torch.Generator().manual_seed(self.seed & 0x7FFFFFFF)
        batches: DataLoader[Any] = DataLoader(
            Sampled(self.dataset, self.seed, self._collate), batch_sampler=plans, collate_fn=as_is,  # type: ignore[arg-type]
            generator=generator, **self._options,
        )  # fmt: skip
        try:
            for parts in batches:
                plan = plans.arrived()
                self._ordinal_done = plan.batch_id.ordinal
                yield self._share(plan, parts)
        finally:
            self._plans = None

    def _share(self, plan: Plan, parts: list[Any]) -> Share:
        weights = plan.cut.weights
        data = parts[0] if self.micro_batch is None else parts
        return Share(plan.batch_id, data, parts, weights, plan.cut.samples, sum(weights), plan.skipped)


class _Plans:
    """The batch sampler: makes plans as far ahead as DataLoader prefetches, and remembers them until data arrives."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._last = loader.cursor()["ordinal"]
        self._flight: deque[Plan] = deque()
        self._made: tuple[Plan, list[list[Key]]] | None = None

    def _make(self) -> tuple[Plan, list[list[Key]]]:
        if self._made is None:
            self._made = self._loader.plan(self._last)
            self._last = self._made[0].batch_id.ordinal
        return self._made

    def __iter__(self) -> Iterator[list[list[Key]]]:
        while True:
            plan, keys = self._make()
            self._made = None
            self._flight.append(plan)
            yield keys

    def upcoming(self) -> Plan:
        return self._flight[0] if self._flight else self._make()[0]

    def arrived(self) -> Plan:
        return self._flight.popleft()
