"""Export puts blocks together to whole tensors that the safetensors library reads, checks them, and is all or nothing."""

import itertools
import json
import random
import tracemalloc
from pathlib import Path

import pytest
from safetensors import safe_open
from tests.core import written
from tests.core.written import Tensor

from zrun.core import reading
from zrun.core.errors import CheckpointError, DamagedError, UsageError
from zrun.core.export import export, export_bytes
from zrun.core.manifest import Manifest
from zrun.core.verify import verify


def read(path: Path) -> dict[str, bytes]:
    """As the library reads them."""
    with safe_open(str(path), framework="pt") as file:
        names = list(file.keys())
        return {name: bytes(file.get_tensor(name).contiguous().untyped_storage().tolist()) for name in names}


def test_each_part_becomes_a_file_of_whole_tensors(tmp_path: Path) -> None:
    whole = written.write(tmp_path, 5)
    heard: list[int] = []
    done = export(
        tmp_path / "step-000005", tmp_path / "out", consolidate=False, only_model=False, on_bytes=heard.append
    )
    assert set(done.files) == {"model.safetensors", "optimizer.safetensors"}
    assert done.files == {name: (tmp_path / "out" / name).stat().st_size for name in done.files}
    assert read(tmp_path / "out" / "model.safetensors") == {n: b for n, b in whole.items() if n.startswith("model/")}
    assert read(tmp_path / "out" / "optimizer.safetensors") == {"optimizer/w~exp_avg": whole["optimizer/w~exp_avg"]}
    values = json.loads((tmp_path / "out" / "values.json").read_text())
    assert (values["step"], values["values"]["optimizer"]["lr"]) == (5, 0.1)
    manifest = Manifest.from_json((tmp_path / "step-000005" / "manifest.json").read_text())
    assert sum(heard) == export_bytes(manifest, only_model=False)


def test_one_file_for_all_or_the_model_alone(tmp_path: Path) -> None:
    whole = written.write(tmp_path, 5)
    export(tmp_path / "step-000005", tmp_path / "all", consolidate=True, only_model=False)
    assert read(tmp_path / "all" / "checkpoint.safetensors") == whole
    export(tmp_path / "step-000005", tmp_path / "model", consolidate=False, only_model=True)
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["model.safetensors"]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "I64", "U8"])
def test_any_cut_of_any_shape_comes_out_as_it_was(tmp_path: Path, dtype: str) -> None:
    numbers = random.Random(dtype)
    tensors: dict[str, Tensor] = {"model/scalar": Tensor(dtype, []), "model/empty": Tensor(dtype, [0, 3])}
    for number, axes in itertools.product(range(12), (1, 2, 3)):
        shape = [numbers.randint(1, 7) for _ in range(axes)]
        tensors[f"model/{axes}.{number}"] = Tensor(dtype, shape, tuple(numbers.randint(1, 4) for _ in range(axes)))
    whole = written.write(tmp_path, 1, tensors)
    assert verify(tmp_path / "step-000001").problems == []
    export(tmp_path / "step-000001", tmp_path / "out", consolidate=True, only_model=False)
    assert read(tmp_path / "out" / "checkpoint.safetensors") == whole


def test_a_damaged_block_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    written.write(tmp_path, 5)
    written.flip(tmp_path, 5, "rank-1.safetensors")
    with pytest.raises(DamagedError, match=r"rank-1.safetensors: model/w: digest mismatch"):
        export(tmp_path / "step-000005", tmp_path / "out", consolidate=False, only_model=False)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000005"]


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    written.write(tmp_path, 5)
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        export(tmp_path / "step-000005", tmp_path / "out", consolidate=False, only_model=False)


def test_one_ranks_own_part_is_left_out_and_named(tmp_path: Path) -> None:
    written.write(tmp_path, 5)
    path = tmp_path / "step-000005" / "manifest.json"
    manifest = Manifest.from_json(path.read_text())
    own = manifest.tensors["model/w"]
    manifest.tensors["model/w#rank-1"] = type(own)(own.dtype, own.shape, own.chunks[1:])
    path.write_text(manifest.to_json())
    done = export(tmp_path / "step-000005", tmp_path / "out", consolidate=True, only_model=True)
    assert (done.tensors, done.left_out) == (2, ["model/w#rank-1"])


def test_too_small_a_disk_is_said_before_a_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.write(tmp_path, 5)
    monkeypatch.setattr("zrun.core.export.shutil.disk_usage", lambda path: type("U", (), {"free": 10}))
    with pytest.raises(CheckpointError, match=r"208 bytes needed in .*, 10 bytes free"):
        export(tmp_path / "step-000005", tmp_path / "out", consolidate=True, only_model=False)


def test_it_is_not_pruned_while_it_is_exported(tmp_path: Path) -> None:
    written.write(tmp_path, 5)
    seen: list[bool] = []
    export(tmp_path / "step-000005", tmp_path / "out", consolidate=True, only_model=False,
           on_bytes=lambda _: seen.append(reading.being_read(tmp_path / "step-000005")))  # fmt: skip
    assert seen
    assert all(seen)
    assert not reading.being_read(tmp_path / "step-000005")


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """64 MiB in one tensor; Python's own peak would show a copy of it."""
    written.write(tmp_path, 1, {"model/w": Tensor("F32", [1])})
    big = 64 << 20
    folder = tmp_path / "step-000001"
    (folder / "rank-0.safetensors").write_bytes(bytes(big))
    path = folder / "manifest.json"
    manifest = Manifest.from_json(path.read_text())
    digest = written.sha(bytes(big))
    entry = manifest.tensors["model/w"]
    chunk = type(entry.chunks[0])("rank-0.safetensors", 0, big, [0], [big // 4], digest)
    manifest.tensors["model/w"] = type(entry)("F32", [big // 4], [chunk])
    manifest.files[:] = [type(manifest.files[0])("rank-0.safetensors", big, digest, 0)]
    path.write_text(manifest.to_json())
    tracemalloc.start()
    try:
        export(folder, tmp_path / "out", consolidate=True, only_model=False)
        assert tracemalloc.get_traced_memory()[1] < big / 4
    finally:
        tracemalloc.stop()
