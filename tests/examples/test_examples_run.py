"""The examples as programs under plain torchrun, and their job files."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zrun.spec.load import load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = ["--steps", "3", "--hidden", "16", "--heads", "2", "--seq", "16", "--batch", "4", "--eval-windows", "2"]


def torchrun(ranks: int, script: Path, *arguments: str) -> str:
    """What the ranks printed; fails with their errors if they do not end well within 100 s."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with subprocess.Popen(
        [*command, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=script.parent,
    ) as process:
        try:
            shown, errors = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks before it ends
            raise
    assert process.returncode == 0, errors[-3000:]
    return shown


@pytest.mark.parametrize("name", ["hybrid", "convnet"])
def test_the_job_files_are_right(name: str) -> None:
    spec = load_job(EXAMPLES / name / "job.yaml", on_this_machine=True)
    assert spec.name == name
    assert spec.nproc_per_node == 2


@pytest.mark.parametrize("script", ["hybrid/train.py", "convnet/convnet.py"])
def test_the_training_loop_fits_on_one_screen(script: str) -> None:
    tree = ast.parse((EXAMPLES / script).read_text())
    long = [
        f"{one.name}: {one.end_lineno - one.lineno + 1}"
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.end_lineno and one.end_lineno - one.lineno >= 50
    ]
    assert long == []


@pytest.mark.parametrize("script", ["hybrid/train.py", "convnet/convnet.py"])
def test_the_readme_names_every_flag(script: str) -> None:
    told = (EXAMPLES / "README.md").read_text().partition(f"## {script.partition('/')[0]}/")[2].partition("\n## ")[0]
    flags = re.findall(r'add_argument\("(--[a-z-]+)"', (EXAMPLES / script).read_text())
    assert len(flags) > 5
    assert [flag for flag in flags if f"`{flag}`" not in told] == []


@pytest.mark.long
@pytest.mark.e2e
def test_the_language_model_trains_with_every_strategy() -> None:
    shown = torchrun(2, Path(__file__).with_name("every_strategy.py"), *TINY, "--accumulate", "2")
    assert re.findall(r"bytes, (\w+); unigram", shown) == ["ddp", "zero1", "zero2", "zero3", "hsdp"]
    assert len(re.findall(r"^step 3 held-out \d\.\d{4}$", shown, re.MULTILINE)) == 5
    assert len(re.findall(r"^weights sha256=[0-9a-f]{64}$", shown, re.MULTILINE)) == 5


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_the_convolutional_network_trains_with_both_strategies(strategy: str) -> None:
    shown = torchrun(2, EXAMPLES / "convnet" / "convnet.py", "--steps", "3", "--width", "4", "--strategy", strategy)
    assert re.search(r"^step 3 held-out accuracy ", shown, re.MULTILINE)
    assert re.search(r"^weights sha256=[0-9a-f]{64}$", shown, re.MULTILINE)
