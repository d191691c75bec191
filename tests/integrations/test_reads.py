"""What is drawn while a batch is read: a function of (seed, epoch, samples), by whomever and whenever it is read."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from zrun.integrations.reads import Reads, reads


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(12):
            yield index + torch.rand(1)


@pytest.fixture
def seeded() -> Iterator[Reads]:
    here = reads()
    assert here is not None
    yield here
    here.off()


def read(here: Reads, loader: Any, *, epoch: int = 0, skip: int = 0, disturbed: bool = False) -> list[list[float]]:
    here.begin_epoch(5, epoch)
    with here.skipping(skip):
        batches = iter(loader)
    found = []
    for batch in batches:
        found.append(batch.flatten().tolist())
        if disturbed:
            torch.rand(3)
    return found


def test_there_is_one_in_a_process(seeded: Reads) -> None:
    assert reads() is seeded


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_draws_the_same_whatever_was_drawn_and_read_before(seeded: Reads, workers: int) -> None:
    loader: Any = DataLoader(Noisy(), batch_size=3, num_workers=workers)
    whole = read(seeded, loader)
    assert read(seeded, loader, disturbed=True) == whole
    assert read(seeded, loader, skip=2) == whole[2:]
    assert read(seeded, DataLoader(Noisy(), batch_size=3)) == whole  # by workers as without them
    assert read(seeded, loader, epoch=1) != whole
    assert len({value % 1 for batch in whole for value in batch}) == 12


def test_a_shuffled_order_follows_from_the_epoch(seeded: Reads) -> None:
    loader: Any = DataLoader(Noisy(), batch_size=3, shuffle=True)
    whole = read(seeded, loader)
    torch.rand(5)
    assert read(seeded, loader, skip=1) == whole[1:]
    order = [[int(value) for value in batch] for batch in whole]
    assert [[int(value) for value in batch] for batch in read(seeded, loader, epoch=1)] != order


def test_a_stream_draws_by_the_number_of_the_batch(seeded: Reads) -> None:
    loader: Any = DataLoader(Stream(), batch_size=3)
    whole = read(seeded, loader)
    assert read(seeded, loader, disturbed=True) == whole
    assert len({value % 1 for batch in whole for value in batch}) == 12


def test_switched_off_it_leaves_everything_alone(seeded: Reads) -> None:
    seeded.off()
    loader: Any = DataLoader(Noisy(), batch_size=3)
    torch.manual_seed(1)
    first = [batch.tolist() for batch in loader]
    torch.manual_seed(1)
    assert [batch.tolist() for batch in loader] == first
    assert [batch.tolist() for batch in loader] != first
