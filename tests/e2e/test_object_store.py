"""A whole job whose checkpoints lie in an object store: a rank dies, and it goes on from there as if from a disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.s3_server import S3Server

TOY = f"{Path(__file__).resolve().parent / 'scripts' / 'toy.py'} --steps 40 --pause 0.1"


def make(make_job: Callable[..., Any], url: str, **options: Any) -> Any:
    """Without a copy in memory, so that a restart goes back to the store."""
    job = make_job(TOY, memory="off", **options)
    job.change("checkpoint: {every: 10 steps,", f"checkpoint: {{every: 10 steps, dir: {url}, keep: {{last: 2}},")
    return job


@pytest.mark.long
def test_a_killed_rank_goes_on_from_the_object_store_bit_for_bit(
    s3: S3Server, make_job: Callable[..., Any], weights_of: Callable[..., str]
) -> None:
    expected = weights_of(TOY)
    job = make(make_job, "s3://runs/toy", fault="kill:1:26")
    assert job.run() == 0, job.story()
    _, second = job.verdict["attempts"]
    assert second["resumed_from"]["step"] in (10, 20), job.story()
    assert job.weights() == expected
    assert [line.split()[0] for line in job.zrun("ckpt", "ls").stdout.splitlines()[1:]] == ["40", "30", "20"]
    assert job.zrun("ckpt", "verify").returncode == 0
    assert not (job.run_dir / "checkpoints").exists()
    assert s3.client().exists("runs/toy/step-000040.attempt-2/manifest.json")


def test_a_launch_names_a_bucket_that_is_not_there_before_anything_starts(
    s3: S3Server, make_job: Callable[..., Any]
) -> None:
    job = make(make_job, "s3://not-there/toy")
    assert job.run() == 2
    assert "there is no bucket s3://not-there" in job.output()
    assert not (job.folder / "runs").exists() or list((job.folder / "runs").glob("toy-*")) == []
