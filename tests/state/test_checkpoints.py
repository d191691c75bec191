"""Saving and restoring as one rank sees it: what lies on the disk, what is passed over, what is refused."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zrun.core.errors import CheckpointError
from zrun.core.manifest import CONTROL, scan, unmark_damaged
from zrun.core.verify import verify
from zrun.state import commit
from zrun.state.checkpoints import Checkpoints
from zrun.state.claims import Claim
from zrun.state.disk_errors import DiskFullError, explained
from zrun.state.parts import Parts
from zrun.state.progress import Progress, Saved
from zrun.state.source import Source

PROGRAM = Path(__file__).with_name("killed_program.py")


class Job:
    """A tiny model with its optimizer and scheduler, after `steps` steps."""

    def __init__(self, width: int = 4, steps: int = 0, scheduler: bool = True, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2) if scheduler else None
        for _ in range(steps):
            self.model(torch.randn(3, width)).sum().backward()
            self.optimizer.step()
            if self.scheduler:
                self.scheduler.step()
        self.parts = Parts(self.model, self.optimizer, self.scheduler)

    def state(self) -> list[Any]:
        moments = [v.tolist() for s in self.optimizer.state.values() for v in s.values()]
        return [[t.tolist() for t in self.model.state_dict().values()], moments, self.optimizer.param_groups[0]["lr"]]


class Folder:
    """Opens one checkpoint folder as attempt after attempt of a job of one rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warned: list[str] = []

    def open(self, attempt: int = 1, *, owner: str = "toy-1", claim: int | None = 0, **options: Any) -> Checkpoints:
        made = Checkpoints(
            self.path, job=owner, name="toy", attempt=attempt, rank=0, world_size=1, seed=3,
            fresh=options.pop("fresh", False), allow_changed=options.pop("allow_changed", ()),
            warn=self.warned.append, **options,
        )  # fmt: skip
        if claim is not None:
            made.claim(claim)
        return made

    def restore(self, job: Job, attempt: int = 2, resume: str = "auto", **options: Any) -> Any:
        fingerprint = options.pop("fingerprint", {})
        return self.open(attempt, claim=None, **options).restore(job.parts, resume, fingerprint)

    def flip(self, step: int, file: str, at: int) -> None:
        path = self.path / f"step-{step:06d}" / file
        raw = bytearray(path.read_bytes())
        raw[at] ^= 1
        path.write_bytes(raw)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "checkpoints")


def save(made: Checkpoints, job: Job, step: int, fingerprint: dict[str, Any] | None = None) -> Saved:
    return made.save(job.parts, Progress(step=step, batch=f"b{step}", cursor={"done": step}), fingerprint or {})


def saved(folder: Folder, *steps: int) -> dict[int, Job]:
    made = folder.open()
    jobs = {step: Job(steps=step, seed=step) for step in steps}
    for step, job in jobs.items():
        save(made, job, step)
    return jobs


def test_what_was_saved_is_restored_in_place(folder: Folder) -> None:
    job = Job(steps=3)
    made = folder.open()
    progress = Progress(3, {"epoch": 1}, "e0-s3", {"tokens": 1.5}, ["e0-s1"], "ddp")
    done = made.save(job.parts, progress, {"data": "abc"})
    assert (done.path, done.step) == (folder.path / "step-000003", 3)
    assert done.bytes == sum(p.stat().st_size for p in (folder.path / done.path.name).glob("*.safetensors"))
    other = Job(seed=9)
    weights = [p.data_ptr() for p in other.model.parameters()]
    restored = folder.restore(other, fingerprint={"data": "abc"})
    assert (restored.progress, restored.path, restored.skipped) == (progress, done.path, [])
    assert other.state() == job.state()
    assert [p.data_ptr() for p in other.model.parameters()] == weights
    assert other.scheduler is not None
    assert other.scheduler.last_epoch == 3


def test_with_no_checkpoint_there_is_nothing_to_resume(folder: Folder) -> None:
    job = Job()
    before = job.state()
    restored = folder.restore(job, attempt=1)
    assert (restored.progress, restored.path, restored.skipped) == (None, None, [])
    assert job.state() == before


