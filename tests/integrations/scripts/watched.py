"""What the scripts of exact resume have in common: data that draws random numbers, a death at a step, losses on disk."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch

RANK = int(os.environ["RANK"])
OURS = os.environ.get("OURS") == "1"
PAUSE_S = float(os.environ.get("PAUSE_S", "0.02"))
"""Each step takes so long at least."""
DIES = tuple(int(part) for part in os.environ.get("DIES", "-1:0").split(":"))
"""rank:step"""


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Which sample it is can be seen, and every reading of it draws."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index / 64) + torch.rand(8)


def network() -> torch.nn.Module:
    parts = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2)]
    return torch.nn.Sequential(*parts, torch.nn.Linear(64, 1))


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    return loss


def maybe_die(out: Path, step: int) -> None:
    mark = out / "died"
    if (RANK, step) == DIES and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)


def record(out: Path, step: int, loss: torch.Tensor) -> None:
    with (out / f"losses-{RANK}").open("a") as file:
        file.write(f"{step} {float(loss.detach()).hex()}\n")


def say_weights(model: torch.nn.Module) -> None:
    parts = b"".join(bytes(p.detach().contiguous().view(torch.uint8).flatten().tolist()) for p in model.parameters())
    print(f"weights sha256={hashlib.sha256(parts).hexdigest()}", flush=True)
