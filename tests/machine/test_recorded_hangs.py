"""Real jobs once more, as the judge was shown them: the culprit is named as what it was, and the healthy are left alone.

record_decks.py made the recordings and knows what each of them has to give.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.machine.record_decks import INTO, RECORDINGS, Recording

from zrun.core.rows import RankRow, unpack_rows
from zrun.core.standing import Standing
from zrun.machine.events import Suspected, Suspended
from zrun.machine.hang import HangJudge
from zrun.machine.limits import Learned
from zrun.spec.job import Watchdog

Renamed = Callable[[int], int]


def same(rank: int) -> int:
    return rank


def replay(looks: list[dict[str, Any]], renamed: Renamed = same) -> list[Suspected | Suspended]:
    """All that a judge says who knows what the recorded one had learned before."""
    step_s, warm_s = looks[0]["learned"]
    judge = HangJudge(Watchdog(), looks[0]["attempt"], Learned(step_s, warm_s))
    said: list[Suspected | Suspended] = []
    for look in looks:
        if look["attempt"] != looks[0]["attempt"]:
            break
        rows = {renamed(row.rank): _as(row, renamed(row.rank)) for row in unpack_rows(base64.b64decode(look["rows"]))}
        said += judge.look(
            rows, look["now"], dict.fromkeys(rows, look["age"]),
            {renamed(int(rank)): node for rank, node in look["nodes"].items()}, look["resumed"],
            {renamed(int(rank)): name for rank, name in look["names"].items()},
            {renamed(int(rank)): [Standing.unpack(one) for one in at] for rank, at in look["standings"].items()},
        )  # fmt: skip
    return said


def _as(row: RankRow, rank: int) -> RankRow:
    return replace(row, rank=rank)


def looks_of(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((INTO / f"{name}.json").read_text())
    return found


def sharpest(said: list[Suspected | Suspended]) -> Suspected:
    """The last word before anything was taken back."""
    named = [one for one in said if isinstance(one, Suspected) and not one.cleared]
    assert named, "nobody was named"
    return named[-1]


@pytest.mark.parametrize("name", [name for name, one in RECORDINGS.items() if one.kind])
def test_a_recorded_hang_is_named(name: str) -> None:
    wanted: Recording = RECORDINGS[name]
    said = sharpest(replay(looks_of(name)))
    assert (said.kind, tuple(said.ranks)) == (wanted.kind, wanted.ranks)
    assert said.provable is wanted.provable
    assert said.confidence == ("proved" if wanted.provable else "likely")
    assert said.because


@pytest.mark.parametrize("name", [name for name, one in RECORDINGS.items() if not one.kind])
def test_a_recorded_healthy_job_is_left_alone(name: str) -> None:
    said = replay(looks_of(name))
    assert not [one for one in said if isinstance(one, Suspected)]
    assert bool(said) is bool(RECORDINGS[name].freeze), "a suspend is said, and nothing else"


@pytest.mark.parametrize("name", [name for name, one in RECORDINGS.items() if one.kind])
def test_naming_does_not_depend_on_the_numbers_of_ranks(name: str) -> None:
    looks, wanted = looks_of(name), RECORDINGS[name]

    def mirrored(rank: int) -> int:
        return wanted.nproc - 1 - rank

    said = sharpest(replay(looks, mirrored))
    assert said.kind == wanted.kind
    assert sorted(map(mirrored, said.ranks)) == sorted(wanted.ranks)


def test_every_recording_is_there_and_none_is_too_many() -> None:
    assert {path.stem for path in Path(INTO).glob("*.json")} == set(RECORDINGS)
    assert len(RECORDINGS) >= 30