def test_a_flipped_byte_anywhere_is_seen_and_the_next_older_one_is_taken(folder: Folder) -> None:
    jobs = saved(folder, 1, 2)
    shard = folder.path / "step-000002" / "rank-0.safetensors"
    manifest = folder.path / "step-000002" / "manifest.json"
    for path in (shard, manifest):
        good = path.read_bytes()
        header = int.from_bytes(good[:8], "little") + 8 if path is shard else 0
        for at in range(header, len(good), max(1, (len(good) - header) // 25)):
            folder.flip(2, path.name, at)
            job = Job(seed=77)
            restored = folder.restore(job)
            assert restored.progress.step == 1
            assert "step-000002" in restored.skipped[0]["path"]
            assert job.state() == jobs[1].state()
            assert not verify(path.parent).ok
            path.write_bytes(good)
            unmark_damaged(path.parent, 2)
    assert folder.restore(Job()).progress.step == 2


def test_a_damaged_one_that_was_seen_once_is_never_counted_on_again(folder: Folder) -> None:
    jobs = saved(folder, 1, 2)
    folder.flip(2, "rank-0.safetensors", -1)
    assert [f.state for f in scan(folder.path)] == ["complete", "complete"], "sizes are right"
    folder.restore(Job())
    newest, older = scan(folder.path)
    assert (newest.state, older.state) == ("corrupt", "complete")
    assert "digest mismatch" in newest.reason
    assert commit.prune(folder.path, 1, None, None) == [], "the last good one is the older one"
    # Saved again by the next attempt, it is a good one again.
    save(folder.open(2, claim=1), jobs[2], 2)
    assert [f.state for f in scan(folder.path)] == ["complete", "complete"]


def test_a_flaw_that_is_no_damage_leaves_no_mark(folder: Folder) -> None:
    class Stubborn(Job):
        def __init__(self) -> None:
            super().__init__()
            self.parts.stateful["scheduler"].load_state_dict = self.refuse

        def refuse(self, state: Any) -> None:
            raise ValueError("not today")

    saved(folder, 1)
    with pytest.raises(CheckpointError, match="not today"):
        folder.restore(Stubborn())
    assert [f.state for f in scan(folder.path)] == ["complete"]


def test_what_a_rank_is_loading_is_not_pruned_by_anybody(folder: Folder) -> None:
    saved(folder, 1, 2, 3)
    (one,) = (f for f in scan(folder.path) if f.step == 1)
    assert one.manifest is not None
    with Source(one.path, one.manifest, 0, 1) as source:
        assert commit.prune(folder.path, 1, None, None) == [2]
        # A name that is needed is taken all the same; who reads goes on reading the old bytes.
        commit.discard(folder.path, one.path)
        assert source.whole("model/0.weight").numel()
    commit.sweep(folder.path, 2)
    assert not list((folder.path / CONTROL / "trash").iterdir())


def test_a_flipped_byte_in_a_header_is_seen_offline(folder: Folder) -> None:
    saved(folder, 1)
    assert verify(folder.path / "step-000001").ok
    folder.flip(1, "rank-0.safetensors", 20)
    assert verify(folder.path / "step-000001").problems == ["rank-0.safetensors: digest mismatch outside its tensors"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda at: (at / "manifest.json").unlink(), "no manifest"),
        (lambda at: (at / "manifest.json").write_text("{}"), "not a manifest"),
        (lambda at: os.truncate(at / "manifest.json", 300), "not a manifest"),
        (lambda at: os.truncate(at / "rank-0.safetensors", 500), "has 500 bytes"),
        (lambda at: os.truncate(at / "rank-0.safetensors", 0), "has 0 bytes"),
        (lambda at: (at / "rank-0.safetensors").unlink(), "is missing"),
    ],
    ids=["no-manifest", "empty-manifest", "cut-manifest", "cut-shard", "zero-bytes", "no-shard"],
)
def test_a_spoilt_checkpoint_is_passed_over_with_its_reason(
    folder: Folder, spoil: Callable[[Path], Any], reason: str
) -> None:
    saved(folder, 1, 2)
    spoil(folder.path / "step-000002")
    restored = folder.restore(Job())
    assert restored.progress.step == 1
    assert reason in restored.skipped[0]["reason"]
    assert any("step-000002 passed over" in text for text in folder.warned)
    assert not verify(folder.path / "step-000002").ok


