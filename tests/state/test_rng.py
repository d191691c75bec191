"""All randomness of a step follows from seed, rank and step."""

import random
import sys
import time

import numpy as np
import pytest
import torch

from zrun.state import rng


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), torch.rand(1).item()  # noqa: NPY002 - the stream scripts use


def test_the_same_triple_gives_the_same_draws_everywhere() -> None:
    rng.seed_step(0, 1, 40)
    first = draws()
    draws()
    rng.seed_step(0, 1, 40)
    assert draws() == first


def test_neighbouring_triples_are_unrelated() -> None:
    seen = set()
    for seed in range(3):
        for rank in range(4):
            for step in range(50):
                rng.seed_step(seed, rank, step)
                seen |= set(draws())
    assert len(seen) == 3 * 4 * 50 * 3


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 - 1])
def test_any_seed_will_do(seed: int) -> None:
    rng.seed_step(seed, 0, 1)
    first = draws()
    rng.seed_step(seed, 0, 1)
    assert draws() == first


def test_it_costs_little_and_wakes_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy.random", raising=False)
    fastest = 1.0
    for step in range(200):
        begun = time.perf_counter()
        rng.seed_step(0, 0, step)
        fastest = min(fastest, time.perf_counter() - begun)
    assert fastest < 50e-6
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_streams_can_be_taken_along_as_they_stand() -> None:
    rng.seed_step(1, 2, 3)
    held = rng.capture()
    first = draws()
    rng.seed_step(9, 9, 9)
    rng.apply(held)
    assert draws() == first


def test_what_is_drawn_and_seeded_inside_leaves_no_trace_in_the_streams() -> None:
    rng.seed_step(1, 2, 3)
    expected = draws()
    rng.seed_step(1, 2, 3)
    with rng.untouched():
        rng.seed_step(4, 5, 6)
        assert draws() != expected
    assert draws() == expected


def test_a_stream_that_has_no_generator_any_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    held = rng.capture() | {"cuda": [torch.zeros(16, dtype=torch.uint8)]}
    monkeypatch.delitem(sys.modules, "numpy.random")
    cuda, numpy = rng.apply(held)
    assert "1 CUDA devices were saved, 0 are in use here" in cuda
    assert "not imported NumPy" in numpy
