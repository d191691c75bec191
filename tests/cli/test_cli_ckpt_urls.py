"""`zrun ckpt` and what a launch looks at, where the checkpoints lie in an object store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.core import written
from tests.s3_server import BUCKET, S3Server

from zrun.cli import runs
from zrun.cli.main import main
from zrun.core import storage
from zrun.core.errors import Exit, UsageError
from zrun.core.manifest import CONTROL
from zrun.core.place import place_of
from zrun.core.runfolder import RunFolder
from zrun.spec.job import Checkpoint

Captured = pytest.CaptureFixture[str]
URL = f"s3://{BUCKET}/gpt2"


@pytest.fixture
def lying(s3: S3Server, tmp_path: Path) -> dict[int, dict[str, bytes]]:
    """Checkpoints of three steps, and a save that died."""
    whole = {}
    client = s3.client()
    for step in (10, 20, 30):
        whole[step] = written.write(tmp_path / "made", step, job="gpt2-0000aa")
        for file in (tmp_path / "made" / f"step-{step:06d}").iterdir():
            client.pipe_file(f"{BUCKET}/gpt2/step-{step:06d}.attempt-1/{file.name}", file.read_bytes())
    client.pipe_file(f"{BUCKET}/gpt2/step-000040.attempt-1/rank-0.safetensors", b"half")
    return whole


def told(capsys: Captured, *arguments: str, code: int = 0) -> Any:
    assert main(["ckpt", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_ls_verify_pin_and_prune_work_on_a_url(
    lying: dict[int, dict[str, bytes]], s3: S3Server, capsys: Captured
) -> None:
    rows = told(capsys, "ls", URL)
    assert [(r["step"], r["state"]) for r in rows] == [
        (40, "partial"), (30, "complete"), (20, "complete"), (10, "complete"),
    ]  # fmt: skip
    assert rows[1]["path"] == f"{URL}/step-000030.attempt-1"
    assert [r["ok"] for r in told(capsys, "verify", URL)] == [True, True, True]
    s3.flip("gpt2/step-000030.attempt-1/rank-1.safetensors", -1)
    assert [r["ok"] for r in told(capsys, "verify", URL, code=1)] == [False, True, True]
    assert told(capsys, "ls", f"{URL}/step-000030.attempt-1")[1]["state"] == "corrupt"
    assert main(["ckpt", "pin", "10", URL]) == 0
    assert main(["ckpt", "prune", URL]) == Exit.WRONG_USE, "of a bare URL nobody knows the rule"
    capsys.readouterr()
    gone = told(capsys, "prune", URL, "--last", "1", "--damaged", "--older-than", "0s")["rows"]
    assert {row["path"].rpartition("/")[2]: row["deleted"] for row in gone} == {
        "step-000030.attempt-1": True, "step-000020.attempt-1": False, "step-000010.attempt-1": False,
        "step-000040.attempt-1": True,
    }  # fmt: skip
    assert s3.keys("gpt2/step-000030") == s3.keys("gpt2/step-000040") == []
    assert main(["ckpt", "unpin", "10", URL]) == 0


def test_export_reads_a_url_and_checks_digests_on_the_way(
    lying: dict[int, dict[str, bytes]], s3: S3Server, tmp_path: Path, capsys: Captured
) -> None:
    told(capsys, "export", URL, "--step", "20", "--to", str(tmp_path / "out"), "--model")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert bytes(tensors["model/w"].numpy().tobytes()) == lying[20]["model/w"]
    s3.flip("gpt2/step-000020.attempt-1/rank-1.safetensors", -1)
    assert main(["ckpt", "export", URL, "--step", "20", "--to", str(tmp_path / "bad")]) == Exit.OWN_FAILURE
    assert not (tmp_path / "bad").exists()


def test_a_job_whose_checkpoints_lie_there_is_found_by_its_name(
    lying: dict[int, dict[str, bytes]], make_run: Callable[..., RunFolder], capsys: Captured
) -> None:
    make_run("gpt2-0000aa", state="FAILED", spec={"checkpoint": {"dir": URL, "keep": {"last": 1, "every_steps": None}}})
    assert [r["step"] for r in told(capsys, "ls", "gpt2-0000aa")] == [40, 30, 20, 10]
    rows = told(capsys, "prune", "gpt2-0000aa", "--dry-run")["rows"]
    assert [row["deleted"] for row in rows] == [False, True, True, False]


def test_a_store_that_refuses_is_told_with_the_way_out(s3: S3Server, capsys: Captured) -> None:
    assert main(["ckpt", "ls", "s3://not-there/x"]) == Exit.OWN_FAILURE
    said = capsys.readouterr().err
    assert "there is no bucket s3://not-there" in said
    assert "mend checkpoint.dir" in said
    assert main(["ckpt", "ls", "memory://x"]) == Exit.WRONG_USE
    assert "processes share nothing" in capsys.readouterr().err


def test_a_launch_asks_the_store_with_the_jobs_own_variables(lying: dict[int, dict[str, bytes]], s3: S3Server) -> None:
    there = Checkpoint(dir=URL)
    with pytest.raises(UsageError, match=f"checkpoint.dir {URL} holds checkpoints of toy, not of llama"):
        runs.check_checkpoints(there, "llama", None, fresh=False, variables={})
    runs.check_checkpoints(there, "llama", None, fresh=True, variables={})
    runs.check_checkpoints(there, "toy", "gpt2-0000aa", fresh=False, variables={})
    with pytest.raises(UsageError, match="no bucket s3://not-there"):
        runs.check_checkpoints(Checkpoint(dir="s3://not-there/x"), "a", None, fresh=True, variables={})
    s3.ask_for_credentials()
    with pytest.raises(UsageError, match="does not take these credentials") as caught:
        runs.check_checkpoints(there, "toy", "gpt2-0000aa", fresh=False, variables={"AWS_ACCESS_KEY_ID": "typo"})
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint
    runs.check_checkpoints(there, "llama", None, fresh=False)  # a coordinator elsewhere asks it


def test_looking_leaves_nothing(lying: dict[int, dict[str, bytes]]) -> None:
    runs.check_checkpoints(Checkpoint(dir=URL), "toy", "gpt2-0000aa", fresh=False, variables={})
    place = place_of(URL)
    assert storage.of(place).files(place / CONTROL) == {}
