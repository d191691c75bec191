"""Verify reads every byte once, on all cores, and says which tensor of which file is not as it was written."""

import threading
from pathlib import Path

import pytest
from tests.core import written
from tests.core.written import Tensor

from zrun.core import verify as checking
from zrun.core.manifest import MANIFEST, Manifest
from zrun.core.verify import verify


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_a_flip_of_any_byte_is_seen(tmp_path: Path) -> None:
    written.write(tmp_path, 1)
    folder = tmp_path / "step-000001"
    assert verify(folder).ok
    for path in [*files_of(folder), folder / MANIFEST]:
        good = path.read_bytes()
        for at in range(0, len(good), 7):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            assert not verify(folder).ok, (path.name, at)
        path.write_bytes(good)
    assert verify(folder).ok


def test_every_byte_is_read_once_and_counted(tmp_path: Path) -> None:
    written.write(tmp_path, 1, {f"model/{n}": Tensor("F32", [9, 5], (3, 2)) for n in range(30)})
    heard: list[int] = []
    seen = verify(tmp_path / "step-000001", heard.append)
    assert seen.ok
    assert sum(heard) == seen.bytes == sum(path.stat().st_size for path in files_of(tmp_path / "step-000001"))


def test_the_tensor_is_named(tmp_path: Path) -> None:
    written.write(tmp_path, 1)
    written.flip(tmp_path, 1, "rank-1.safetensors")
    (problem,) = verify(tmp_path / "step-000001").problems
    assert problem.startswith("rank-1.safetensors: model/w: digest mismatch in bytes ")


def test_bytes_that_belong_to_no_tensor_are_told(tmp_path: Path) -> None:
    written.write(tmp_path, 1)
    path = tmp_path / "step-000001" / "rank-1.safetensors"
    manifest = Manifest.from_json((path.parent / MANIFEST).read_text())
    raw = path.read_bytes() + b"more"
    path.write_bytes(raw)
    (shard,) = (f for f in manifest.files if f.path == path.name)
    manifest.files[manifest.files.index(shard)] = type(shard)(shard.path, len(raw), shard.digest, 1)
    (path.parent / MANIFEST).write_text(manifest.to_json())
    assert verify(path.parent).problems == ["rank-1.safetensors: digest mismatch outside its tensors"]


def test_a_file_that_is_missing_cut_or_elsewhere_is_named(tmp_path: Path) -> None:
    written.write(tmp_path, 1)
    folder = tmp_path / "step-000001"
    (folder / "rank-1.safetensors").write_bytes(b"")
    (problem,) = verify(folder).problems
    assert problem.startswith("rank-1.safetensors has 0 bytes, not ")
    (folder / "rank-1.safetensors").unlink()
    assert verify(folder).problems == ["rank-1.safetensors is missing"]
    manifest = Manifest.from_json((folder / MANIFEST).read_text())
    manifest.files[1] = type(manifest.files[1])("../passwd", 1, written.sha(b""), 1)
    (folder / MANIFEST).write_text(manifest.to_json())
    assert "the manifest names a file outside its folder: '../passwd'" in verify(folder).problems


def test_all_cores_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lots wait for each other: with one thread they would wait for ever."""
    written.write(tmp_path, 1, {"model/w": Tensor("F32", [4], (2,))})
    both = threading.Barrier(2, timeout=60.0)
    real = checking._digests

    def digests(*arguments: object) -> list[str]:
        if arguments[2]:
            both.wait()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checking, "_digests", digests)
    assert verify(tmp_path / "step-000001", threads=2).ok
