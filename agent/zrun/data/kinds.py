"""Which of the ways to read a dataset is the one it offers. Knows nothing about batches, and reads no sample."""

from typing import Any, Final, Literal

from torch.utils.data import Dataset, IterableDataset

from zrun.core.errors import UsageError
from zrun.data.samplers import refuse_unfit
from zrun.data.sharded import is_sharded

_STREAM: Final = "give it stream(epoch, start), the samples of an epoch from a position on; see docs/data.md"


def kind_of(dataset: Any, sampler: Any, shuffle: bool | None) -> Literal["samples", "shards", "sampler", "stream"]:
    """As DataFacts.kind. Raises UsageError for what could not be sought exactly."""
    indexed = _has_own(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    by_index = indexed and hasattr(dataset, "__len__")
    if sampler is not None:
        if shuffle:
            raise UsageError("shuffle and sampler exclude each other", "a sampler is an order of its own")
        if not by_index:
            raise UsageError("a sampler needs a dataset with __len__ and __getitem__", _STREAM)
        refuse_unfit(sampler)
        return "sampler"
    if by_index:
        return "samples"
    if is_sharded(dataset):
        return "shards"
    if not callable(getattr(dataset, "stream", None)):
        why = "has no __len__" if indexed else "can only be read from its beginning"
        raise UsageError(
            f"{type(dataset).__qualname__} {why}: after a restart its place could not be found again", _STREAM
        )
    if shuffle:
        raise UsageError("a stream comes in its own order", "shuffle inside stream(epoch, start), by the epoch")
    return "stream"


def _has_own(dataset: Any, method: str) -> bool:
    """torch's Dataset has a __getitem__ that only raises."""
    return getattr(type(dataset), method, None) not in {None, getattr(Dataset, method, None)}
