"""`zrun ckpt` where the checkpoints lie, without coordinator and torch: what it shows, keeps, deletes and exports."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.core import written

from zrun.cli.main import main
from zrun.core import reading
from zrun.core.manifest import CONTROL, scan
from zrun.core.runfolder import RunFolder

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def run(make_run: Callable[..., RunFolder]) -> RunFolder:
    folder = make_run("gpt2-0000aa", state="FAILED", spec={"checkpoint": {"keep": {"last": 1, "every_steps": 20}}})
    for step in (10, 20, 30, 40):
        written.write(folder.checkpoints, step, job="gpt2-0000aa")
    return folder


def told(capsys: Captured, *arguments: str, code: int = 0) -> Any:
    assert main(["ckpt", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def steps(run: RunFolder) -> list[int]:
    return [found.step for found in scan(run.checkpoints)]


def test_ls_says_what_each_one_is_and_who_wants_it(run: RunFolder, capsys: Captured) -> None:
    directory = run.checkpoints
    (directory / "step-000040" / "manifest.json").unlink()
    (directory / "step-000040" / "rank-0.safetensors").write_bytes(b"")
    (directory / "step-000030" / "rank-1.safetensors").write_bytes(b"")
    (directory / "step-000050.attempt-2.tmp").mkdir()
    (directory / CONTROL).mkdir()
    (directory / CONTROL / "claim-2").write_text('{"resumed_from": 10}')
    assert main(["ckpt", "pin", "10"]) == 0
    assert capsys.readouterr().out == f"pinned {directory / 'step-000010'}\n"
    with reading.held(directory / "step-000010"):
        rows = told(capsys, "ls")
    assert [(r["step"], r["state"], r["pinned"], r["being_read"]) for r in rows] == [
        (50, "partial", False, False), (40, "partial", False, False), (30, "corrupt", False, False),
        (20, "overtaken", False, False), (10, "complete", True, True),
    ]  # fmt: skip
    assert rows[0]["reason"].startswith("unfinished save of attempt 2, which may be writing it; last written 0.")
    assert rows[1]["reason"] == "no manifest; rank-0.safetensors is empty"
    assert rows[2]["reason"].startswith("rank-1.safetensors has 0 bytes, not ")
    assert main(["ckpt", "ls"]) == 0
    assert "pinned" in capsys.readouterr().out.splitlines()[-1]


def test_a_damaged_one_is_marked_by_verify_and_no_more_the_last_good_one(run: RunFolder, capsys: Captured) -> None:
    good = (run.checkpoints / "step-000040" / "rank-0.safetensors").read_bytes()
    written.flip(run.checkpoints, 40, "rank-0.safetensors")
    assert [row["state"] for row in told(capsys, "ls")] == ["complete"] * 4
    assert [row["ok"] for row in told(capsys, "verify", code=1)] == [False, True, True, True]
    assert [row["state"] for row in told(capsys, "ls")][:2] == ["corrupt", "complete"]
    kept = [row for row in told(capsys, "prune", "--last", "1")["rows"] if not row["deleted"]]
    assert [(row["step"], row["reason"]) for row in kept] == [
        (40, "corrupt, left to be looked at"), (30, "the last good one"),
    ]  # fmt: skip
    (run.checkpoints / "step-000040" / "rank-0.safetensors").write_bytes(good)
    assert told(capsys, "verify", "--step", "40")[0]["ok"]
    assert told(capsys, "ls")[0]["state"] == "complete"


def test_prune_goes_by_the_jobs_own_rule_and_says_why(run: RunFolder, capsys: Captured) -> None:
    dry = told(capsys, "prune", "--dry-run")
    assert steps(run) == [40, 30, 20, 10]
    done = told(capsys, "prune")
    assert steps(run) == [40, 20]
    assert [row["deleted"] for row in dry["rows"]] == [row["deleted"] for row in done["rows"]]
    assert {row["step"]: row["reason"] for row in done["rows"]} == {
        40: "the last good one", 30: "not among the last 1, no multiple of 20", 20: "every 20 steps",
        10: "not among the last 1, no multiple of 20",
    }  # fmt: skip
    assert main(["ckpt", "prune"]) == 0
    assert "0 B freed" in capsys.readouterr().err


def test_prune_leaves_pinned_and_read_ones_and_takes_leftovers_by_age(run: RunFolder, capsys: Captured) -> None:
    old, young = (run.checkpoints / f"step-00005{n}.attempt-1.tmp" for n in (1, 2))
    for path in (old, young):
        path.mkdir()
    os.utime(old, (time.time() - 7200,) * 2)
    assert main(["ckpt", "pin", "10", str(run.root)]) == 0
    capsys.readouterr()
    with reading.held(run.checkpoints / "step-000030"):
        rows = told(capsys, "prune", "gpt2", "--older-than", "1h")["rows"]
    assert steps(run) == [40, 30, 20, 10]
    assert {row["step"]: row["reason"] for row in rows if row["step"] in {10, 30}} == {10: "pinned", 30: "being read"}
    assert (old.exists(), young.exists()) == (False, True)
    assert main(["ckpt", "unpin", "10"]) == 0
    assert main(["ckpt", "unpin", "10"]) == 2
    assert main(["ckpt", "prune"]) == 0
    assert steps(run) == [40, 20]


def test_a_folder_of_no_known_run_needs_to_be_told_how_many(tmp_path: Path, capsys: Captured) -> None:
    for step in (1, 2):
        written.write(tmp_path, step)
    assert main(["ckpt", "prune", str(tmp_path)]) == 2
    assert "--last" in capsys.readouterr().err
    told(capsys, "prune", str(tmp_path), "--last", "1")
    assert [found.step for found in scan(tmp_path)] == [2]


def test_one_that_is_not_complete_cannot_be_pinned(run: RunFolder, capsys: Captured) -> None:
    (run.checkpoints / "step-000040" / "manifest.json").unlink()
    assert main(["ckpt", "pin", "40"]) == 2
    assert main(["ckpt", "pin", "41"]) == 102
    assert "no checkpoint of step 41" in capsys.readouterr().err


def test_export_writes_what_the_library_reads(
    run: RunFolder, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ckpt", "export"]) == 0
    assert "toy-step-000040/model.safetensors" in capsys.readouterr().out
    assert set(load_file("toy-step-000040/model.safetensors")) == {"model/w", "model/b"}
    done = told(capsys, "export", str(run.checkpoints / "step-000020"), "--to", "new/two", "--consolidate", "--model")
    assert (done["step"], list(done["files"])) == (20, ["checkpoint.safetensors"])
    assert load_file("new/two/checkpoint.safetensors")["model/w"].shape == (6, 4)
    assert main(["ckpt", "export", "--to", "new/two"]) == 2
    assert main(["ckpt", "export", "--step", "21"]) == 102


def test_nothing_heavy_is_imported_for_it(run: RunFolder, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom zrun.cli.main import main\n"
        "code = [main(sys.argv[1:2] + a.split()) for a in sys.argv[2:]]\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'ruamel', 'structlog', 'tenacity'} & set(sys.modules)\n"
        "sys.exit(str((code, heavy)) if any(code) or heavy else 0)"
    )
    at = str(run.checkpoints)
    ended = subprocess.run(
        [sys.executable, "-c", program, "ckpt", f"ls {at}", f"verify {at}", f"pin 10 {at}", f"prune --dry-run {at}",
         f"export {at} --to {tmp_path / 'out'}"], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
