"""What ranks write: offline verification digests each byte of it once, and export makes the same tensors of it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from zrun.core import verify as checking
from zrun.core.export import export
from zrun.state import safetensors_file
from zrun.state.checkpoints import Checkpoints
from zrun.state.parts import Parts
from zrun.state.progress import Progress


def test_a_checkpoint_of_a_real_optimizer_is_digested_once_and_exported_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 2, dtype=torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(8, 40)).sum().backward()
    optimizer.step()
    made = Checkpoints(tmp_path, job="toy-1", name="toy", attempt=1, rank=0, world_size=1, seed=0, warn=print)
    made.claim(0)
    saved = made.save(Parts(model, optimizer), Progress(step=7), {})
    digested: list[int] = []
    real = checking.digest

    def digest(handle: int, start: int, end: int, *more: object) -> bool:
        digested.append(end - start)
        return real(handle, start, end, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(checking, "digest", digest)
    seen = checking.verify(saved.path)
    assert seen.ok
    assert sum(digested) == seen.bytes, "nothing twice, and nothing left out"

    export(saved.path, tmp_path / "out", consolidate=False, only_model=True)
    exported = safetensors_file.read(tmp_path / "out" / "model.safetensors")
    assert set(exported) == {f"model/{name}" for name in model.state_dict()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(exported[f"model/{name}"], tensor)
