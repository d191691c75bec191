"""A checkpoint goes on at any number of ranks and under another strategy; one that does not fit is refused by key."""

from math import fsum
from pathlib import Path
from typing import Any

import pytest
from tests.state.stories import Told

PLAIN = {"plain": True, "width": 16}
"""Nothing is random, and nothing is each rank's own: all worlds compute the same, to the order of sums."""
Place = tuple[str, int]
QUICK: list[Place] = [("zero3", 3), ("ddp", 2), ("zero1", 3)]
LONG: dict[str, list[Place]] = {
    "ddp to fsdp and back": [("ddp", 4), ("zero3", 2), ("ddp", 3), ("zero2", 4)],
    "ddp": [("ddp", 4), ("ddp", 2), ("ddp", 3), ("ddp", 4)],
    "zero1": [("zero1", 4), ("zero1", 2), ("zero1", 3), ("zero1", 4)],
    "zero3": [("zero3", 4), ("zero3", 2), ("zero3", 3), ("zero3", 4)],
    "hsdp": [("hsdp", 4), ("zero1", 2), ("zero3", 3), ("hsdp", 4)],
}
ENDS = (3, 6, 9, 13)


def moved(name: str, places: list[Place]) -> dict[str, Any]:
    ends = [*ENDS[: len(places) - 1], 13]
    told = [
        {"world": world, "strategy": strategy, "until": end, "full": True}
        for (strategy, world), end in zip(places, ends, strict=True)
    ]
    return {"name": name, "attempts": told, **PLAIN}


def alone() -> dict[str, Any]:
    return {"name": "alone", "attempts": [{"world": 1, "strategy": "ddp"}], **PLAIN}


def global_losses(told: Told, story: str, worlds: int = 4) -> dict[int, float]:
    """Per step the mean over the global batch: each rank's weighted losses, averaged."""
    found: dict[int, list[float]] = {}
    world_of: dict[int, int] = {}
    for rank in range(worlds):
        if not (told.folder / story / f"rank-{rank}.jsonl").exists():
            continue
        for step in told.steps(story, rank):
            found.setdefault(step["step"], []).extend(float.fromhex(loss) for loss in step["losses"])
            world_of[step["step"]] = step["world"]
    return {step: fsum(losses) / world_of[step] for step, losses in found.items()}


def samples(told: Told, story: str, worlds: int = 4) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank in range(worlds):
        if (told.folder / story / f"rank-{rank}.jsonl").exists():
            for step in told.steps(story, rank):
                found.setdefault(step["step"], []).extend(step["samples"])
    return found


def check(told: Told, name: str, places: list[Place]) -> None:
    full = [line for line in told.lines(name) if "full" in line]
    assert told.resumed(name) == [0, *ENDS[: len(places) - 1]], told.output(name, len(places))
    assert len(full) == 2 * len(places), told.output(name, len(places))
    for before, after in zip(full[1::2], full[2::2], strict=False):
        assert before["full"] == after["full"], "what was loaded is what was saved, put together"
        assert any(key.endswith("/exp_avg_sq") for key in after["full"])
    for attempt, (_, world) in enumerate(places, 1):
        assert told.statuses(name, attempt) == [0] * world
    if "tp" in dict(places):
        return
    expected, seen = global_losses(told, "alone"), global_losses(told, name)
    assert list(expected) == list(range(1, 14))
    assert seen == pytest.approx(expected, rel=1e-4)
    assert samples(told, name) == samples(told, "alone"), "the global batch and its order stay what they were"
    batches = {step["step"]: step["batch"] for step in told.steps(name, 0)}
    assert batches == {step["step"]: step["batch"] for step in told.steps("alone", 0)}
    rates = {step["step"]: step["rates"] for step in told.steps(name, 0)}
    assert rates == {step["step"]: step["rates"] for step in told.steps("alone", 0)}


@pytest.mark.e2e
def test_a_job_goes_on_with_another_number_of_ranks_and_another_strategy(tmp_path: Path) -> None:
    check(Told(tmp_path, [alone(), moved("moved", QUICK)]), "moved", QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", list(LONG))
def test_from_four_ranks_to_two_to_three_to_four(tmp_path: Path, name: str) -> None:
    check(Told(tmp_path, [alone(), moved(name, LONG[name])]), name, LONG[name])


@pytest.mark.long
def test_tensor_parallel_shards_under_fully_shard_load_without_it(tmp_path: Path) -> None:
    places = [("tp", 4), ("zero3", 3), ("tp", 4)]
    check(Told(tmp_path, [moved("tp", places)]), "tp", places)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "parameters": ({"width": 18}, "body.0.0.weight: saved F32[16, 16], now F32[18, 18]", "parameters"),
    "scheduler": ({"scheduler": "lambda"}, "scheduler:0: saved SequentialLR, now LambdaLR", "scheduler:0"),
    "optimizer": ({"optimizer": "Adam"}, "optimizer:0: saved AdamW, now Adam", "optimizer:0"),
    "left out": ({"leave_out": ["scheduler"]}, "scheduler:0 was saved, but nothing of that name", "scheduler:0"),
    "steps": ({"total": 15}, "total_steps: saved 13, now 15", "total_steps"),
    "rng": ({"settings": {"rng": "stream"}}, "rng: saved 'derived', now 'stream'", "rng"),
    "seed": ({"settings": {"seed": 8}}, "seed: saved 7, now 8", "seed"),
}


@pytest.mark.e2e
def test_what_does_not_fit_is_refused_by_key_and_each_key_can_be_allowed(tmp_path: Path) -> None:
    stories = []
    for name, (change, _, key) in REFUSED.items():
        other = {"world": 2, "strategy": "ddp", "change": change, "until": 4} | change
        allowed = other | {"settings": change.get("settings", {}) | {"allow_changed": [key]}}
        first = {"world": 2, "strategy": "ddp", "until": 2}
        stories.append({"name": name, "attempts": [first, other, allowed], **PLAIN})
    missing = {"world": 2, "strategy": "ddp", "until": 2, "change": {"leave_out": ["scheduler"]}}
    stories.append({"name": "missing", "attempts": [missing, {"world": 2, "strategy": "ddp"}], **PLAIN})
    told = Told(tmp_path, stories)
    for name, (_, text, key) in REFUSED.items():
        for rank in range(2):
            (failed,) = [line for line in told.lines(name, rank) if "failed" in line]
            assert failed["attempt"] == 2
            assert text in failed["failed"], name
            assert f"--allow-changed {key}" in failed["hint"], name
        assert told.statuses(name, 3) == [0, 0], told.output(name, 3)
        assert f"{text}" in told.output(name, 3), "what was allowed is told all the same"
        assert told.resumed(name) == [0, 2]
    (failed,) = told.every("missing", "failed")
    assert "scheduler:0 state missing" in failed
