"""A save is requested, training goes on, and later it is durable or has failed: one rank, no processes."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zrun.core.errors import CheckpointError
from zrun.core.manifest import CONTROL, scan
from zrun.state import claims
from zrun.state.background import Background
from zrun.state.blocks import Block
from zrun.state.checkpoints import Checkpoints
from zrun.state.claims import Claim
from zrun.state.disk_errors import DiskFullError, explained
from zrun.state.parts import Parts
from zrun.state.progress import Outcome, Progress
from zrun.state.staging import Buffers


class Gate:
    """Holds every fsync of the saving thread until it is opened; a failure may be put into it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.failure: OSError | None = None
        real = os.fsync

        def fsync(handle: int) -> None:
            if threading.current_thread() is threading.main_thread():
                return real(handle)
            assert self.open.wait(60)
            if self.failure is not None:
                raise self.failure
            return real(handle)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    made.open.set()
    yield made
    made.open.set()


class Job:
    def __init__(self, folder: Path) -> None:
        self.model = nn.Linear(300, 300)
        self.parts = Parts(self.model)
        self.ends: list[Outcome] = []
        self.warned: list[str] = []
        self.folder = folder / "checkpoints"
        self.made = Checkpoints(
            self.folder, job="toy-1", name="toy", attempt=1, rank=0, world_size=1, seed=3, warn=self.warned.append,
            on_end=self.ends.append,
        )  # fmt: skip
        self.made.claim(0)

    def request(self, step: int, **progress: Any) -> None:
        self.made.request(self.parts, Progress(step=step, **progress), {})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_training_goes_on_and_what_it_changes_is_not_in_the_save(job: Job, gate: Gate) -> None:
    gate.open.clear()
    state = {"seen": [1]}
    before = job.model.weight.detach().clone()
    job.request(1, run_state=state)
    with torch.no_grad():
        job.model.weight.add_(1.0)
    state["seen"].append(2)
    assert (job.made.in_flight, job.made.wait(0.05), job.ends, scan(job.folder)) == (1, False, [], [])
    gate.open.set()
    saved = job.made.settle()
    assert saved is not None
    assert saved.step == 1
    assert job.made.in_flight is None
    assert [(end.step, end.saved, end.error) for end in job.ends] == [(1, saved, None)]
    other = nn.Linear(300, 300)
    again = Checkpoints(job.folder, job="toy-1", name="toy", attempt=2, rank=0, world_size=1, seed=3, warn=print)
    restored = again.restore(Parts(other), "auto", {})
    assert torch.equal(other.weight, before)
    assert restored.progress is not None
    assert restored.progress.run_state == {"seen": [1]}


def test_one_save_is_in_flight_at_most_and_its_copy_is_not_touched(job: Job, gate: Gate) -> None:
    gate.open.clear()
    job.request(1)
    with pytest.raises(RuntimeError, match="step 1 is not settled"):
        job.request(2)
    gate.open.set()
    job.made.settle()
    assert job.made.settle() is None
    job.request(2)
    job.made.settle()
    assert [found.step for found in scan(job.folder)] == [2, 1]


def test_a_failed_save_is_told_at_once_leaves_nothing_and_the_next_one_is_made(job: Job, gate: Gate) -> None:
    gate.failure = OSError(errno.ENOSPC, "No space left on device", "/data/x")
    job.request(1)
    assert job.made.wait(60)
    (end,) = job.ends
    assert isinstance(end.error, DiskFullError)
    assert "No space left on device at /data/x (" in str(end.error)
    with pytest.raises(DiskFullError, match="rank 0: disk full") as caught:
        job.made.settle()
    assert "make room" in caught.value.hint
    assert sorted(p.name for p in job.folder.iterdir()) == [CONTROL]
    gate.failure = None
    job.request(2)
    job.made.settle()
    assert [found.step for found in scan(job.folder)] == [2]


def test_an_attempt_overtaken_while_it_writes_is_refused_at_the_commit(job: Job, gate: Gate) -> None:
    gate.open.clear()
    job.request(1)
    claims.claim(job.folder, "toy-1", 2, 0)
    gate.open.set()
    with pytest.raises(CheckpointError, match="attempt 1 is not the newest: attempt 2 has claimed"):
        job.made.settle()
    assert scan(job.folder) == []


def test_a_folder_that_a_person_removed_is_made_again_with_its_claim(job: Job) -> None:
    job.folder.rename(job.folder.with_name("elsewhere"))
    job.request(1)
    job.made.settle()
    assert [found.state for found in scan(job.folder)] == ["complete"]
    assert (job.folder / CONTROL / "claim-1").read_bytes() == (
        job.folder.with_name("elsewhere") / CONTROL / "claim-1"
    ).read_bytes()
    assert any("was removed while the job ran" in text for text in job.warned)


