"""A rank dies, raises, stops or sleeps: the job names it, comes back, and ends with the same weights, bit for bit."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 30 --pause 0.05"
HYBRID = (
    f"{ROOT / 'examples/hybrid/train.py'} --layers 4 --hidden 32 --heads 2 --batch 8 --seq 64 --steps 24 --strategy"
)
CONVNET = f"{ROOT / 'examples/convnet/convnet.py'} --steps 24 --strategy"
ENDS = re.compile(r'"ending": \{')
PATIENT = "watchdog: {patience: 2s}\n"

MakeJob = Callable[..., Any]
WeightsOf = Callable[..., str]
Survive = Callable[..., Any]


def durable_steps(job: Any, attempt: int) -> list[int]:
    """Steps whose checkpoints the coordinator was told to be on disk."""
    events = [json.loads(line) for line in (job.run_dir / "events.jsonl").read_text().splitlines()]
    told = [one for one in events if one.get("event") == "CheckpointCommitted"]
    return [one["step"] for one in told if one["attempt"] == attempt]


@pytest.fixture
def survive(make_job: MakeJob, weights_of: WeightsOf) -> Survive:
    """`survive(run, kind, rank, step)`: one fault, two attempts, the weights of an undisturbed run. Gives the job."""

    def survived(run: str, kind: str, rank: int, step: int, nproc: int = 2) -> Any:
        expected = weights_of(run, nproc)
        job = make_job(run, fault=f"{kind}:{rank}:{step}", extra=PATIENT, nproc=nproc, standby=True)
        assert job.run() == 0, job.story()
        verdict = job.verdict
        assert verdict["state"] == "SUCCEEDED"
        assert len(verdict["attempts"]) == 2, job.story()
        incident = verdict["incidents"][0]
        assert incident["rank"] == rank, job.story()
        assert incident["step"] == step, job.story()
        assert incident["batch"].startswith("e"), job.story()
        assert incident["because"], job.story()
        resumed = verdict["attempts"][1]["resumed_from"]
        if resumed["tier"] == "disk":
            # The newest save that was due may still have been on its way to the disk.
            newest = (step - 1) // 10 * 10
            assert resumed["step"] in {newest, max(0, newest - 10)}
        assert max(durable_steps(job, attempt=1)) <= resumed["step"] < step, "what was once on disk is not passed over"
        assert job.weights() == expected, job.story()
        return job

    return survived


def test_a_killed_rank_is_named_and_the_toy_ends_with_the_same_weights(survive: Survive) -> None:
    incident = survive(TOY, "kill", 1, 17).verdict["incidents"][0]
    assert incident["class"] == "crash"
    assert incident["signal"] == "SIGKILL"


@pytest.mark.long
def test_a_raise_is_told_with_its_type_place_and_batch(survive: Survive) -> None:
    incident = survive(TOY, "raise", 1, 13).verdict["incidents"][0]
    assert incident["exception"].startswith("ValueError")
    assert "with_fault.py" in incident["where"]


def test_a_stopped_rank_is_acted_on_at_once(survive: Survive) -> None:
    incident = survive(TOY, "stop", 0, 14).verdict["incidents"][0]
    assert incident["class"] == "hang"


def test_a_rank_asleep_before_its_all_reduce_is_named_and_ended_after_patience(survive: Survive) -> None:
    job = survive(TOY, "sleep", 1, 19)
    incident = job.verdict["incidents"][0]
    assert incident["class"] == "hang"
    assert incident["signal"] is None, "what ended it in the end was zrun's own signal"
    assert "all_reduce" in incident["headline"], incident
    assert (incident["detected_s"] or 0) < 10
    source = (SCRIPTS / "with_fault.py").read_text().splitlines()
    asleep = 1 + next(n for n, line in enumerate(source) if "time.sleep(3600)" in line)
    assert (incident["where"] or "").startswith(f"{SCRIPTS / 'with_fault.py'}:{asleep}"), incident
    folder = job.run_dir / "incidents" / "0001"
    roll_call = (folder / "roll-call.txt").read_text()
    assert "rank 0" in roll_call
    assert "rank 1" in roll_call
    assert "all_reduce" in roll_call
    assert f"line {asleep} in trip" in (folder / "stacks" / "rank-1.txt").read_text()
    assert "toy.py" in (folder / "stacks" / "rank-0.txt").read_text()
    evidence = [p.stat().st_mtime for p in (folder / "stacks").iterdir()]
    assert max(evidence) < ended_at(job), "stacks are on disk before the first signal"


def ended_at(job: Any) -> float:
    """When zrun began to end attempt 1: the moment the coordinator left SETTLING."""
    for line in (job.run_dir / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if ENDS.search(line):
            return datetime.fromisoformat(event["ts"]).timestamp()
    raise AssertionError(job.story())


@pytest.mark.parametrize(
    ("script", "strategy", "kind", "rank", "step"),
    [
        pytest.param(HYBRID, "ddp", "kill", 0, 13, marks=pytest.mark.long),
        (HYBRID, "zero3", "raise", 1, 17),
        pytest.param(CONVNET, "ddp", "sleep", 1, 15, marks=pytest.mark.long),
    ],
    ids=["hybrid-ddp-kill", "hybrid-zero3-raise", "convnet-ddp-sleep"],
)
def test_the_examples_end_with_the_same_weights(
    survive: Survive, script: str, strategy: str, kind: str, rank: int, step: int
) -> None:
    survive(f"{script} {strategy}", kind, rank, step)


@pytest.mark.long
def test_three_ranks_lose_one_and_end_with_the_same_weights(survive: Survive) -> None:
    incident = survive(TOY, "kill", 2, 17, nproc=3).verdict["incidents"][0]
    assert incident["signal"] == "SIGKILL"


KINDS = ("kill", "raise", "stop", "sleep", "exit")
Triple = tuple[str, str, str, int, int]


def drawn(seed: int) -> list[Triple]:
    """20 faults by lot: the first draw in which every kind comes twice and ddp and zero3 come three times."""
    lot = random.Random(seed)
    steps = [step for step in range(3, 24) if step % 10]
    while True:
        scripts = [("hybrid", lot.choice(("ddp", "zero1", "zero2", "zero3"))) for _ in range(14)]
        scripts += [("convnet", lot.choice(("ddp", "zero3"))) for _ in range(6)]
        triples = [(*script, lot.choice(KINDS), lot.randrange(2), lot.choice(steps)) for script in scripts]
        kinds = Counter(kind for _, _, kind, _, _ in triples)
        hybrid = Counter(strategy for script, strategy, *_ in triples if script == "hybrid")
        enough = min(kinds[kind] for kind in KINDS) >= 2 and hybrid["ddp"] >= 3 and hybrid["zero3"] >= 3
        if enough and len(set(triples)) == len(triples):
            return triples


def words(triple: Triple) -> str:
    script, strategy, kind, rank, step = triple
    return f"{script}-{strategy}-{kind}-rank{rank}-step{step}"


@pytest.mark.long
@pytest.mark.parametrize("triple", drawn(2026), ids=words)
def test_every_strategy_and_fault_ends_with_the_same_weights(survive: Survive, triple: Triple) -> None:
    script, strategy, kind, rank, step = triple
    survive(f"{HYBRID if script == 'hybrid' else CONVNET} {strategy}", kind, rank, step)
