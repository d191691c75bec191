"""Checkpoints in an object store, from one rank to many: the manifest's PUT is the commit, and nothing before is seen."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.s3_server import S3Server
from tests.state.test_checkpoints import Job
from torch import nn

from zrun.core import object_store, pruning
from zrun.core.errors import CheckpointError
from zrun.core.manifest import scan
from zrun.core.object_store import ObjectStore
from zrun.core.place import ObjectPath, Place, place_of
from zrun.core.store_errors import RefusedError
from zrun.core.verify import verify
from zrun.state import claims
from zrun.state.checkpoints import Checkpoints
from zrun.state.parts import Parts
from zrun.state.progress import Progress

PROGRAM = Path(__file__).with_name("object_program.py")
HERE = place_of("s3://runs/toy")


class Opened:
    def __init__(
        self, attempt: int = 1, *, resumed: int | None = 0, job: str = "toy-1", place: Place = HERE, **options: Any
    ) -> None:
        self.warned: list[str] = []
        self.made = Checkpoints(
            place,
            job=job,
            name="toy",
            attempt=attempt,
            rank=0,
            world_size=1,
            seed=3,
            warn=self.warned.append,
            **options,
        )
        if resumed is not None:
            self.made.claim(resumed)

    def save(self, job: Job, *steps: int) -> None:
        for step in steps:
            self.made.save(job.parts, Progress(step=step, batch=f"b{step}"), {})


def found() -> list[tuple[str, str]]:
    return [(one.path.name, one.state) for one in scan(HERE)]


def test_a_save_is_restored_verified_and_pruned_as_on_a_disk(s3: S3Server) -> None:
    job, opened = Job(steps=3), Opened(keep_last=2)
    opened.save(job, 1, 2, 3)
    assert found() == [("step-000003.attempt-1", "complete"), ("step-000002.attempt-1", "complete")]
    assert all(verify(one.path).ok for one in scan(HERE))
    other = Job(seed=9)
    restored = Opened(2, resumed=None).made.restore(other.parts, "auto", {})
    assert restored.progress is not None
    assert (restored.progress.step, restored.path) == (3, HERE / "step-000003.attempt-1")
    assert other.state() == job.state()
    elsewhere = Opened(1, resumed=None, place=place_of("s3://runs/elsewhere")).made
    named = elsewhere.restore(Job(seed=8).parts, f"{HERE}/step-000002.attempt-1", {})
    assert named.path == HERE / "step-000002.attempt-1"
    assert opened.warned == []


def test_a_flipped_byte_is_seen_by_verify_and_by_a_restore_that_takes_the_one_before(s3: S3Server) -> None:
    job = Job(steps=2)
    Opened().save(job, 1, 2)
    s3.flip("toy/step-000002.attempt-1/rank-0.safetensors", -3)
    problems = verify(HERE / "step-000002.attempt-1").problems
    assert ["digest mismatch" in text for text in problems] == [True]
    opened = Opened(2, resumed=None)
    restored = opened.made.restore(Job(seed=9).parts, "auto", {})
    assert restored.path == HERE / "step-000001.attempt-1"
    assert [skipped["path"] for skipped in restored.skipped] == [f"{HERE}/step-000002.attempt-1"]
    assert found()[0] == ("step-000002.attempt-1", "corrupt"), "it is marked"


def test_a_late_writer_of_an_older_attempt_finds_the_newer_claim(s3: S3Server) -> None:
    job, late = Job(steps=1), Opened(1)
    late.save(job, 1)
    Opened(2, resumed=1)
    with pytest.raises(CheckpointError, match="attempt 2 has claimed s3://runs/toy"):
        late.save(job, 2)
    with pytest.raises(CheckpointError, match="is it running twice"):
        claims.claim(HERE, "toy-1", 2, 1)
    assert found() == [("step-000001.attempt-1", "complete")]
    assert s3.keys("toy/step-000002") == [], "what it wrote is gone"


def test_what_an_older_attempt_saved_past_the_resumed_step_counts_for_nothing(s3: S3Server) -> None:
    job = Job(steps=1)
    Opened(1).save(job, 1, 2)
    Opened(2, resumed=1).save(job, 2)
    assert found() == [("step-000002.attempt-2", "complete"), ("step-000001.attempt-1", "complete")]


def test_a_step_saved_again_by_its_own_attempt_is_complete_before_the_older_one_goes(s3: S3Server) -> None:
    opened = Opened()
    opened.save(Job(steps=1), 1)
    opened.save(Job(steps=2), 1)
    assert found() == [("step-000001.attempt-1.2", "complete")]
    opened.save(Job(steps=3), 1)
    assert found() == [("step-000001.attempt-1", "complete")]


def test_without_a_manifest_there_is_no_checkpoint_and_the_next_attempt_sweeps(s3: S3Server) -> None:
    job = Job(steps=1)
    Opened().save(job, 1)
    ObjectStore("s3").write(HERE / "step-000002.attempt-1" / "rank-0.safetensors", b"half")
    assert found() == [("step-000001.attempt-1", "complete")]
    assert [(path.name, step, attempt) for path, step, attempt in pruning.unfinished(HERE)] == [
        ("step-000002.attempt-1", 2, 1)
    ]
    assert "step-000002.attempt-1" in Opened(2, resumed=1).warned[0]
    assert pruning.unfinished(HERE) == []


def test_another_runs_checkpoints_are_refused_or_put_away_whole(s3: S3Server) -> None:
    Opened(job="other-9").save(Job(steps=1), 1)
    with pytest.raises(CheckpointError, match="of another run, other-9"):
        Opened(1, resumed=None).made.restore(Job().parts, "auto", {})
    opened = Opened(1, resumed=None, fresh=True)
    opened.made.restore(Job().parts, "auto", {})
    opened.made.claim(0)
    assert "another run's checkpoints were put into s3://runs/toy/.zrun/before-" in opened.warned[0]
    assert found() == []
    put = place_of(opened.warned[0].rpartition(" ")[2])
    assert [(one.state, verify(one.path).ok) for one in scan(put)] == [("complete", True)]


def test_a_save_that_the_store_refuses_fails_loudly_leaves_nothing_and_the_next_one_is_good(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, opened = Job(steps=1), Opened()
    opened.save(job, 1)
    monkeypatch.setattr(object_store, "FIRST_PAUSE_S", 0.0)
    tried: list[str] = []
    real: Callable[..., Any] = ObjectStore.new_file

    def busy(self: ObjectStore, place: ObjectPath, size: int) -> Any:
        tried.append(place.name)
        raise RefusedError(f"{place} does not answer", "check the network", frozenset({"SlowDown"}), passing=True)

    monkeypatch.setattr(ObjectStore, "new_file", busy)
    with pytest.raises(CheckpointError, match=r"rank 0: s3://runs/toy/step-000002.*does not answer") as caught:
        opened.save(job, 2)
    assert (caught.value.hint, len(tried)) == ("check the network", object_store.TRIES)
    assert s3.keys("toy/step-000002") == []
    monkeypatch.setattr(ObjectStore, "new_file", real)
    opened.save(job, 3)
    assert found()[0] == ("step-000003.attempt-1", "complete")


def test_a_store_that_does_not_answer_is_no_reason_to_take_an_older_one(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    Opened().save(Job(steps=1), 1, 2)
    real = ObjectStore._range

    def silent(self: ObjectStore, place: ObjectPath, start: int, end: int) -> bytes:
        if "step-000002" in str(place):
            raise RefusedError("no answer", "", frozenset(), passing=False)
        return real(self, place, start, end)

    monkeypatch.setattr(ObjectStore, "_range", silent)
    with pytest.raises(CheckpointError, match=r"could not be read: rank 0: no answer"):
        Opened(2, resumed=None).made.restore(Job(seed=9).parts, "auto", {})
    assert found()[0] == ("step-000002.attempt-1", "complete"), "nor is it damaged"


def test_a_tensor_of_many_windows_and_parts_comes_back(s3: S3Server) -> None:
    torch.manual_seed(0)
    big = nn.Linear(3000, 3000)
    opened = Opened()
    opened.made.save(Parts(big), Progress(step=1), {})
    other = nn.Linear(3000, 3000)
    Opened(2, resumed=None).made.restore(Parts(other), "auto", {})
    assert torch.equal(big.weight, other.weight)


def attempts(folder: Path, *told: dict[str, Any]) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), str(folder), str(HERE), json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [{**line, "steps": {int(step): held for step, held in line["steps"].items()}} for line in lines]


@pytest.mark.e2e
@pytest.mark.long
def test_ranks_go_on_at_other_world_sizes(s3: S3Server, tmp_path: Path) -> None:
    worlds = [{"world": world, "total": total, "rows": 500} for world, total in ((2, 2), (1, 4), (3, 5))]
    two, one, three = attempts(tmp_path, *worlds)
    assert [told["statuses"] for told in (two, one, three)] == [[0, 0], [0], [0, 0, 0]], (two, one, three)
    assert [min(told["steps"]) for told in (two, one, three)] == [0, 2, 4]
    assert one["steps"][2] == two["steps"][2]
    assert three["steps"][4] == one["steps"][4]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("point", ["write", "part", "manifest", "rename"])
def test_a_rank_killed_in_mid_upload_is_never_seen(s3: S3Server, tmp_path: Path, point: str) -> None:
    rows = 400_000 if point == "write" else 500  # weights and moments are more than one part of an upload
    (killed,) = attempts(tmp_path, {"world": 2, "total": 4, "rows": rows, "kill": f"{point}:2", "who": 0})
    assert -9 in killed["statuses"]
    committed = point == "rename"
    assert found()[0] == ("step-000002.attempt-1" if committed else "step-000000.attempt-1", "complete")
    assert all(verify(one.path).ok for one in scan(HERE))
    if point == "write":
        assert s3.uploads() != [], "it was killed between two parts"
    (tmp_path / "again").mkdir()
    nobody = {"world": 0, "total": 0}
    _, resumed = attempts(tmp_path / "again", nobody, {"world": 2, "total": 4, "rows": rows})
    assert (resumed["statuses"], min(resumed["steps"])) == ([0, 0], 2 if committed else 0), resumed
    assert resumed["steps"][min(resumed["steps"])] == killed["steps"][min(resumed["steps"])]
    assert (s3.uploads(), pruning.unfinished(HERE)) == ([], [])
    assert found()[0] == ("step-000004.attempt-2", "complete")