def test_when_none_is_valid_nothing_starts_from_zero_in_silence(folder: Folder) -> None:
    saved(folder, 1, 2)
    folder.flip(1, "rank-0.safetensors", -1)
    (folder.path / "step-000002" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-000002: no manifest; step-000001: .*digest mismatch") as caught:
        folder.restore(Job())
    assert "--fresh" in caught.value.hint


def test_a_checkpoint_of_an_overtaken_attempt_is_not_taken(folder: Folder) -> None:
    first = folder.open(1)
    save(first, Job(steps=1), 1)
    folder.open(2, claim=1)
    late = Job(steps=2)
    with pytest.raises(CheckpointError, match="attempt 1 is not the newest: attempt 2 has claimed"):
        save(first, late, 2)
    assert [f.step for f in scan(folder.path)] == [1]
    # And if it had got through before it looked:
    save_anyway(folder, late, 2)
    assert folder.restore(Job(), attempt=3).progress.step == 1


def save_anyway(folder: Folder, job: Job, step: int) -> None:
    claim = folder.path / CONTROL / "claim-2"
    kept = claim.read_bytes()
    claim.unlink()
    made = folder.open(1, claim=None)
    made._claim = Claim("toy-1", 1, 0, folder.path.stat().st_dev)
    save(made, job, step)
    claim.write_bytes(kept)


def test_an_attempt_claims_once_and_only_the_newest_may(folder: Folder) -> None:
    folder.open(1)
    folder.open(3)
    with pytest.raises(CheckpointError, match="attempt 2 is not the newest"):
        folder.open(2)
    with pytest.raises(CheckpointError, match="attempt 3 has already claimed"):
        folder.open(3)
    assert folder.open(0).attempt == 4


def test_nothing_is_saved_without_a_claim(folder: Folder) -> None:
    with pytest.raises(CheckpointError, match="before claim"):
        save(folder.open(claim=None), Job(), 0)


@pytest.mark.parametrize(
    ("here", "key", "said"),
    [
        ({"width": 5}, "parameters", r"0\.weight: saved F32\[4, 4\], now F32\[5, 5\]"),
        ({"scheduler": False}, "scheduler", "scheduler was saved, but nothing"),
        ({"fingerprint": {"data": "b", "total_steps": 10}}, "data", "data: saved 'a', now 'b'"),
        ({"fingerprint": {"data": "a", "total_steps": 12}}, "total_steps", "total_steps: saved 10, now 12"),
    ],
    ids=["model", "scheduler", "data", "steps"],
)
def test_a_checkpoint_of_another_job_is_refused_by_key_unless_allowed(
    folder: Folder, here: dict[str, Any], key: str, said: str
) -> None:
    save(folder.open(), Job(steps=1), 1, {"data": "a", "total_steps": 10})
    fingerprint = here.pop("fingerprint", {"data": "a", "total_steps": 10})
    with pytest.raises(CheckpointError, match=said) as caught:
        folder.restore(Job(**here), fingerprint=fingerprint)
    assert f"--allow-changed {key}" in caught.value.hint
    restored = folder.restore(Job(**here), fingerprint=fingerprint, allow_changed=[key])
    assert restored.progress.step == 1


def test_scheduler_state_that_is_missing_is_said_by_name(folder: Folder) -> None:
    save(folder.open(), Job(scheduler=False), 1)
    with pytest.raises(CheckpointError, match="scheduler state missing"):
        folder.restore(Job())


def test_total_steps_count_only_if_both_know_them(folder: Folder) -> None:
    save(folder.open(), Job(), 1, {"total_steps": None})
    assert folder.restore(Job(), fingerprint={"total_steps": 5}).progress.step == 1


def test_another_optimizer_is_refused(folder: Folder) -> None:
    saved(folder, 1)
    job = Job()
    parts = Parts(job.model, torch.optim.SGD(job.model.parameters(), lr=0.1), job.scheduler)
    with pytest.raises(CheckpointError, match="optimizer: saved AdamW, now SGD"):
        folder.open(2, claim=None).restore(parts, "auto", {})


def test_another_runs_checkpoints_are_refused_unless_asked_for(folder: Folder) -> None:
    saved(folder, 1, 2)
    with pytest.raises(CheckpointError, match="checkpoints of another run, toy-1"):
        folder.restore(Job(), attempt=1, owner="other-2")
    assert folder.restore(Job(), attempt=1, owner="other-2", resume=str(folder.path)).progress.step == 2
    one = folder.path / "step-000001"
    assert folder.restore(Job(), attempt=1, owner="other-2", resume=str(one)).progress.step == 1


def test_fresh_starts_anew_and_leaves_the_other_run_whole(folder: Folder) -> None:
    saved(folder, 1, 2)
    made = folder.open(1, owner="other-2", claim=None, fresh=True)
    assert made.restore(Job().parts, "auto", {}).progress is None
    made.claim(0)
    save(made, Job(steps=1), 0)
    assert [f.step for f in scan(folder.path)] == [0]
    (kept,) = (folder.path / CONTROL).glob("before-*")
    assert [(f.step, f.state) for f in scan(kept)] == [(2, "complete"), (1, "complete")]
    # The next attempt of the fresh job goes on from its own.
    assert folder.restore(Job(), attempt=2, owner="other-2", fresh=True).progress.step == 0


def test_never_does_not_look(folder: Folder) -> None:
    saved(folder, 1)
    assert folder.restore(Job(), resume="never").progress is None


def test_a_path_without_checkpoints_is_an_error(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        folder.restore(Job(), resume=str(tmp_path))


def test_leftovers_of_the_same_name_are_moved_aside(folder: Folder) -> None:
    made = folder.open()
    for name in ("step-000005.attempt-1.tmp", "step-000005"):
        (folder.path / name).mkdir()
        (folder.path / name / "half").write_text("x")
    save(made, Job(), 5)
    assert [f.state for f in scan(folder.path)] == ["complete"]
    assert len(list((folder.path / CONTROL / "leftovers").iterdir())) == 2
    assert len(folder.warned) == 2


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_checkpoint_of_the_same_step_is_replaced(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    saved(folder, 1)
    if not can_exchange:
        monkeypatch.setattr(commit, "_exchange", lambda one, other: False)
    newer = Job(steps=4, seed=8)
    save(folder.open(2, claim=1), newer, 1)
    (found,) = scan(folder.path)
    assert found.manifest is not None
    assert (found.state, found.manifest.attempt) == ("complete", 2)
    job = Job()
    folder.restore(job, attempt=3)
    assert job.state() == newer.state()
    assert not [p for p in folder.path.rglob("*") if "tmp" in p.name or p.parent.name in {"trash", "replaced"}]


def test_a_replacement_that_was_interrupted_is_put_back(folder: Folder) -> None:
    saved(folder, 1)
    (folder.path / CONTROL / "replaced").mkdir()
    (folder.path / "step-000001").rename(folder.path / CONTROL / "replaced" / "step-000001")
    assert folder.restore(Job()).progress.step == 1


def test_old_ones_are_pruned_but_never_the_last_good_one(folder: Folder) -> None:
    made = folder.open(keep_last=2, keep_every_steps=4)
    for step in range(8):
        save(made, Job(), step)
    assert [f.step for f in scan(folder.path)] == [7, 6, 4]
    assert not list((folder.path / CONTROL / "trash").iterdir())
    again = folder.open(2, claim=None, keep_last=1, keep_every_steps=None)
    again.restore(Job().parts, "auto", {})
    again.claim(7)
    save(again, Job(), 8)
    assert [f.step for f in scan(folder.path)] == [8, 7], "the one it resumed from stays"


def test_what_dead_attempts_left_unfinished_is_swept_by_the_next_claim(folder: Folder) -> None:
    saved(folder, 1)
    (folder.path / "step-000002.attempt-1.tmp").mkdir()
    folder.open(2, claim=1)
    assert sorted(p.name for p in folder.path.iterdir()) == [CONTROL, "step-000001"]


@pytest.mark.e2e
def test_a_file_that_may_not_grow_is_called_disk_full(folder: Folder) -> None:
    command = [sys.executable, str(PROGRAM), str(folder.path), "full"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "DiskFullError: rank 0: disk full: File too large at " in ended.stderr
    assert [(f.step, f.state) for f in scan(folder.path)] == [(1, "complete")]
    assert not list(folder.path.glob("*.tmp"))


def test_a_disk_that_is_read_only_is_not_called_full(tmp_path: Path) -> None:
    said = explained(OSError(errno.EROFS, "Read-only file system"), tmp_path)
    assert str(said).startswith(f"cannot write: Read-only file system at {tmp_path} (")
    assert not isinstance(said, DiskFullError)


def test_too_little_room_is_said_before_anything_is_written(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder.open()
    monkeypatch.setattr(commit, "free_bytes", lambda path: 100)
    with pytest.raises(DiskFullError, match=r"bytes needed for a checkpoint in .*, 100 bytes free"):
        save(made, Job(), 1)
    assert not list(folder.path.glob("step*"))
