"""One rank of the exactness tests: `exact_program.py FOLDER RANK WORLD PHASES CASES`, both separated by commas.

Phase `straight` trains each case undisturbed and writes its losses and weights; `saving` does the same, commits a
checkpoint at step K and ends there; `resumed`, in new processes, restores and goes on to the end.
"""

# ruff: noqa: E402
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
sys.modules["numpy"] = None  # type: ignore[assignment]  # a rank's python may have torch alone

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from zrun.core.manifest import Manifest
from zrun.state.checkpoints import Checkpoints
from zrun.state.parts import Parts
from zrun.state.progress import Progress
from zrun.state.rng import seed_step
from zrun.state.source import Source
from zrun.state.tensor_bytes import view_of

STEPS = 7
SAVED_AT = 4
WIDTH = 33


class Tied(nn.Module):
    """An embedding that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.embed(x)
        for layer in self.body:
            hidden = layer(hidden)
        return self.head(hidden)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(5 * 36, 11)
    )


def wide() -> nn.Module:
    return nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(129, 129), nn.Dropout(0.1), nn.Tanh())])


class Run:
    """Model, optimizer, scheduler and scaler of one case."""

    def __init__(self, case: str, rank: int) -> None:
        torch.manual_seed(5)
        self.case = case
        self.rank = rank
        self.scaler: Any = None
        self.model: nn.Module = {"ddp": convnet, "wide": wide}.get(case, Tied)()
        if case in {"ddp", "wide", "zero1"}:
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=0.15 if case == "wide" else 25)
        else:
            self.shard(case)
        trained = list(self.model.parameters())
        if case == "zero1":
            self.optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(trained, torch.optim.AdamW, lr=3e-3)
        else:
            half = len(trained) // 2
            groups: list[dict[str, Any]] = [
                {"params": trained[:half]},
                {"params": trained[half:], "weight_decay": 0.0, "lr": 1e-3},
            ]
            self.optimizer = torch.optim.AdamW(groups, lr=3e-3)
        if case == "ddp":
            self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
            first = LinearLR(self.optimizer, 0.3, total_iters=3)
            second = CosineAnnealingLR(self.optimizer, STEPS)
            self.scheduler: Any = SequentialLR(self.optimizer, [first, second], milestones=[3])
        else:
            self.scheduler = LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.93**step)
        self.parts = Parts(self.model, self.optimizer, self.scheduler, self.scaler)

    def shard(self, case: str) -> None:
        options: dict[str, Any] = {"reshard_after_forward": case != "zero2"}
        world = dist.get_world_size()
        options["mesh"] = (
            init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
            if case == "hsdp"
            else init_device_mesh("cpu", (world,))
        )
        for layer in self.model.body:  # type: ignore[union-attr]
            fully_shard(layer, **options)
        fully_shard(self.model, **options)

    def step(self, number: int) -> str:
        seed_step(7, self.rank, number)
        generator = torch.Generator().manual_seed(1000 * number + self.rank)
        self.optimizer.zero_grad(set_to_none=True)
        if self.case == "wide":
            loss = (self.model(torch.randn(6, 129, generator=generator)) ** 2).mean()
        elif self.case == "ddp":
            images = torch.randn(6, 3, 8, 8, generator=generator)
            loss = nn.functional.cross_entropy(self.model(images), torch.randint(0, 11, (6,), generator=generator))
        else:
            tokens = torch.randint(0, 11, (4, 9), generator=generator)
            loss = nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.scheduler.step()
        rates = [group["lr"].hex() for group in self.optimizer.param_groups]
        scale = self.scaler.get_scale() if self.scaler else None
        return json.dumps([number, loss.item().hex(), rates, scale])

    def weights(self) -> dict[str, str]:
        """A digest of every parameter, buffer and moment that this rank holds."""
        blocks, _ = self.parts.flatten()
        return {b.name: hashlib.sha256(bytes(view_of(b.local.detach().contiguous()))).hexdigest()[:16] for b in blocks}


def unprimed(folder: Path, rank: int, world: int) -> list[str]:
    """The same resume without the cure, to show that the comparison would see the difference."""
    run = Run("wide", rank)
    run.parts.resume = lambda source: []  # type: ignore[method-assign]
    Checkpoints(
        folder / f"wide-{world}", job="exact-1", name="exact", attempt=3, rank=rank, world_size=world, seed=7,
        fresh=False, allow_changed=(), warn=print,
    ).restore(run.parts, "auto", {})  # fmt: skip
    return [run.step(number) for number in range(SAVED_AT + 1, STEPS + 1)]


def resharded(folder: Path, rank: int, world: int) -> dict[str, bool]:
    """Load what two ranks saved; compare parameters and moments with the whole, then take a step."""
    run = Run("zero3", rank)
    Checkpoints(
        folder / "zero3-2", job="exact-1", name="exact", attempt=3, rank=rank, world_size=world, seed=7,
        fresh=False, allow_changed=(), warn=print,
    ).restore(run.parts, "auto", {})  # fmt: skip
    whole: dict[str, torch.Tensor] = {}
    at = folder / "zero3-2/step-000004"
    manifest = Manifest.from_json((at / "manifest.json").read_text())
    with Source(at, manifest, 0, 1) as source:
        whole = {name: source.whole(name) for name in manifest.tensors}
    equal = True
    for name, parameter in run.model.named_parameters():
        moment = run.optimizer.state[parameter]["exp_avg"]
        equal &= torch.equal(parameter.full_tensor(), whole[f"model/{name}"])  # type: ignore[attr-defined]
        equal &= torch.equal(moment.full_tensor(), whole[f"optimizer/model/{name}/exp_avg"])
    before = run.weights()
    run.step(SAVED_AT + 1)
    return {"equal": equal, "steps": run.weights() != before}


def train(case: str, folder: Path, rank: int, world: int, phase: str) -> dict[str, Any]:
    run = Run(case, rank)
    begin = 0
    if phase != "straight":
        checkpoints = Checkpoints(
            folder / f"{case}-{world}", job="exact-1", name="exact", attempt=2 if phase == "resumed" else 1, rank=rank,
            world_size=world, seed=7, fresh=False, allow_changed=(), warn=lambda text: print(text, flush=True),
        )  # fmt: skip
    if phase == "resumed":
        # What a script does before its loop must not matter.
        torch.manual_seed(99 + rank)
        before = torch.get_rng_state()
        restored = checkpoints.restore(run.parts, "auto", {"total_steps": STEPS})
        assert restored.progress is not None
        assert torch.equal(before, torch.get_rng_state())
        assert all(p.grad is None for p in run.model.parameters())
        begin = restored.progress.step
    if phase != "straight":
        checkpoints.claim(begin)
    losses = []
    for number in range(begin + 1, STEPS + 1):
        losses.append(run.step(number))
        if phase == "saving" and number == SAVED_AT:
            progress = Progress(step=number, batch=f"e0-s{number:06d}-x", run_state={"loss": losses[-1]})
            checkpoints.save(run.parts, progress, {"total_steps": STEPS})
    return {"losses": losses, "weights": run.weights(), "begin": begin}


def main(folder: Path, rank: int, world: int, phases: list[str], cases: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{world}-{phases[0]}", rank=rank, world_size=world
    )
    for phase in phases:
        result: dict[str, Any] = {}
        for case in cases:
            if case == "resharded":
                result[case] = resharded(folder, rank, world)
                continue
            result[case] = train(case, folder, rank, world, phase)
            if phase == "resumed" and case == "wide":
                result["unprimed"] = {"losses": unprimed(folder, rank, world)}
        (folder / f"{world}-{phase}-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","), sys.argv[5].split(","))
