"""What `zrun plan` is given in tests: the example's hybrid model, small, and one forward with its loss."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "hybrid"))

from model import HybridLM, Shape, loss_of

TOKENS = 64


def build() -> HybridLM:
    return HybridLM(Shape(layers=8, hidden=256, heads=4, dropout=0.0))


def loss(model: nn.Module, micro_batch: int) -> Tensor:
    return loss_of(model, torch.randint(0, 256, (micro_batch, TOKENS + 1)))


def not_a_module() -> str:
    return "no module"
