"""Copies in memory as files: only what is whole counts, and nothing is taken that the machine needs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from zrun.core.errors import CheckpointError
from zrun.state import memory_page, memory_slot
from zrun.state.memory_page import PageWriter


@pytest.fixture
def path() -> Iterator[str]:
    handle = os.memfd_create("zrun-test")
    yield f"/proc/self/fd/{handle}"
    os.close(handle)


def tensors() -> list[torch.Tensor]:
    return [torch.arange(5.0), torch.tensor(7), torch.ones(0), torch.rand(3, 300).t()]


def test_a_sealed_copy_is_read_back_with_digests_of_its_bytes(path: str) -> None:
    given = tensors()
    memory_slot.fill(path, given).seal({"step": 4})
    about = memory_slot.read(path)
    assert about is not None
    assert about["step"] == 4
    data = Path(path).read_bytes()
    begin, end, _ = about["spans"][3]
    assert data[begin:end] == bytes(given[3].contiguous().view(torch.uint8).flatten().tolist())
    assert [end - begin for begin, end, _ in about["spans"]] == [20, 8, 0, 3600]


def test_a_copy_that_was_never_sealed_does_not_count(path: str) -> None:
    memory_slot.fill(path, tensors()).seal({"step": 4})
    unsealed = memory_slot.fill(path, tensors())
    assert memory_slot.read(path) is None
    unsealed.seal({"step": 5})
    assert (memory_slot.read(path) or {})["step"] == 5


@pytest.mark.parametrize("at", range(1, 400, 37))
def test_a_seal_or_words_that_were_altered_do_not_count(path: str, at: int) -> None:
    memory_slot.fill(path, tensors()).seal({"step": 4})
    size = Path(path).stat().st_size
    handle = os.open(path, os.O_RDWR)
    byte = os.pread(handle, 1, size - at)
    os.pwrite(handle, bytes([byte[0] ^ 1]), size - at)
    os.close(handle)
    assert memory_slot.read(path) is None


def test_a_copy_that_would_take_what_the_machine_needs_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_slot, "free_memory", lambda: 4000)
    with pytest.raises(CheckpointError, match="too little of the 0 MiB free"):
        memory_slot.fill(path, tensors())
    assert Path(path).stat().st_size == 0


def test_a_page_gives_back_the_newest_two_tops_and_what_a_forward_changed(path: str) -> None:
    page = PageWriter(path)
    mean = torch.zeros(3)
    page.lay_out({"rank": 1}, [mean, torch.tensor(0)], 1, 100)
    for step in (5, 6, 7):
        page.put_tensors(step, [mean + step, torch.tensor(step)])
    page.put_values(6, b'{"lr": 0.5}')
    page.put_changed(8, [mean + 8])
    found = memory_page.read(path)
    assert found is not None
    assert found.about["rank"] == 1
    assert sorted(found.tensors) == [6, 7]
    assert found.tensors[7].tensors == [bytes((mean + 7).view(torch.uint8).tolist()), (7).to_bytes(8, "little")]
    assert found.values == {6: {"lr": 0.5}}
    assert found.after[8].tensors[0] == bytes((mean + 8).view(torch.uint8).tolist())


def test_values_that_have_outgrown_their_place_are_not_put_down(path: str) -> None:
    page = PageWriter(path)
    page.lay_out({}, [], 0, 10)
    assert page.put_values(1, b"{}")
    assert not page.put_values(2, b'{"more": "than ten"}')
    found = memory_page.read(path)
    assert found is not None
    assert list(found.values) == [1]


def test_a_file_that_no_rank_has_laid_out_is_no_page(path: str) -> None:
    assert memory_page.read(path) is None
    assert memory_page.read("/proc/self/fd/9999") is None
