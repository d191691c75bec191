"""Which checkpoint folders count: complete, partial, corrupt or overtaken, without reading a tensor."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.errors import CheckpointError
from zrun.core.manifest import (
    CONTROL,
    MANIFEST,
    Chunk,
    Manifest,
    ShardFile,
    TensorEntry,
    folder_name,
    overtaken_by,
    scan,
)


def manifest(step: int, attempt: int = 1) -> Manifest:
    return Manifest(
        job="toy-1", name="toy", attempt=attempt, step=step, batch=None, world_size=2, strategy="ddp",
        saved_at="2026-01-01T00:00:00Z", files=[ShardFile("rank-0.safetensors", 4, "blake2b:00", 0)],
        tensors={"w": TensorEntry("F32", [1], [Chunk("rank-0.safetensors", 0, 4, [0], [1], "blake2b:00")])}, values={"lr": 0.1},
    )  # fmt: skip


def put(directory: Path, step: int, attempt: int = 1) -> Path:
    folder = directory / folder_name(step)
    folder.mkdir(parents=True)
    (folder / "rank-0.safetensors").write_bytes(b"1234")
    (folder / MANIFEST).write_text(manifest(step, attempt).to_json())
    return folder


def claim(directory: Path, attempt: int, resumed_from: int) -> None:
    (directory / CONTROL).mkdir(exist_ok=True)
    (directory / CONTROL / f"claim-{attempt}").write_text(json.dumps({"resumed_from": resumed_from}))


def test_a_manifest_reads_back() -> None:
    assert Manifest.from_json(manifest(5).to_json()) == manifest(5)


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        json.dumps
    )
)
def test_rubbish_is_no_manifest(text: str) -> None:
    with pytest.raises(CheckpointError):
        Manifest.from_json(text)


def test_newest_first_by_step_not_by_name_or_time(tmp_path: Path) -> None:
    for step in (1000000, 999, 1000):
        put(tmp_path, step)
    assert [f.step for f in scan(tmp_path)] == [1000000, 1000, 999]


def test_a_folder_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    put(tmp_path, 1)
    (put(tmp_path, 2) / MANIFEST).unlink()
    (put(tmp_path, 3) / "rank-0.safetensors").write_bytes(b"12")
    (put(tmp_path, 4) / "rank-0.safetensors").unlink()
    (put(tmp_path, 5) / MANIFEST).write_text("{")
    found = {f.step: (f.state, f.reason) for f in scan(tmp_path)}
    assert found[1] == ("complete", "")
    assert found[2] == ("partial", "no manifest")
    assert found[3] == ("corrupt", "rank-0.safetensors has 2 bytes, not 4")
    assert found[4] == ("corrupt", "rank-0.safetensors is missing")
    assert found[5][0] == "corrupt"


def test_a_late_writer_of_a_dead_attempt_is_overtaken(tmp_path: Path) -> None:
    put(tmp_path, 10, attempt=1)
    claim(tmp_path, 1, 0)
    claim(tmp_path, 2, 10)
    put(tmp_path, 20, attempt=1)
    put(tmp_path, 15, attempt=2)
    states = {f.step: f.state for f in scan(tmp_path)}
    assert states == {20: "overtaken", 15: "complete", 10: "complete"}


def test_the_claim_rule_in_words_of_numbers() -> None:
    assert overtaken_by(1, 20, {1: 0, 2: 10}) == 2
    assert overtaken_by(1, 10, {1: 0, 2: 10}) is None
    assert overtaken_by(2, 20, {1: 0, 2: 10}) is None
    assert overtaken_by(1, 1, {3: 0, 2: 0}) == 2


def test_a_folder_that_is_not_there_holds_no_checkpoints(tmp_path: Path) -> None:
    assert scan(tmp_path / "none") == []


def test_bytes_are_the_sum_of_the_files() -> None:
    two = replace(manifest(1), files=[ShardFile("a", 3, "", 0), ShardFile("b", 4, "", 1)])
    assert two.bytes == 7
