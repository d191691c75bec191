"""Seals of checkpoints that other programs wrote."""

import json
from pathlib import Path

import pytest

from zrun.core import seal
from zrun.core.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint-5"
    (made / "inner").mkdir(parents=True)
    (made / "model.bin").write_bytes(b"weights" * 1000)
    (made / "inner" / "state.json").write_text("{}")
    return made


def close(place: Path) -> seal.Seal:
    return seal.close(place, job="toy-1", attempt=2, step=5, world_size=2, facts={"seed": 7})


def held(place: Path) -> seal.Seal:
    found = seal.read(place)
    assert found is not None
    return found


def test_what_was_sealed_is_whole_and_tells_what_it_was_given(folder: Path) -> None:
    assert seal.read(folder) is None
    assert close(folder) == held(folder)
    found = held(folder)
    assert (found.job, found.attempt, found.step, found.world_size, found.facts) == ("toy-1", 2, 5, 2, {"seed": 7})
    assert {file.path for file in found.files} == {"model.bin", "inner/state.json"}
    assert found.bytes == 7002
    assert seal.flaw(folder, found, deep=True) is None


def test_a_flipped_bit_is_found_by_reading_a_missing_or_shorter_file_at_once(folder: Path) -> None:
    close(folder)
    content = bytearray((folder / "model.bin").read_bytes())
    content[100] ^= 1
    (folder / "model.bin").write_bytes(content)
    assert seal.flaw(folder, held(folder), deep=False) is None
    assert "model.bin: digest mismatch" in (seal.flaw(folder, held(folder), deep=True) or "")
    (folder / "model.bin").write_bytes(content[:50])
    assert seal.flaw(folder, held(folder), deep=False) == "model.bin has 50 bytes, not 7000"
    (folder / "inner" / "state.json").unlink()
    assert seal.flaw(folder, held(folder), deep=False) == "inner/state.json is missing"


@pytest.mark.parametrize("text", ["", "[]", '{"seal": {}, "digest": "x"}', "{", '"text"'])
def test_a_seal_that_is_none_is_told(folder: Path, text: str) -> None:
    seal.place_of(folder).write_text(text)
    with pytest.raises(CheckpointError, match="seal"):
        seal.read(folder)


def test_an_altered_fact_breaks_the_seal(folder: Path) -> None:
    close(folder)
    value = json.loads(seal.place_of(folder).read_text())
    value["seal"]["step"] = 6
    seal.place_of(folder).write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="not as it was written"):
        seal.read(folder)


def test_the_seal_of_a_single_file_lies_hidden_beside_it_and_goes_when_the_file_is_gone(tmp_path: Path) -> None:
    file, other = tmp_path / "step=5.ckpt", tmp_path / "step=10.ckpt"
    for place in (file, other):
        place.write_bytes(b"state")
        close(place)
    assert seal.place_of(file).name.startswith(".")
    assert seal.flaw(file, held(file), deep=True) is None
    file.unlink()
    seal.forget_orphans(tmp_path)
    assert not seal.place_of(file).exists()
    assert seal.place_of(other).exists()
