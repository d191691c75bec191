"""A job whose ranks are killed and begin anew is the undisturbed one, bit for bit: losses, samples, rates, scale, draws
and everything it holds at the end, for each strategy, wherever it is interrupted.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.state.stories import Told, attempts

MIDDLE, LAST, FIRST, INSIDE = (3, 2), (5, 1), (6, 1), (8, 1)
"""(step, part) at which a rank kills itself: 5 steps make an epoch; a step has several parts, and only after the last
one are gradients reduced."""
TWICE = ((7, 1), (9, 1))
QUICK = [("ddp", 3), ("zero3", 3), ("hsdp", 4)]
STEPS = 9


def story(
    name: str, world: int, strategy: str, *kills: tuple[int, int], total: int = STEPS, **options: Any
) -> dict[str, Any]:
    told = attempts(world, strategy, *kills, total=total)
    return {"name": name, "micro": 1, "width": 16, "plain": strategy == "tp", **options, "attempts": told}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    stories = []
    for strategy, world in QUICK:
        kills = (MIDDLE, LAST, FIRST, INSIDE) if strategy == "ddp" else (INSIDE,)
        stories.append(story(f"{strategy}-{world}", world, strategy))
        stories.append(story(f"{strategy}-{world}-broken", world, strategy, *kills))
    return Told(tmp_path_factory.mktemp("resume"), stories)


@pytest.mark.e2e
@pytest.mark.parametrize(("strategy", "world"), QUICK)
def test_a_job_that_was_killed_ends_as_if_it_had_not_been(told: Told, strategy: str, world: int) -> None:
    name = f"{strategy}-{world}"
    told.assert_same(name, f"{name}-broken", world, STEPS)
    assert told.resumed(f"{name}-broken") == ([0, 2, 4, 5, 7] if strategy == "ddp" else [0, 7])
    assert told.statuses(f"{name}-broken", 1)[-1] == -9
    samples = [sorted(s for rank in range(world) for s in told.steps(name, rank)[n]["samples"]) for n in range(5)]
    assert len({sample for step in samples for sample in step}) == 26, "an epoch is every sample"


@pytest.mark.e2e
def test_a_step_that_the_scaler_skips_is_a_step_and_its_scale_comes_back(told: Told) -> None:
    scales = [step["scale"]["scale"] for step in told.steps("ddp-3", 0)]
    assert scales[1:5] == [32.0, 16.0, 16.0, 32.0], "doubled after two good steps, halved by the third"
    assert told.steps("ddp-3-broken", 0)[-1]["scale"] == told.steps("ddp-3", 0)[-1]["scale"]


@pytest.mark.e2e
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_scripts_own_streams_go_on_where_they_were(tmp_path: Path, workers: int) -> None:
    options: dict[str, Any] = {"rng": "stream", "workers": workers, "persistent": False}
    told = Told(
        tmp_path,
        [
            story("straight", 2, "ddp", **options),
            story("broken", 2, "ddp", INSIDE, **options),
            story("derived", 2, "ddp"),
        ],
    )
    told.assert_same("straight", "broken", 2, STEPS)
    drawn = [[step["drawn"] for step in told.steps("straight", rank)] for rank in range(2)]
    flat = [number for rank in drawn for step in rank for number in step]
    assert len(set(flat)) == len(flat), "no stream stands still or is another rank's"
    assert drawn[0] != [step["drawn"] for step in told.steps("derived", 0)]


@pytest.mark.e2e
@pytest.mark.long
def test_streams_and_other_values_of_each_rank_are_said_to_be_lost_at_another_world_size(tmp_path: Path) -> None:
    told = Told(
        tmp_path,
        [
            {
                "name": "fewer", "rng": "stream", "micro": 1,
                "attempts": [
                    {"world": 3, "strategy": "ddp", "kill": [3, 1]}, {"world": 2, "strategy": "ddp", "until": 4},
                ],
            }
        ],
    )  # fmt: skip
    assert told.statuses("fewer", 2) == [0, 0]
    said = told.output("fewer", 2)
    assert "random streams belong to the 3 ranks that saved them" in said
    assert "which had values of their own; rank 0's are used: extra:ema/module.norm.running_mean, " in said
    after = [told.steps("fewer", rank)[-1]["drawn"] for rank in range(2)]
    assert after[0] != after[1], "each rank draws its own"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "world"),
    [(s, w) for w in (2, 3, 4) for s in ("ddp", "zero1", "zero2", "zero3")] + [("hsdp", 4), ("tp", 4)],
)
def test_every_strategy_wherever_it_is_interrupted_and_however_it_loads(
    tmp_path: Path, strategy: str, world: int
) -> None:
    interruptions: dict[str, Any] = {
        "middle": [MIDDLE],
        "last": [LAST],
        "first": [FIRST],
        "twice": TWICE,
        "inside": [INSIDE],
    }
    loaders: dict[str, Any] = {
        "none": {},
        "fresh": {"workers": 2, "persistent": False},
        "kept": {"workers": 2, "persistent": True},
    }
    broken = {f"{i}-{how}": (kills, options) for i, kills in interruptions.items() for how, options in loaders.items()}
    stories = [story("straight", world, strategy, total=13)]
    stories += [story(name, world, strategy, *kills, total=13, **options) for name, (kills, options) in broken.items()]
    told = Told(tmp_path, stories, timeout_s=800)
    for name, (kills, _) in broken.items():
        told.assert_same("straight", name, world)
        assert told.resumed(name) == [0, *(step - 1 for step, _ in kills)]
