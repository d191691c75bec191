"""Which of a framework's checkpoints is gone on from."""

import json
import zipfile
from pathlib import Path

import pytest

from zrun.core import seal
from zrun.core.errors import CheckpointError
from zrun.core.safetensors import Entry, header
from zrun.integrations import hf_checkpoints, lightning_checkpoints
from zrun.integrations.choice import Chosen, choose, put_aside, refuse_if_none
from zrun.state.agree import Agreement


def checkpoint(output: Path, step: int, *, job: str | None = "toy-1") -> Path:
    """As Trainer writes it with one rank; `job` None: nobody sealed it."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "model.safetensors").write_bytes(header([Entry("w", "F32", [2], 8)], {}) + bytes(8))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("data.pkl", b"x")
    if job is not None:
        seal.close(folder, job=job, attempt=1, step=step, world_size=1)
    return folder


def chosen(output: Path, job: str | None = None) -> Chosen:
    def lacking(folder: Path) -> str | None:
        return hf_checkpoints.lacking(folder, world_size=1)

    return choose(hf_checkpoints.found(output), lacking, Agreement(0, 1), reader=True, job=job)


def test_the_newest_by_step_is_chosen_not_by_name_or_age(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1000)
    checkpoint(tmp_path, 999)
    (tmp_path / "checkpoint-final").mkdir()
    assert chosen(tmp_path).step == 1000
    assert chosen(tmp_path / "nowhere") == Chosen(None)


def test_one_whose_bytes_changed_gives_way_to_the_next_older_one_and_gets_another_name(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    newest = checkpoint(tmp_path, 10)
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    found = chosen(tmp_path)
    assert found.step == 5
    assert "digest mismatch" in found.skipped[0]["reason"]
    (told,) = put_aside(found)
    assert "checkpoint-10 passed over (rank 0: model.safetensors: digest mismatch" in told
    (aside,) = tmp_path.glob("unusable-checkpoint-10.*")
    assert (aside / "model.safetensors").read_bytes() == content
    assert not newest.exists()


def test_a_restart_goes_on_from_its_own_only(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    checkpoint(tmp_path, 10, job="other-2")
    checkpoint(tmp_path, 15, job=None)
    assert chosen(tmp_path, job="toy-1").step == 5
    assert chosen(tmp_path, job="toy-1").skipped == []
    assert chosen(tmp_path, job="new-3") == Chosen(None)
    assert chosen(tmp_path).step == 15


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors", "optimizer.pt", "rng_state.pth"])
@pytest.mark.parametrize("cut", [True, False])
def test_without_a_seal_every_file_must_be_there_and_whole(tmp_path: Path, name: str, cut: bool) -> None:
    checkpoint(tmp_path, 5, job=None)
    newest = checkpoint(tmp_path, 10, job=None)
    assert chosen(tmp_path).step == 10
    content = (newest / name).read_bytes()
    (newest / name).unlink()
    if cut:
        (newest / name).write_bytes(content[:-3])
    found = chosen(tmp_path)
    assert found.step == 5
    assert name in found.skipped[0]["reason"]


def test_without_ours_one_that_was_cut_short_gives_way_too(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        checkpoint(tmp_path, step, job=None)
    assert hf_checkpoints.newest_whole(tmp_path, 1, None) == (tmp_path / "checkpoint-15", [])
    (tmp_path / "checkpoint-15" / "optimizer.pt").unlink()
    chosen, (reason,) = hf_checkpoints.newest_whole(tmp_path, 1, None)
    assert chosen == tmp_path / "checkpoint-10"
    assert reason.startswith("checkpoint-15: optimizer.pt")
    assert hf_checkpoints.newest_whole(tmp_path, 1, 5) == (tmp_path / "checkpoint-5", [])
    assert hf_checkpoints.newest_whole(tmp_path, 3, None)[0] is None


def test_where_none_is_whole_nobody_starts_anew_by_accident(tmp_path: Path) -> None:
    (checkpoint(tmp_path, 5) / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match=r"none is whole \(checkpoint-5: rank 0: optimizer.pt is missing\)"):
        refuse_if_none(chosen(tmp_path), tmp_path, "move it away")
    refuse_if_none(Chosen(None), tmp_path, "nothing to say")


def test_lightnings_files_are_ordered_by_the_step_in_seal_or_name_and_links_are_left_out(tmp_path: Path) -> None:
    for name, step in (("last.ckpt", 30), ("epoch=1-step=20.ckpt", None), ("epoch=0-step=9.ckpt", 9)):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("data.pkl", b"x")
        if step is not None:
            seal.close(tmp_path / name, job="toy-1", attempt=1, step=step, world_size=1)
    (tmp_path / "link.ckpt").symlink_to(tmp_path / "last.ckpt")
    found = lightning_checkpoints.found([tmp_path])
    assert [candidate.step for candidate in found] == [30, 20, 9]
    (tmp_path / "epoch=1-step=20.ckpt").write_bytes(b"cut")
    assert lightning_checkpoints.lacking(tmp_path / "epoch=1-step=20.ckpt") == "it is cut short"
    assert lightning_checkpoints.lacking(tmp_path / "last.ckpt") is None
