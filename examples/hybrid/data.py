"""The language reference that every Python ships (`pydoc_data.topics`): packed to train on, in windows to test."""

import hashlib
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset

END = b"\n\n"
"""Between two documents."""


def reference() -> tuple[list[bytes], bytes]:
    """(documents to train on, held-out text): every tenth topic is held out; one that has two names counts once."""
    texts = [text.encode() for text in dict.fromkeys(topics[name] for name in sorted(topics))]
    return [text for number, text in enumerate(texts) if number % 10], END.join(texts[::10])


class Packed:
    """A stream: documents one after the other, in a new order each epoch, cut into sequences of `length` + 1 bytes.

    The last byte of one sequence is the first of the next. They are read in `lanes` that begin all over the packed
    text, so that a batch is not one document. Each is found by the documents' lengths alone: no resume reads any again.
    """

    def __init__(self, documents: Sequence[bytes], length: int, lanes: int = 64) -> None:
        self.documents = [document + END for document in documents]
        self.length = length
        self.lanes = lanes

    def stream(self, epoch: int, start: int) -> Iterator[Tensor]:
        order = list(range(len(self.documents)))
        random.Random(epoch).shuffle(order)
        begins = [0, *accumulate(len(self.documents[number]) for number in order)]
        rows = (begins[-1] - 1) // self.length // self.lanes
        for place in range(start, rows * self.lanes):
            at = (place % self.lanes * rows + place // self.lanes) * self.length
            visit = bisect_right(begins, at) - 1
            text = bytearray(self.documents[order[visit]][at - begins[visit] :])
            while len(text) <= self.length:
                visit += 1
                text += self.documents[order[visit]]
            yield torch.tensor(list(text[: self.length + 1]), dtype=torch.long)

    def fingerprint(self) -> str:
        """Names the data itself, so that a checkpoint knows when it has changed."""
        return f"{hashlib.sha256(b''.join(self.documents)).hexdigest()[:16]}/{self.length}/{self.lanes}"


class Windows(Dataset[Tensor]):
    """Windows of `length` + 1 bytes, side by side: the last byte of one is the first of the next."""

    def __init__(self, text: bytes, length: int) -> None:
        self.text = text
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length
        return torch.tensor(list(self.text[start : start + self.length + 1]), dtype=torch.long)


def unigram_entropy(train: bytes, held_out: bytes) -> float:
    """Nats per byte of the held-out text for a model that knows only how frequent each byte is."""
    counts = Counter(train)
    total = len(train) + 256
    return -sum(n * math.log((counts[byte] + 1) / total) for byte, n in Counter(held_out).items()) / len(held_out)
