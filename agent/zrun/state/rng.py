"""Every random stream of a rank: computed from (seed, rank, step), so that none is lost with the rank that held it, or
taken along as it stands.

Python's, NumPy's if the script imported it, torch's and each CUDA device's if CUDA is in use. Knows nothing about
who calls it when.
"""

import contextlib
import hashlib
import random
import struct
import sys
from collections.abc import Iterator
from typing import Any

import torch


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed all generators for one step of one rank; equal triples give equal streams, others unrelated ones."""
    mixed = hashlib.blake2b(struct.pack("<qqq", _signed(seed), rank, step), digest_size=28, person=b"zrun-step-rng")
    for_python, for_torch, for_cuda, for_numpy = struct.unpack("<QQQI", mixed.digest())
    random.seed(for_python)
    # torch.manual_seed() would queue a call (with a stack trace) for every device kind that is not in use.
    torch.default_generator.manual_seed(for_torch)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for generator in torch.cuda.default_generators:
            generator.manual_seed(for_cuda)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(for_numpy)


def _signed(seed: int) -> int:
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def capture(*, devices: bool = True) -> dict[str, Any]:
    """This rank's generators as they stand, as values and tensors that a checkpoint can hold."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64, device="cpu"), gauss],
        "torch": torch.default_generator.get_state(),
    }
    if devices and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [generator.get_state() for generator in torch.cuda.default_generators]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        kind, keys, position, has_gauss, cached = numpy_random.get_state()
        held = torch.tensor(keys.tolist(), dtype=torch.int64, device="cpu")
        state["numpy"] = [kind, held, int(position), int(has_gauss), float(cached)]
    return state


def apply(state: dict[str, Any]) -> list[str]:
    """Put back what `capture` gave; in words what could not be. Generators it did not hold stay as they are."""
    told: list[str] = []
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.default_generator.set_state(state["torch"])
    if "cuda" in state:
        here = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        if len(here) != len(state["cuda"]):
            told.append(f"random streams of {len(state['cuda'])} CUDA devices were saved, {len(here)} are in use here")
        for generator, held in zip(here, state["cuda"], strict=False):
            generator.set_state(held)
    if "numpy" in state:
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is None:
            told.append("NumPy's random stream was saved, but the script has not imported NumPy before its loop")
        else:
            kind, keys, *rest = state["numpy"]
            numpy_random.set_state((kind, keys.tolist(), *rest))
    return told


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """What is drawn or seeded inside leaves no trace in the host's streams."""
    held = capture(devices=False)
    try:
        yield
    finally:
        apply(held)
