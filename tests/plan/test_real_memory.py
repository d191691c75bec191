"""The memory model against the example's real training on CPU: state within 10 %, peaks within 25 %."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from zrun.plan.children import run
from zrun.plan.memory import Habits, peak, persistent
from zrun.plan.recipe import RECIPES
from zrun.plan.source import Place, Sized, sized
from zrun.plan.strategies import STRATEGIES, Choice
from zrun.spec.job import Plan

HERE = Path(__file__).parent
CALLED = {"ddp": "ddp", "zero1": "zero1", "zero2": "fsdp-noreshard", "zero3": "zero3", "hsdp": "hsdp"}
"""The example's names -> ours: its zero2 is FSDP2 without reshard."""


def trained(ranks: int, wrap: str, micro_batch: int, strategies: list[str]) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1",
               "--master-port", str(port), str(HERE / "real_peaks.py"), str(micro_batch), wrap, ",".join(strategies)]  # fmt: skip
    found: dict[str, Any] = run(command, str(HERE), {**os.environ, "OMP_NUM_THREADS": "1"}, "the real training", "")
    return found


def predicted(wrap: str) -> Sized:
    told = Plan(model="hybrid_model:build", loss="hybrid_model:loss", wrap=wrap)
    return sized(told, Place(str(HERE), sys.executable, dict(os.environ)))


def compare(ranks: int, wrap: str, micro_batch: int, strategies: list[str]) -> None:
    model = predicted(wrap)
    made = RECIPES["fp32"]
    habits = Habits(optimizer="loop")  # torch's AdamW takes foreach on CUDA only
    for name, real in trained(ranks, wrap, micro_batch, strategies).items():
        strategy = STRATEGIES[CALLED[name]]
        group = (ranks // 2 if strategy.grouped else ranks) if strategy.optimizer else 1
        choice = Choice(strategy, group)
        state = persistent(choice, model.model, made)
        for part in ("parameters", "gradients", "optimizer"):
            assert getattr(state, part) == pytest.approx(real[part], rel=0.1), (name, part)
        high = peak(choice, model.model, made, habits, model.counted, micro_batch).total
        assert high == pytest.approx(real["peak"], rel=0.25), (name, high / real["peak"])


@pytest.mark.long
@pytest.mark.e2e
def test_two_ranks_take_what_was_planned() -> None:
    compare(2, "layer", 1, ["ddp", "zero3"])


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("wrap", ["layer", "superblock"])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_four_ranks_take_what_was_planned_with_every_strategy(wrap: str, micro_batch: int) -> None:
    compare(4, wrap, micro_batch, list(CALLED))
