"""Text that every Python ships, the language reference of `pydoc_data.topics`, as windows of bytes."""

import hashlib
import math
from collections import Counter
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset


def reference() -> tuple[bytes, bytes]:
    """(to train on, held out): every tenth topic is held out; a text that stands under two names counts once."""
    texts = list(dict.fromkeys(topics[name] for name in sorted(topics)))
    held_out = "\n\n".join(texts[::10])
    train = "\n\n".join(text for number, text in enumerate(texts) if number % 10)
    return train.encode(), held_out.encode()


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

    def fingerprint(self) -> str:
        """Names the data itself, so that a checkpoint knows when it has changed."""
        return f"{hashlib.sha256(self.text).hexdigest()[:16]}/{self.length}"


def unigram_entropy(train: bytes, held_out: bytes) -> float:
    """Nats per byte of the held-out text for a model that knows only how frequent each byte is."""
    counts = Counter(train)
    total = len(train) + 256
    return -sum(n * math.log((counts[byte] + 1) / total) for byte, n in Counter(held_out).items()) / len(held_out)
