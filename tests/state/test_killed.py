"""Ranks are killed at each named point of a save: what is on disk is right, and at most one cadence is lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zrun.state.kill_points import POINTS

PROGRAM = Path(__file__).with_name("killed_program.py")
CADENCE, TOTAL = 2, 14
FIRST_ALONE = {"manifest", "rename", "prune"}
"""What rank 0 does for all."""


def run(folder: Path, kills: list[str], within_s: float) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), str(folder / "kills"), *kills]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: dict[str, Any]) -> None:
    assert -9 in found["killed"], found
    assert found["resumed"] == [0, 0], found
    assert found["right"] == [True, True], found
    assert found["ended"] == [TOTAL, TOTAL], found
    assert found["left"] == [], found
    first, second = found["began"]
    requested = found["over"] // CADENCE * CADENCE
    assert first == second, found
    assert requested - CADENCE <= first <= found["computed"], found


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_kill_at_any_point_of_a_save_loses_one_cadence_at_most(tmp_path: Path) -> None:
    kills = [f"{point}:3:{who}" for point, who in zip(POINTS, ("1", "0", "1", "group", "0", "0", "0"), strict=True)]
    found = run(tmp_path, kills, 500)
    assert [told["kill"] for told in found] == kills
    for told in found:
        check(told)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", POINTS)
def test_kills_of_one_rank_or_all_at_every_save_of_a_run(tmp_path: Path, point: str) -> None:
    whom = ("0", "group") if point in FIRST_ALONE else ("0", "1", "group")
    kills = [f"{point}:{number}:{who}" for number in range(1, TOTAL // CADENCE + 2) for who in whom]
    assert len(kills) >= 15
    for told in run(tmp_path, kills, 1700):
        check(told)
