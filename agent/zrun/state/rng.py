"""Every random stream of a rank, computed from (seed, rank, step): never lost with the rank that held it.

Python's, NumPy's if the script imported it, torch's and each CUDA device's if CUDA is in use. Knows nothing about
who calls it when.
"""

import hashlib
import random
import struct
import sys
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


def capture() -> dict[str, Any]:
    """This rank's generators as they stand, as values and tensors that a checkpoint can hold."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.default_generator.get_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [generator.get_state() for generator in torch.cuda.default_generators]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        kind, keys, position, has_gauss, gauss = numpy_random.get_state()
        state["numpy"] = (kind, [int(key) for key in keys], int(position), int(has_gauss), float(gauss))
    return state


def apply(state: dict[str, Any]) -> None:
    """Put back what `capture` gave. Generators it did not hold stay as they are."""
    random.setstate(state["python"])
    torch.default_generator.set_state(state["torch"])
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for generator, held in zip(torch.cuda.default_generators, state["cuda"], strict=False):
            generator.set_state(held)
    numpy_random = sys.modules.get("numpy.random")
    if "numpy" in state and numpy_random is not None:
        numpy_random.set_state(state["numpy"])
