"""Room for checkpoints is looked at before the first step: what one needs, what all need, and what is free."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core import written
from torch import nn

from zrun.core import free_space
from zrun.state import room
from zrun.state.checkpoints import Checkpoints
from zrun.state.disk_errors import DiskFullError
from zrun.state.parts import Parts
from zrun.state.progress import Progress
from zrun.state.room import Outlook, Retention


def outlook(needed: int, free: int, held: int = 0, copies: int = 4) -> Outlook:
    return Outlook(Path("/data"), needed, free, held, copies)


def trained(kind: Any, **options: Any) -> tuple[Parts, Parts]:
    """The same state before its first step and after it."""
    both = []
    for steps in (0, 1):
        model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30))
        model[1].bias.requires_grad_(False)
        optimizer = kind(model.parameters(), lr=0.1, **options)
        for _ in range(steps):
            model(torch.randn(8, 40)).sum().backward()
            optimizer.step()
        both.append(Parts(model, optimizer))
    return both[0], both[1]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {}), (torch.optim.Adam, {"amsgrad": True}), (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.RMSprop, {"centered": True, "momentum": 0.1}),
        (torch.optim.Adagrad, {}), (torch.optim.NAdam, {}), (torch.optim.RAdam, {}), (torch.optim.Adadelta, {}),
        (torch.optim.Adamax, {}), (torch.optim.ASGD, {}), (torch.optim.Rprop, {}),
    ],
)  # fmt: skip
def test_what_is_estimated_before_the_first_step_is_what_is_saved_after_it(
    kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    before, after = trained(kind, **options)
    made = Checkpoints(tmp_path, job="toy-1", name="toy", attempt=1, rank=0, world_size=1, seed=0, warn=print)
    made.claim(0)
    saved = made.save(after, Progress(step=1), {}).bytes
    headers = 6000
    assert room.estimate(before) <= saved <= room.estimate(before) + headers
    assert abs(room.estimate(after) - room.estimate(before)) < 100, "step counters and the like"


def test_the_newest_checkpoint_tells_more_than_an_estimate(tmp_path: Path) -> None:
    written.write(tmp_path, 1)
    found = room.look(trained(torch.optim.SGD)[0], tmp_path, Retention(1))
    size = sum(path.stat().st_size for path in tmp_path.glob("*/*.safetensors"))
    assert (found.needed, found.held) == (size, size)


def test_the_most_there_are_at_once_is_counted() -> None:
    assert Retention(3).copies == 4
    assert Retention(3, 1000, 2000).copies == 4
    assert Retention(3, 1000, 10_000).copies == 11
    assert Retention(0).copies == 2


def test_both_numbers_are_said() -> None:
    assert str(outlook(100, 99).refusal()) == "disk full: 100 bytes needed for a checkpoint in /data, 99 bytes free"
    assert outlook(100, 100).refusal() is None
    assert (outlook(100, -1).refusal(), outlook(100, -1).warning()) == (None, ""), "nobody can say"
    assert outlook(100, 399).warning() == (
        "checkpoint.keep will not fit: about 400 bytes needed for 4 checkpoints of 100 bytes in /data, 399 bytes free; "
        "lower it, or make room"
    )
    assert outlook(100, 400).warning() == ""
    assert outlook(100, 150, held=250).warning() == "", "those that are there will go"
    assert (
        outlook(100, 149, held=250)
        .warning()
        .endswith("149 bytes free beside 250 bytes of checkpoints; lower it, or make room")
    )


def test_a_run_that_begins_is_refused_and_one_that_goes_on_is_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, _ = trained(torch.optim.AdamW)
    needed = room.estimate(parts)
    told: list[str] = []
    monkeypatch.setattr(free_space, "free_bytes", lambda path: needed - 1)
    with pytest.raises(DiskFullError, match=rf"disk full: {needed} bytes needed .*, {needed - 1} bytes free"):
        room.check(parts, tmp_path, Retention(3), resumed=False, warn=told.append)
    room.check(parts, tmp_path, Retention(3), resumed=True, warn=told.append)
    assert [f"{needed - 1} bytes free" in text for text in told] == [True]
    monkeypatch.setattr(free_space, "free_bytes", lambda path: needed * 3)
    room.check(parts, tmp_path, Retention(3), resumed=False, warn=told.append)
    assert told[1].startswith(f"checkpoint.keep will not fit: about {needed * 4} bytes needed for 4 checkpoints")
    monkeypatch.setattr(free_space, "free_bytes", lambda path: needed * 4)
    room.check(parts, tmp_path, Retention(3), resumed=False, warn=told.append)
    assert len(told) == 2