def test_a_mount_that_vanished_is_not_filled_beneath_its_mount_point(tmp_path: Path) -> None:
    made = claims.claim(tmp_path / "disk", "toy-1", 1, 0)
    assert not claims.renewed(tmp_path / "disk", made)
    (tmp_path / "disk" / CONTROL / "claim-1").unlink()
    elsewhere = Claim(made.job, made.attempt, made.resumed_from, made.device + 1)
    with pytest.raises(
        CheckpointError, match=r"the file system is gone: .* is no longer on the one it was on"
    ) as caught:
        claims.renewed(tmp_path / "disk", elsewhere)
    assert "mount it again" in caught.value.hint


def test_a_folder_that_another_run_has_taken_is_left_alone(tmp_path: Path) -> None:
    made = claims.claim(tmp_path, "toy-1", 1, 0)
    (tmp_path / CONTROL / "claim-1").unlink()
    claims.claim(tmp_path, "other-2", 7, 0)
    with pytest.raises(CheckpointError, match="another run has claimed it"):
        claims.renewed(tmp_path, made)


@pytest.mark.parametrize(
    ("code", "full", "says", "hint"),
    [
        (errno.ENOSPC, True, "disk full: ", "make room"),
        (errno.EDQUOT, True, "disk full: ", "quota"),
        (errno.EFBIG, True, "disk full: ", "ulimit -f"),
        (errno.EROFS, False, "cannot write: ", "dmesg"),
        (errno.EIO, False, "cannot write, the disk fails: ", "dmesg"),
        (errno.ESTALE, False, "cannot write, the file system is gone: ", "mount it again"),
        (errno.ENOTCONN, False, "cannot write, the file system is gone: ", "mount it again"),
        (errno.ENODEV, False, "cannot write, the file system is gone: ", "mount it again"),
        (errno.EACCES, False, "cannot write, not allowed to write: ", "job's user"),
        (errno.ENAMETOOLONG, False, "cannot write: ", "shorter path"),
        (errno.ENOTDIR, False, "cannot write, something else stands in the way: ", "is a file"),
        (errno.EXDEV, False, "cannot write: ", ""),
    ],
)
def test_each_refusal_of_the_system_is_named_with_place_room_and_way_out(
    tmp_path: Path, code: int, full: bool, says: str, hint: str
) -> None:
    told = explained(OSError(code, os.strerror(code)), tmp_path)
    assert str(told).startswith(f"{says}{os.strerror(code)} at {tmp_path} (")
    assert "bytes free there)" in str(told)
    assert isinstance(told, DiskFullError) is full
    assert hint in told.hint


def blocks(**tensors: torch.Tensor) -> dict[int, Block]:
    return {index: Block.whole(name, tensor) for index, (name, tensor) in enumerate(tensors.items())}


def test_a_copy_has_the_values_and_its_memory_is_used_again() -> None:
    held = blocks(
        a=torch.randn(5_000_000), b=torch.randn(7, 3).t(), c=torch.tensor(True), d=torch.empty(0, 3),
        e=torch.view_as_complex(torch.randn(4, 2)).conj(), f=torch.ones(3, dtype=torch.bfloat16),
    )  # fmt: skip
    buffers = Buffers(cores=2)
    first = buffers.copy(held)
    for index, block in held.items():
        assert torch.equal(first[index], block.local)
        assert first[index].is_contiguous()
    size = buffers.bytes
    held[0].local.add_(1.0)
    second = buffers.copy(held)
    assert torch.equal(second[0], held[0].local)
    assert [t.data_ptr() for t in second.values() if t.numel()] == [t.data_ptr() for t in first.values() if t.numel()]
    grown = buffers.copy(held | {9: Block.whole("more", torch.ones(10))})
    assert grown[0].data_ptr() == second[0].data_ptr()
    assert size < buffers.bytes <= size + 64
    buffers.copy(blocks(small=torch.ones(2)))
    assert buffers.bytes == 64, "what nobody needs any more is given back"


def test_a_tensor_without_plain_bytes_is_refused_and_a_copy_without_memory_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="make it dense"):
        Buffers().copy(blocks(sparse=torch.eye(3).to_sparse()))
    huge = Block.whole("huge", torch.ones(1).expand(1 << 46))
    with pytest.raises(CheckpointError, match="no copy of this rank's"):
        Buffers().copy({0: huge})


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_background_is_of_lower_priority_and_does_one_thing_at_a_time() -> None:
    seen: list[int] = []
    hold = threading.Event()

    def act() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        hold.wait(60)

    background = Background("beside")
    assert background.wait(0)
    background.start(act)
    until(lambda: bool(seen))
    assert seen[0] > os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) or seen[0] == 19
    assert not background.wait(0.01)
    with pytest.raises(RuntimeError, match="beside is busy"):
        background.start(act)
    hold.set()
    assert background.wait(60)
