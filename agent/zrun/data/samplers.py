"""Orders that come from a sampler of the script's: one that can be asked for any place, or one of torch's, drawn once
an epoch. What cannot be exact is refused here, with the way out.

It knows nothing about batches or ranks: every rank asks its own sampler, and all get the same answer.
"""

from array import array
from typing import Any, Final

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from zrun.core.errors import UsageError
from zrun.data.sampling import drawing_apart, sample_seed

LARGE: Final = 5_000_000
"""Places from which on keeping an epoch's order is told: 8 bytes each, on every rank."""
_PROTOCOL: Final = "give it __len__ and indices(epoch, start, count, seed): the samples at those places of the epoch"


def refuse_unfit(sampler: Any) -> None:
    """Raises UsageError for what cannot be one order of samples over all ranks."""
    if isinstance(sampler, DistributedSampler) or hasattr(sampler, "num_replicas"):
        raise UsageError(
            f"{type(sampler).__qualname__} deals samples out to ranks, and so does Loader",
            "leave it out: shuffle, seed and drop_last are Loader's own",
        )
    if isinstance(sampler, BatchSampler):
        raise UsageError("a sampler of batches: Loader makes the batches itself", "hand over the sampler inside it")
    if not hasattr(sampler, "__iter__") and not _can_be_asked(sampler):
        raise UsageError(f"sampler is a {type(sampler).__qualname__}, which gives no samples", _PROTOCOL)


def epochs_of(sampler: Any, samples: int, seed: int) -> "Asked | DrawnOnce":
    """The order that `sampler` gives to a dataset of `samples`."""
    return Asked(sampler, samples, seed) if _can_be_asked(sampler) else DrawnOnce(sampler, samples, seed)


def remarks(sampler: Any, size: int) -> list[str]:
    """What a person should know about the cost of this one."""
    if _can_be_asked(sampler) or size < LARGE:
        return []
    name = type(sampler).__qualname__
    text = (
        f"{name} is drawn to its end for each epoch and at each resume: {size:,} samples, {size >> 17} MiB on every "
        "rank; a sampler with indices(epoch, start, count, seed) costs nothing"
    )
    return [text]


def _can_be_asked(sampler: Any) -> bool:
    return callable(getattr(sampler, "indices", None)) and hasattr(sampler, "__len__")


class Asked:
    """A sampler with `indices(epoch, start, count, seed)`: seeking costs nothing."""

    def __init__(self, sampler: Any, samples: int, seed: int) -> None:
        self._sampler = sampler
        self._samples = samples
        self._seed = seed
        self.size = len(sampler)

    def samples(self, epoch: int, start: int, count: int) -> list[int]:
        found = [int(index) for index in self._sampler.indices(epoch, start, count, self._seed)]
        if len(found) != count:
            raise UsageError(f"the sampler's indices({epoch}, {start}, {count}, …) gave {len(found)} samples")
        _refuse_outside(found, self._samples)
        return found


class DrawnOnce:
    """Any other sampler: seeded from (seed, epoch), drawn to its end and kept for that epoch.

    A sampler that remembers what it gave before would differ after a resume. So it is drawn twice at first, and
    refused if it differs.
    """

    def __init__(self, sampler: Any, samples: int, seed: int) -> None:
        self._sampler = sampler
        self._samples = samples
        self._seed = seed
        self._kept = (0, self._draw(0))
        self.size = len(self._kept[1])
        if self._draw(0) != self._kept[1]:
            raise UsageError(
                f"{type(sampler).__qualname__} gives another order when it is asked again for the same epoch with the "
                f"same seeds: a resume would not be exact",
                _PROTOCOL,
            )

    def samples(self, epoch: int, start: int, count: int) -> list[int]:
        if self._kept[0] != epoch:
            self._kept = (epoch, self._draw(epoch))
            if len(self._kept[1]) != self.size:
                raise UsageError(
                    f"{type(self._sampler).__qualname__} gave {len(self._kept[1])} samples for epoch {epoch}, but "
                    f"{self.size} for epoch 0",
                    "every epoch must be as long; a stream (docs/data.md) need not be",
                )
        return self._kept[1][start : start + count].tolist()

    def _draw(self, epoch: int) -> "array[int]":
        if callable(set_epoch := getattr(self._sampler, "set_epoch", None)):
            set_epoch(epoch)
        value = sample_seed(self._seed, epoch, -1)
        own = getattr(self._sampler, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(value)
        with drawing_apart(value):
            try:
                found = array("q", self._sampler)
            except TypeError as error:
                raise UsageError(f"{type(self._sampler).__qualname__} gives no whole numbers: {error}") from error
        _refuse_outside(found, self._samples)
        return found


def _refuse_outside(found: "list[int] | array[int]", samples: int) -> None:
    if found and not (min(found) >= 0 and max(found) < samples):
        raise UsageError(f"the sampler asks for samples {min(found)} to {max(found)} of a dataset with {samples}")
