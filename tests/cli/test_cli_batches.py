"""`zrun batches` answers from a run's folder, and from a coordinator where the folder is elsewhere."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zrun.cli.main import main
from zrun.core.batches import Batches, DataFacts
from zrun.core.runfolder import RunFolder

FACTS = DataFacts("samples", "numbers:12", 0, 4, drop_last=True, samples=12)
MakeRun = Callable[..., RunFolder]


def run_with(make_run: MakeRun, facts: DataFacts = FACTS, **verdict: object) -> RunFolder:
    run = make_run("toy-0000aa", state="FAILED", **verdict)
    run.data.write_text(json.dumps(facts.to_dict()))
    return run


def test_the_samples_of_a_step_are_listed(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    bad = str(Batches(FACTS).name(2))
    run_with(make_run, step=1, quarantined=[bad])
    assert main(["batches", "toy", "--step", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"{Batches(FACTS).name(3)}: step 2, epoch 0, 4 samples" in shown
    assert "indices of the dataset: 8, 9, 10, 11" in shown
    assert f"skipped from now on: {bad}" in shown
    assert main(["batches", "toy", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["job"], value["step"], value["samples"]) == ("toy-0000aa", 1, [0, 1, 2, 3])
    assert value["data"]["skip"] == [bad]
    assert main(["batches", "toy", "--id", bad]) == 0
    assert f"{bad}: skipped" in capsys.readouterr().out


def test_wrong_use_is_refused(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with(make_run)
    for arguments in (
        ["--step", "1", "--id", "x"],
        ["--step", "0"],
        ["--id", "x"],
        ["--replay", "e0-s000001-00000000"],
    ):
        assert main(["batches", "toy", *arguments]) == 2, arguments
    run.data.unlink()
    assert main(["batches", "toy"]) == 102
    assert "nothing is known of the data" in capsys.readouterr().err


def test_the_command_needs_no_torch(make_run: MakeRun, tmp_path: Path) -> None:
    run_with(make_run)
    (tmp_path / "torch.py").write_text("raise ImportError('left out by the test')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from zrun.cli.main import main; sys.exit(main(['batches', 'toy']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "indices of the dataset" in done.stdout
