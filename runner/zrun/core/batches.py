"""Which samples make which global batch of a run: the few facts it follows from, and the answer computed from them.

One rule for the rank that reads the samples and for a person who asks later, without torch and without the data.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from zrun.core.batch import BatchId, batch_digest
from zrun.core.cursor import Cursor, Span, StreamCursor
from zrun.core.errors import UsageError
from zrun.core.order import AsTheyLie, Epochs, ShardByShard, Shuffled


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What a run's batches follow from; kept in each checkpoint's manifest and in `data.json` of the run's folder."""

    kind: Literal["samples", "shards", "sampler", "stream"]
    fingerprint: str
    seed: int
    global_batch: int
    drop_last: bool
    shuffle: bool = False
    samples: int = 0
    """In an epoch; 0 for a stream."""
    shards: list[int] = field(default_factory=list)
    """How many samples each holds."""
    ended: list[list[int]] = field(default_factory=list)
    """Of a stream: [global batches, samples] of each epoch that is over."""
    skip: list[str] = field(default_factory=list)
    """Batches left out, by name."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "DataFacts":
        """Unknown keys are ignored. Raises TypeError for what lacks one."""
        return cls(**{f.name: value[f.name] for f in fields(cls) if f.name in value})


class Batches:
    """`epochs`: the order of samples, where the facts alone do not tell it (a sampler of the script's own)."""

    def __init__(self, facts: DataFacts, epochs: Epochs | None = None) -> None:
        self.facts = facts
        self._epochs = epochs if epochs is not None else order_of(facts)
        self.cursor: Cursor | StreamCursor = (
            StreamCursor(facts.global_batch, facts.ended) if facts.kind == "stream"
            else Cursor(facts.samples, facts.global_batch, facts.drop_last)
        )  # fmt: skip

    def span(self, ordinal: int) -> Span:
        return self.cursor.span(ordinal)

    def indices(self, ordinal: int) -> list[int]:
        """The samples of one global batch, in order; of a stream their positions in its epoch."""
        span = self.span(ordinal)
        return self._of(span)

    def _of(self, span: Span) -> list[int]:
        if self._epochs is None:
            return list(range(span.start, span.start + span.size))
        return self._epochs.samples(span.epoch, span.start, span.size)

    def name(self, ordinal: int) -> BatchId:
        """The same at any world size. A stream's batch is named before it is read, as if it were a whole one."""
        span = self.span(ordinal)
        if self.facts.kind == "stream":
            span = Span(span.epoch, span.start, self.facts.global_batch)
        return self.named(span.epoch, ordinal, self._of(span))

    def named(self, epoch: int, ordinal: int, indices: Iterable[int]) -> BatchId:
        return BatchId(epoch, ordinal, batch_digest(self.facts.fingerprint, self.facts.seed, indices))


def order_of(facts: DataFacts) -> Epochs | None:
    """None: a stream, whose samples come as they come. Raises UsageError for a sampler of the script's own."""
    match facts.kind:
        case "stream":
            return None
        case "shards":
            return ShardByShard(facts.shards, facts.seed, shuffle=facts.shuffle)
        case "samples":
            return Shuffled(facts.samples, facts.seed) if facts.shuffle else AsTheyLie(facts.samples)
        case _:
            raise UsageError(
                "the order of samples comes from a sampler in the script, which is not asked here",
                "`zrun batches JOB --replay ID` asks it",
            )


def skipped_before(ordinal: int, skip: Iterable[str]) -> int:
    """How many of the left-out batches come before `ordinal`."""
    return sum(BatchId.parse(name).ordinal < ordinal for name in set(skip))


def ordinal_of_step(step: int, skip: Iterable[str]) -> int:
    """A skipped batch leaves a gap in batch numbers, not in steps."""
    ordinal = step
    for left_out in sorted({BatchId.parse(name).ordinal for name in skip}):
        ordinal += left_out <= ordinal
    return ordinal
