"""Data in whole jobs: streams that end together, batches that are named afterwards and read again, losses that are bad."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import ZRUN

FEEDS = str(Path(__file__).resolve().parent / "scripts" / "feeds.py")
TOLD = re.compile(r"step (\d+) batch (\S+) samples \[(.*)\]")

MakeJob = Callable[..., Any]


def seen(job: Any, attempt: int, ranks: int = 2) -> dict[int, tuple[str, list[int]]]:
    """step -> batch and samples of all ranks together, of the steps every rank began."""
    found: list[dict[int, tuple[str, list[int]]]] = []
    for rank in range(ranks):
        told = [TOLD.search(line["msg"]) for line in job.log_lines(attempt, rank)]
        found.append({int(t[1]): (t[2], [int(n) for n in t[3].split(",")]) for t in told if t})
    common = sorted(set.intersection(*(set(steps) for steps in found)))
    assert all(len({steps[step][0] for steps in found}) == 1 for step in common)
    return {step: (found[0][step][0], [n for steps in found for n in steps[step][1]]) for step in common}


@pytest.mark.parametrize("kind", ["stream", pytest.param("shards", marks=pytest.mark.long)])
def test_after_a_kill_each_sample_comes_once_an_epoch_and_all_ranks_end_with_the_data(
    make_job: MakeJob, kind: str
) -> None:
    job = make_job(f"{FEEDS} --kind {kind}", fault="kill:1:14", every=5)
    assert job.run() == 0, job.story()
    assert [a["outcome"] for a in job.verdict["attempts"]] == ["fault", "finished"], job.story()
    first, second = seen(job, 1), seen(job, 2)
    assert min(second) == job.verdict["attempts"][1]["resumed_from"]["step"] + 1 >= 6, job.story()
    steps = {**first, **second}
    assert sorted(steps) == list(range(1, 25)), "two epochs of 12 batches, the last of each one short"
    samples = Counter(sample % 1000 for _, together in steps.values() for sample in together)
    assert samples == dict.fromkeys(range(90), 2)
    for step in sorted(first.keys() & second.keys()):
        assert first[step] == second[step]
    for rank in range(2):
        assert f"over after step 24 as rank {rank}" in [line["msg"] for line in job.log_lines(2, rank)]
    assert max(c["step"] for c in job.verdict["checkpoints"]) == 24, "what nobody knew to be the last step is saved"


@pytest.mark.long
def test_a_bad_loss_takes_the_job_back_without_its_batch_which_can_be_named_and_read_again(make_job: MakeJob) -> None:
    job = make_job(f"{FEEDS} --nan 33 --steps 12", extra="data: {on_bad_loss: skip}\n", every=4)
    assert job.run() == 0, job.story()
    verdict = job.verdict
    assert [a["outcome"] for a in verdict["attempts"]] == ["fault", "finished"], job.story()
    (incident,) = verdict["incidents"]
    assert incident["class"] == "poison"
    assert incident["exception"].endswith("BadLossError")
    assert re.search(r"the loss of step \d+ is nan on rank [01]", incident["message"])
    bad = incident["batch"]
    assert verdict["quarantined"] == [bad]
    assert f"batch {bad} is skipped" in job.zrun("status").stdout
    first, second = seen(job, 1), seen(job, 2)
    assert bad not in {batch for batch, _ in second.values()}
    assert 33 in next(together for batch, together in first.values() if batch == bad)
    done = {step: told for step, told in {**first, **second}.items() if told[0] != bad}
    assert sorted(done) == list(range(1, 13))
    for step, (batch, together) in done.items():
        answer = json.loads(job.zrun("batches", "--step", str(step), "--json").stdout) if step in {1, 11} else None
        assert answer is None or (answer["batch"], answer["samples"]) == (batch, together)
    (job.run_dir / "data.json").unlink()  # the checkpoints know it too
    answer = json.loads(job.zrun("batches", "--id", bad, "--json").stdout)
    assert answer["skipped"]
    assert answer["step"] is None
    assert 33 in answer["samples"]

    again = job.zrun("batches", "--replay", bad)
    assert again.returncode == 0, again.stderr
    assert f"batch {bad} samples [{', '.join(map(str, answer['samples']))}]" in again.stdout, "the whole global batch"
    assert f"batch {bad}, 8 samples, in one process" in again.stderr


@pytest.mark.long
def test_a_replayed_batch_is_handed_to_the_debugger_in_the_scripts_own_loop(make_job: MakeJob) -> None:
    job = make_job(f"{FEEDS} --kind sampler --steps 6", nproc=1)
    assert job.run() == 0, job.story()
    batch, together = seen(job, 1, ranks=1)[5]
    told = job.zrun("batches", "--id", batch)
    assert told.returncode == 2
    assert "--replay" in told.stderr
    asked = [*ZRUN, "batches", "--replay", batch, "--debug"]
    commands = "p ('here', run.step, batch.tolist())\nc\n"
    done = subprocess.run(
        asked, cwd=job.folder, env=job.env, input=commands, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(("here", 5, together)) in done.stdout
    assert "feeds.py" in done.stdout
    wrong = job.zrun("batches", "--replay", batch[:-8] + "00000000")
    assert wrong.returncode == 1
    assert f"batch 5 is {batch} now" in wrong.stderr


@pytest.mark.long
def test_a_bad_loss_can_end_the_job_at_once(make_job: MakeJob) -> None:
    job = make_job(f"{FEEDS} --nan 33 --steps 12", extra="data: {on_bad_loss: stop}\n", every=4)
    assert job.run() == 100, job.story()
    assert len(job.verdict["attempts"]) == 1
    assert "data.on_bad_loss is stop" in job.verdict["reason"]
    assert job.verdict["quarantined"] == []
