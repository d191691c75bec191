"""Disk damage between two attempts: the newest checkpoint that verifies is taken, and why the others are not is told."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 60 --pause 0.15"


@pytest.mark.long
def test_a_flipped_byte_in_the_newest_checkpoint_sends_the_job_to_the_one_before(
    make_job: Callable[..., Any], weights_of: Callable[..., str]
) -> None:
    expected = weights_of(TOY)
    job = make_job(TOY, memory="off")
    job.start()
    job.wait_for_step(22)
    pid = job.ranks()[1]["pid"]
    newest = max((p for p in (job.run_dir / "checkpoints").iterdir() if (p / "manifest.json").exists()), key=step_of)
    shard = max(newest.glob("**/*.safetensors"), key=lambda p: p.stat().st_size)
    damaged = bytearray(shard.read_bytes())
    damaged[-3] ^= 1
    shard.write_bytes(damaged)
    os.kill(pid, signal.SIGKILL)
    assert job.finish() == 0, job.story()
    verdict = job.verdict
    assert len(verdict["attempts"]) == 2, job.story()
    assert verdict["attempts"][1]["resumed_from"]["step"] == step_of(newest) - 10, job.story()
    (skipped,) = verdict["attempts"][1]["skipped"]
    assert newest.name in skipped["path"]
    assert shard.name in skipped["reason"], skipped
    assert job.weights() == expected


def step_of(folder: Path) -> int:
    return int(folder.name.split(".")[0].split("-")[1])
