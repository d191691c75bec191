"""Several ranks save and restore together. Ranks are threads here; real ones are in test_exact.py."""

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zrun.core.errors import CheckpointError
from zrun.core.manifest import Manifest, scan
from zrun.core.verify import verify
from zrun.state import safetensors_file
from zrun.state.agree import Agreement
from zrun.state.checkpoints import Checkpoints
from zrun.state.disk_errors import DiskFullError
from zrun.state.parts import Parts
from zrun.state.progress import Progress


class Job:
    """A tiny model and its optimizer after one step."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.model(torch.randn(3, 4)).sum().backward()
        self.optimizer.step()
        self.parts = Parts(self.model, self.optimizer)

    def state(self) -> list[Any]:
        moments = [v.tolist() for s in self.optimizer.state.values() for v in s.values()]
        return [[t.tolist() for t in self.model.state_dict().values()], moments, self.optimizer.param_groups[0]["lr"]]


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.warned: list[str] = []


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "checkpoints")


class Threads:
    """Agreement between threads instead of processes."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=30)
        self.values: list[Any] = [None] * ranks

    def agreement(self, rank: int, world_size: int) -> Any:
        made = Agreement(rank, 1)
        made.world_size = world_size

        def gather(value: Any) -> list[Any]:
            self.values[rank] = json.dumps(value)
            self.barrier.wait()
            seen = [json.loads(text) for text in self.values]
            self.barrier.wait()
            return seen

        made.gather = made.numbers = gather  # type: ignore[method-assign, assignment]
        return made

    def run(self, folder: Folder, act: Callable[[int, Checkpoints], Any], attempt: int = 1) -> list[Any]:
        results: list[Any] = [None] * len(self.values)

        def one(rank: int) -> None:
            made = Checkpoints(
                folder.path, job="toy-1", name="toy", attempt=attempt, rank=rank, world_size=1, seed=3,
                warn=folder.warned.append,
            )  # fmt: skip
            made._agreement = made._saver.back = made._saver.divider.agreement = self.agreement(rank, len(self.values))
            try:
                results[rank] = act(rank, made)
            except CheckpointError as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self.values))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


def claim_and_save(jobs: list[Job], *steps: int, resumed: int = 0) -> Callable[[int, Checkpoints], Any]:
    def act(rank: int, made: Checkpoints) -> Any:
        made.claim(resumed)
        return [made.save(jobs[rank].parts, Progress(step=step), {}) for step in steps][-1]

    return act


def test_when_one_rank_cannot_write_all_are_told_and_nothing_is_published(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Threads(1).run(folder, claim_and_save([Job()], 1))
    real = safetensors_file.write

    def write(path: Path, *rest: Any) -> Any:
        if path.name.startswith("rank-1"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, *rest)

    monkeypatch.setattr("zrun.state.saving.write", write)
    told = Threads(2).run(folder, claim_and_save([Job(), Job()], 2, resumed=1), attempt=2)
    for error in told:
        assert isinstance(error, DiskFullError)
        assert "rank 1: disk full: No space left on device" in str(error)
    assert [(f.step, f.state) for f in scan(folder.path)] == [(1, "complete")]
    assert not list(folder.path.glob("*.tmp"))


def test_ranks_that_hold_the_same_write_it_once_and_share_the_work(folder: Folder) -> None:
    job = Job()
    done = Threads(2).run(folder, claim_and_save([job, job], 1))
    assert done[0].bytes == done[1].bytes
    manifest = Manifest.from_json((done[0].path / "manifest.json").read_text())
    assert all(len(entry.chunks) == 1 for entry in manifest.tensors.values())
    assert not any("#" in key for key in [*manifest.tensors, *manifest.values])
    assert [f.rank for f in manifest.files] == [0, 1]
    assert verify(done[0].path).problems == []


def test_what_nothing_keeps_equal_is_kept_for_each_rank(folder: Folder) -> None:
    jobs = [Job(seed=rank) for rank in range(3)]
    for rank, job in enumerate(jobs):
        job.optimizer.param_groups[0]["lr"] = 0.1 + rank
    Threads(3).run(folder, claim_and_save(jobs, 2))
    assert verify(folder.path / "step-000002").problems == []
    others = [Job(seed=50 + rank) for rank in range(3)]
    restored = Threads(3).run(folder, lambda rank, made: made.restore(others[rank].parts, "auto", {}), attempt=2)
    assert [r.progress.step for r in restored] == [2, 2, 2]
    assert [job.state() for job in others] == [job.state() for job in jobs]
    # Another number of ranks gets the first one's, and is told.
    single = Job()
    Threads(1).run(folder, lambda rank, made: made.restore(single.parts, "auto", {}), attempt=3)
    assert single.state() == jobs[0].state()
    assert any("values of their own" in text for text in folder.warned)


def test_a_flaw_that_one_rank_sees_sends_all_to_the_older_one(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    Threads(1).run(folder, claim_and_save([Job()], 1, 2))
    real = Parts.load

    def load(self: Parts, source: Any, skip: Any) -> None:
        if threading.current_thread().name == "second" and source.manifest.step == 2:
            raise CheckpointError("it is dark here")
        real(self, source, skip)

    monkeypatch.setattr(Parts, "load", load)

    def act(rank: int, made: Checkpoints) -> Any:
        threading.current_thread().name = "second" if rank else "first"
        return made.restore(Job().parts, "auto", {})

    restored = Threads(2).run(folder, act, attempt=2)
    assert [r.progress.step for r in restored] == [1, 1]
    assert restored[0].skipped[0]["reason"] == "rank 1: it is dark here" == restored[1].skipped[0]["reason"]
