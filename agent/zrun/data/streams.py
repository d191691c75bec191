"""An iterable dataset with `stream(epoch, start)`, dealt out to ranks by position: the same global batches at any world
size. Runs in loader workers too.

Every rank reads the whole stream and keeps its share, so that all see its end at the same step. It knows nothing about
steps or checkpoints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info

from zrun.core.batch import BatchId
from zrun.core.errors import UsageError
from zrun.data.sampling import sample_seed, seed_sample
from zrun.data.shares import cut

Ended = list[list[int]]
"""[global batches, samples] of each epoch that is over."""


class Arrival(NamedTuple):
    """One rank's share of one global batch of a stream, as it comes from where it was read."""

    batch_id: BatchId
    skipped: list[BatchId]
    parts: list[Any]
    weights: list[float]
    samples: int
    ended: Ended


@dataclass(frozen=True, slots=True)
class Dealing:
    """How a stream is dealt out; `place`: rank and world size; `most`: epochs, None: until one is empty."""

    seed: int
    global_batch: int
    micro_batch: int | None
    drop_last: bool
    place: tuple[int, int]
    most: int | None
    quarantined: frozenset[str]
    name: Callable[[int, int, range], BatchId]
    collate: Callable[[list[Any]], Any]


class Dealt(IterableDataset[Arrival]):
    """From the batch after `ordinal` on; `ended` tells of the epochs before it."""

    def __init__(self, dataset: Any, dealing: Dealing, ordinal: int, ended: Ended) -> None:
        self._dataset = dataset
        self._dealing = dealing
        self._ordinal = ordinal
        self._ended = ended

    def __iter__(self) -> Iterator[Arrival]:
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for number, (batch_id, skipped, samples, ended) in enumerate(self._batches()):
            if number % workers == mine:
                yield self._share(batch_id, skipped, samples, ended)

    def _batches(self) -> Iterator[tuple[BatchId, list[BatchId], list[Any], Ended]]:
        deal, ordinal, ended = self._dealing, self._ordinal, [*self._ended]
        skipped: list[BatchId] = []
        stream: _Ahead | None = None
        while deal.most is None or len(ended) < deal.most:
            epoch, done = len(ended), ordinal - sum(batches for batches, _ in ended)
            start = done * deal.global_batch
            name = deal.name(epoch, ordinal + 1, range(start, start + deal.global_batch))
            if str(name) in deal.quarantined:
                skipped.append(name)
                ordinal, stream = ordinal + 1, None  # opened anew after it: what is bad in it is not read
                continue
            stream = stream or _Ahead(self._dataset, deal.seed, epoch, start)
            samples = stream.take(deal.global_batch)
            if not samples or (deal.drop_last and len(samples) < deal.global_batch):
                if not done:
                    _refuse_too_short(len(samples), epoch, deal.global_batch)
                    return
                ended, stream = [*ended, [done, start + len(samples)]], None
                continue
            ordinal += 1
            if stream.over():
                ended, stream = [*ended, [done + 1, start + len(samples)]], None
            yield name, skipped, samples, ended
            skipped = []

    def _share(self, batch_id: BatchId, skipped: list[BatchId], samples: list[Any], ended: Ended) -> Arrival:
        deal = self._dealing
        share = cut(len(samples), *deal.place, deal.micro_batch)
        # As its last sample was: what the collation draws follows from the batch, and not from what was read ahead.
        seed_sample(sample_seed(deal.seed, batch_id.epoch, -batch_id.ordinal))
        # An empty part still takes part in the step: one sample, weight 0.
        parts = [deal.collate(samples[a:b] or samples[:1]) for a, b in share.parts]
        return Arrival(batch_id, skipped, parts, share.weights, share.samples, ended)


class _Ahead:
    """The samples of one epoch from a position on, one read ahead so that the end is known before it is met.

    What goes wrong ahead is raised when that sample's turn comes: it is the next batch's misfortune.
    """

    def __init__(self, dataset: Any, seed: int, epoch: int, position: int) -> None:
        self._samples = iter(dataset.stream(epoch, position))
        self._seed = seed
        self._epoch = epoch
        self._position = position
        self._held: list[Any] = []
        self._over = False
        self._wrong: Exception | None = None

    def take(self, count: int) -> list[Any]:
        """Up to `count` samples; fewer at the end."""
        found: list[Any] = []
        while len(found) < count and not self.over():
            if self._wrong is not None:
                raise self._wrong
            found.append(self._held.pop())
        return found

    def over(self) -> bool:
        if self._held or self._wrong is not None or self._over:
            return self._over
        seed_sample(sample_seed(self._seed, self._epoch, self._position))
        try:
            self._held.append(next(self._samples))
            self._position += 1
        except StopIteration:
            self._over = True
        except Exception as error:  # raised again in its turn
            self._wrong = error
        return self._over


def _refuse_too_short(samples: int, epoch: int, global_batch: int) -> None:
    """An epoch without one batch ends the data; the very first one is a mistake."""
    if epoch == 0:
        raise UsageError(
            f"the stream has {samples} samples, fewer than global_batch {global_batch}" if samples
            else "the stream is empty",
            "take a smaller global_batch, or drop_last=False for one short batch an epoch",
        )  # fmt: skip
