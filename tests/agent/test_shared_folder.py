"""A sign that the first node leaves in checkpoint.dir, and that the others have to see there."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.s3_server import BUCKET, S3Server

from zrun.agent import shared_folder
from zrun.agent.launch import Where
from zrun.core import env
from zrun.core.manifest import CONTROL, claims, scan
from zrun.core.runfolder import RunFolder
from zrun.spec.job import Checkpoint, JobSpec
from zrun.wire.order import LaunchPlan, Peer

FIRST = LaunchPlan(
    attempt=1, node_rank=0, nnodes=2, nproc=1, master_addr="10.0.0.1", master_port=0, peers=[Peer("a"), Peer("b")], key="k",
)  # fmt: skip
OTHER = msgspec.structs.replace(FIRST, node_rank=1)


def look(directory: Path, plan: LaunchPlan, job: str = "toy-1") -> str:
    return asyncio.run(shared_folder.look(directory, job, plan))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_folder, "LOOK_S", 0.0)


def test_nodes_that_share_the_folder_see_the_sign_of_the_first(tmp_path: Path) -> None:
    assert look(tmp_path / "checkpoints", FIRST) == ""
    assert look(tmp_path / "checkpoints", OTHER) == ""
    assert (scan(tmp_path / "checkpoints"), claims(tmp_path / "checkpoints")) == ([], {})


def test_a_folder_of_its_own_under_the_same_name_is_told_with_the_first_nodes_name(tmp_path: Path) -> None:
    look(tmp_path / "a", FIRST)
    assert look(tmp_path / "b", OTHER) == (
        f"checkpoint.dir {tmp_path / 'b'} is not the folder that node a has under that name, so checkpoints would be in "
        "pieces; set checkpoint.dir to a folder that all nodes share"
    )
    assert not (tmp_path / "b").exists(), "who looks makes nothing"


@pytest.mark.parametrize(
    ("job", "change"), [("toy-2", {}), ("toy-1", {"attempt": 2}), ("toy-1", {"key": "another coordinator's"})]
)
def test_a_sign_of_another_attempt_or_job_counts_for_nothing(
    tmp_path: Path, job: str, change: dict[str, object]
) -> None:
    look(tmp_path, FIRST)
    assert look(tmp_path, msgspec.structs.replace(OTHER, **change), job) != ""


def test_one_that_shows_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_folder, "LOOK_S", 60.0)

    async def both() -> list[str]:
        other = asyncio.create_task(shared_folder.look(tmp_path, "toy-1", OTHER))
        await asyncio.sleep(0)
        first = await shared_folder.look(tmp_path, "toy-1", FIRST)
        return [first, await other]

    assert asyncio.run(both()) == ["", ""]


def test_signs_of_earlier_attempts_go(tmp_path: Path) -> None:
    look(tmp_path, FIRST)
    look(tmp_path, msgspec.structs.replace(FIRST, attempt=2))
    assert len(list((tmp_path / CONTROL).iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert (
        look(tmp_path / "file" / "x", FIRST)
        == f"checkpoint.dir {tmp_path / 'file' / 'x'} cannot be written: Not a directory"
    )


def of_job(url: str, plan: LaunchPlan, run: Path, variables: dict[str, str]) -> str:
    spec = JobSpec(name="toy", run=["train.py"], workdir=str(run), checkpoint=Checkpoint(dir=url))
    where = Where(RunFolder(run), "toy-1", "a", 1, "boot")
    return asyncio.run(shared_folder.of_job(spec, where, plan, {**env.snapshot(), **variables}))


def test_an_object_store_is_asked_with_the_ranks_own_variables(s3: S3Server, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/toy"
    assert of_job(url, OTHER, tmp_path, {}).startswith(f"checkpoint.dir {url} is not the folder that node a has")
    assert of_job(url, FIRST, tmp_path, {}) == ""
    assert of_job(url, OTHER, tmp_path, {}) == ""
    assert of_job("s3://not-there/x", FIRST, tmp_path, {}).startswith(
        "checkpoint.dir s3://not-there/x: there is no bucket s3://not-there (make it"
    )
    s3.ask_for_credentials()
    said = of_job(url, FIRST, tmp_path, {"AWS_ACCESS_KEY_ID": "typo"})
    assert "s3://runs does not take these credentials" in said
    assert "AWS_SECRET_ACCESS_KEY" in said
