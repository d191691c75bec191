"""Loader: global batches of a dataset, the same at any world size, resumable by one number.

It wraps torch's DataLoader (workers, pinned memory, collation pass through) and decides which samples each rank gets.
It knows nothing about steps, checkpoints or agents; Session attaches it to a rank and seeks it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, default_collate

from zrun.core.batch import BatchId
from zrun.core.batches import Batches, DataFacts
from zrun.core.cursor import StreamCursor
from zrun.core.errors import UsageError
from zrun.core.order import Epochs
from zrun.data import samplers
from zrun.data.kinds import kind_of
from zrun.data.order import ShuffledInBlocks
from zrun.data.plans import Plan, Plans
from zrun.data.sampling import Sampled, as_is
from zrun.data.sharded import Sharded
from zrun.data.shares import cut
from zrun.data.streams import Dealing, Dealt

_OURS: Final = frozenset({"batch_size", "batch_sampler"})


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

    `dataset` has __len__ and __getitem__, or shards() and read(shard, start, count), or stream(epoch, start).
    `epochs`: the data is over after so many. Raises UsageError for what could not be sought exactly (docs/data.md).
    """

    def __init__(self, dataset: Any, *, global_batch: int, micro_batch: int | None = None, seed: int | None = None,
                 shuffle: bool | None = None, drop_last: bool = True, sampler: Any = None, epochs: int | None = None,
                 **options: Any) -> None:  # fmt: skip
        for name, least in (("global_batch", global_batch), ("micro_batch", micro_batch), ("epochs", epochs)):
            if least is not None and least < 1:
                raise UsageError(f"{name} must be at least 1, not {least}")
        clash = _OURS & options.keys()
        if clash:
            raise UsageError(f"Loader does not take {', '.join(sorted(clash))}", "it has global_batch and sampler")
        self._kind = kind_of(dataset, sampler, shuffle)
        self.dataset = Sharded(dataset) if self._kind == "shards" else dataset
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.drop_last = drop_last
        self.shuffle = self._kind in {"samples", "shards"} if shuffle is None else shuffle
        self._named = dataset
        self._sampler = sampler
        self._epochs = epochs
        self._seed = self._own_seed = seed
        self._collate = options.pop("collate_fn", None) or default_collate
        self._options = options
        self._fingerprint: str | None = None
        self._place: tuple[int, int] | None = None
        self._ordinal_done = 0
        self._ended: list[list[int]] = []
        self._quarantined: frozenset[str] = frozenset()
        self._plans: Plans | None = None
        self._reading = False
        self._known: Batches | None = None
        if self._kind in {"samples", "shards"}:
            self._batches()  # a dataset that is empty or too small is told here

    def __len__(self) -> int:
        """Global batches in an epoch."""
        cursor = self._batches().cursor
        if isinstance(cursor, StreamCursor):
            raise TypeError("how long a stream is turns out when it ends")
        return cursor.batches

    @property
    def seed(self) -> int:
        return self._seed or 0

    def attach(self, rank: int, world_size: int, seed: int) -> None:
        """Say which rank this is; `seed` holds unless the Loader was given one of its own."""
        self._refuse_while_reading()
        self._place = (rank, world_size)
        if self._seed is None:
            self._seed = seed
        self._known = None
        self._batches()

    def seek(self, ordinal_done: int, quarantined: Iterable[str] = (), ended: Iterable[Iterable[int]] = ()) -> None:
        """Go on after global batch `ordinal_done`, leaving out the named batches. Reads nothing.

        `ended`: of a stream, what `facts` told of the epochs that were over.
        """
        self._refuse_while_reading()
        self._ordinal_done = ordinal_done
        self._quarantined = frozenset(quarantined)
        self._ended = [list(epoch) for epoch in ended]

    def _refuse_while_reading(self) -> None:
        if self._reading:
            raise UsageError("the Loader is being read: attach or seek it before its iteration begins")

    @property
    def order(self) -> str:
        """In words, what a resume must find as it was."""
        how = "shuffled" if self.shuffle else "as it lies"
        if self._sampler is not None:
            how = type(self._sampler).__qualname__
        own = f", seed {self._own_seed}" if self._own_seed is not None else ""
        return f"{self._kind}, {how}, {'whole batches' if self.drop_last else 'short batches too'}{own}"

    @property
    def epochs_ended(self) -> int:
        """Of a stream: how many it is known of."""
        return len(self._ended)

    def remarks(self) -> list[str]:
        """What a person should know of this data, in words."""
        return samplers.remarks(self._sampler, self._batches().facts.samples) if self._kind == "sampler" else []

    def fingerprint(self) -> str:
        """What the data is: the dataset's own `fingerprint()`, else its class and length."""
        if self._fingerprint is None:  # asked once: it may read much
            own = getattr(self._named, "fingerprint", None)
            kind = type(self._named)
            many = "stream" if self._kind == "stream" else len(self.dataset)
            self._fingerprint = str(own()) if callable(own) else f"{kind.__module__}.{kind.__qualname__}:{many}"
        return self._fingerprint

    def facts(self) -> DataFacts:
        """What its batches follow from."""
        known = self._batches().facts
        return DataFacts(
            known.kind, known.fingerprint, known.seed, known.global_batch, known.drop_last, known.shuffle,
            known.samples, known.shards, self._ended, sorted(self._quarantined),
        )  # fmt: skip

    def _batches(self) -> Batches:
        if self._known is None:
            epochs: Epochs | None = None
            if self._kind == "sampler":
                epochs = samplers.epochs_of(self._sampler, len(self.dataset), self.seed)
            elif self._kind == "samples" and self.shuffle and len(self.dataset):
                epochs = ShuffledInBlocks(len(self.dataset), self.seed)
            samples = epochs.size if epochs is not None else 0 if self._kind == "stream" else len(self.dataset)
            shards = self.dataset.lengths if self._kind == "shards" else []
            facts = DataFacts(
                self._kind, self.fingerprint(), self.seed, self.global_batch, self.drop_last, self.shuffle, samples,
                shards,
            )  # fmt: skip
            self._known = Batches(facts, epochs)
        return self._known

    @property
    def done(self) -> int:
        """The ordinal of the newest batch it gave."""
        return self._ordinal_done

    def cursor(self, done: int | None = None) -> dict[str, Any]:
        """All that a checkpoint keeps of the data: where it stands, or where it stood after batch `done`."""
        done = self._ordinal_done if done is None else done
        following = self._batches_now().span(done + 1)
        return {
            "ordinal": done, "epoch": following.epoch, "offset": following.start, "seed": self.seed,
            "data": self.facts().to_dict(),
        }  # fmt: skip

    def indices(self, ordinal: int) -> list[int]:
        """The samples of one global batch, in order; of a stream their positions in its epoch."""
        return self._batches_now().indices(ordinal)

    def batch_id(self, ordinal: int) -> BatchId:
        """The name of one global batch, the same at any world size."""
        return self._batches_now().name(ordinal)

    def _batches_now(self) -> Batches:
        """As it is known now how long a stream's epochs are."""
        return Batches(self.facts()) if self._kind == "stream" else self._batches()

    def plan(self, after: int) -> Plan | None:
        """The next batch after ordinal `after` that is not quarantined; None: the data is over."""
        if self._place is None:
            raise UsageError("this Loader belongs to no rank yet", "hand it to Session(data=loader)")
        batches, skipped = self._batches(), []
        while True:
            after += 1
            span = batches.span(after)
            if self._epochs is not None and span.epoch >= self._epochs:
                return None
            indices = batches.indices(after)
            name = batches.named(span.epoch, after, indices)
            if str(name) not in self._quarantined:
                break
            skipped.append(name)
        share = cut(len(indices), *self._place, self.micro_batch)
        # An index may come twice an epoch from a sampler: its randomness then follows from its place.
        draws = range(span.start, span.start + span.size) if self._kind == "sampler" else indices
        keys = [(span.epoch, index, draw) for index, draw in zip(indices, draws, strict=True)]
        # An empty part still takes part in the step: one sample, weight 0.
        return Plan(name, skipped, share, [keys[a:b] or keys[:1] for a, b in share.parts])

    def upcoming(self) -> BatchId | None:
        """The name of the batch the next `next()` reads: known before it is read. None: the data is over.

        Of a stream it is a guess where an epoch ends with samples that make no batch; the share then has the right one.
        """
        if self._kind == "stream":
            return self._upcoming_of_stream()
        plan = self.plan(self._ordinal_done) if self._plans is None else self._plans.upcoming()
        return plan.batch_id if plan is not None else None

    def _upcoming_of_stream(self) -> BatchId | None:
        if self._epochs is not None and len(self._ended) >= self._epochs:
            return None
        ordinal = self._ordinal_done + 1
        while str(name := self.batch_id(ordinal)) in self._quarantined:
            ordinal += 1
        return name

    def __iter__(self) -> Iterator[Share]:
        """This rank's share of one global batch after another, epoch after epoch, without end but for `epochs`."""
        if self._reading:
            raise UsageError("the Loader is being read already")
        if self._place is None:
            raise UsageError("this Loader belongs to no rank yet", "hand it to Session(data=loader)")
        self._reading = True
        # A generator of its own: DataLoader then draws nothing from the script's.
        generator = self._options.pop("generator", None) or torch.Generator().manual_seed(self.seed & 0x7FFFFFFF)
        options = {"generator": generator, "collate_fn": as_is, **self._options}
        try:
            yield from self._streamed(self._place, options) if self._kind == "stream" else self._mapped(options)
        finally:
            self._reading = False
            self._plans = None

    def _mapped(self, options: dict[str, Any]) -> Iterator[Share]:
        self._plans = plans = Plans(self, self._ordinal_done)
        dataset: Any = Sampled(self.dataset, self.seed, self._collate)
        batches: DataLoader[Any] = DataLoader(dataset, batch_sampler=plans, **options)
        for parts in batches:
            plan = plans.arrived()
            self._ordinal_done = plan.batch_id.ordinal
            yield self._share(plan.batch_id, parts, plan.cut.weights, plan.cut.samples, plan.skipped)

    def _streamed(self, place: tuple[int, int], options: dict[str, Any]) -> Iterator[Share]:
        dealing = Dealing(
            self.seed, self.global_batch, self.micro_batch, self.drop_last, place, self._epochs, self._quarantined,
            self._batches().named, self._collate,
        )  # fmt: skip
        dealt = Dealt(self.dataset, dealing, self._ordinal_done, self._ended)
        for batch_id, skipped, parts, weights, samples, ended in DataLoader(dealt, batch_size=None, **options):
            self._ordinal_done, self._ended = batch_id.ordinal, ended
            yield self._share(batch_id, parts, weights, samples, skipped)

    def _share(self, batch_id: BatchId, parts: list[Any], weights: list[float], samples: int, skipped: list[BatchId],
               ) -> Share:  # fmt: skip
        data = parts[0] if self.micro_batch is None else parts
        return Share(batch_id, data, parts, weights, samples, sum(weights), skipped)
