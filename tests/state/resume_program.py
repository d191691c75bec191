"""Trains a small model again and again, as told by stories: `resume_program.py FOLDER STORIES.json`.

A story is a list of attempts, each in new processes: with how many ranks, with which strategy, and where a rank kills
itself. Each rank writes a line a step (losses, samples, rates, scale, draws), and what it restored and ended with.
"""

# ruff: noqa: E402
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any, cast

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torch._dynamo  # the first optimizer would import it, in every rank anew
import torch.distributed as dist
from tests.state.forked import fork_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zrun.core.settings import RankSettings
from zrun.state.parts import Parts
from zrun.state.tensor_bytes import view_of
from zrun.worker import Loader, Session
from zrun.worker import rank as worker_rank

WORDS = 13


class Rows(torch.utils.data.Dataset[Any]):
    """Samples that draw, and say which they are."""

    def __init__(self, *, draws: bool) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> Any:
        tokens = (torch.arange(6) * (index + 3) + index) % WORDS
        noise = torch.rand(1).item() + random.random() if self.draws else 0.0
        return index, tokens, noise


class Net(nn.Module):
    """An embedding that is the output layer too, a frozen layer, dropout and running statistics unless plain."""

    def __init__(self, width: int, layers: int, *, plain: bool, spare: bool, sparse: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, sparse=sparse)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width), nn.Dropout(0.0 if plain else 0.1), nn.Tanh(), nn.Linear(width, width)
            )
            for _ in range(layers)
        )
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.norm = nn.LayerNorm(width) if plain else nn.BatchNorm1d(width)
        self.spare = nn.Linear(width, width) if spare else None  # never used
        self.head = nn.Linear(width, WORDS, bias=False)
        if not sparse:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, noise: torch.Tensor) -> Any:
        length = tokens.shape[1]
        hidden = self.embed(tokens).flatten(0, 1) + noise.float().repeat_interleave(length)[:, None] * 0.01
        for layer in self.body:
            hidden = hidden + layer(hidden)
        return self.head(self.norm(hidden + self.frozen(hidden))).unflatten(0, (-1, length)).mean(1)


HOOKS: dict[str, Any] = {
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "power": lambda: (powerSGD_hook.PowerSGDState(None, 1, 3), powerSGD_hook.powerSGD_hook),
    "own": lambda: (Pull(), pulled),
    "stateless": lambda: (None, pulled),
}


class Pull:
    """A hook's state that nobody can save."""


def pulled(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Every rank keeps a little of its own gradient, so that parameters drift apart."""
    own = bucket.buffer().clone()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    averaged = work.get_future().then(lambda done: done.value()[0] / dist.get_world_size() + own * 0.01)
    return cast("torch.futures.Future[torch.Tensor]", averaged)


class Job:
    """All that one story trains, as its options say."""

    def __init__(self, story: dict[str, Any], strategy: str) -> None:
        torch.manual_seed(5)
        self.story, self.strategy = story, strategy
        self.options: dict[str, Any] = story.get("ddp", {})
        sparse = bool(story.get("sparse"))
        self.net = Net(
            story.get("width", 17), story.get("layers", 2), plain=bool(story.get("plain")), spare=bool(story.get("spare")),
            sparse=sparse,
        )  # fmt: skip
        self.model: nn.Module = self.wrapped()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizers: list[torch.optim.Optimizer] = self.made_optimizers(trained, sparse=sparse)
        self.schedulers: list[Any] = [
            SequentialLR(o, [LinearLR(o, 0.3, total_iters=3), CosineAnnealingLR(o, 13)], milestones=[3])
            if story.get("scheduler") != "lambda"
            else LambdaLR(o, lambda step: 0.93**step)
            for o in self.optimizers
        ]
        scaled = strategy in {"ddp", "zero1"} and not story.get("plain") and not sparse
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2) if scaled else None
        self.average: Any = None
        if strategy in {"ddp", "zero1"} and not story.get("plain"):
            self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]

    def made_optimizers(self, trained: list[Any], *, sparse: bool) -> list[torch.optim.Optimizer]:
        rate = self.story.get("lr", 3e-3)
        if sparse:
            return [torch.optim.SGD(trained, lr=rate)]
        if self.strategy == "zero1":
            return [ZeroRedundancyOptimizer(trained, torch.optim.AdamW, lr=rate)]
        if self.story.get("optimizer"):
            return [getattr(torch.optim, self.story["optimizer"])(trained, lr=rate)]
        if self.story.get("plain"):
            return [torch.optim.AdamW(trained, lr=rate)]
        half = len(trained) // 2
        groups: list[dict[str, Any]] = [{"params": trained[:2]}, {"params": trained[2:half], "weight_decay": 0.0}]
        return [
            torch.optim.AdamW(groups, lr=rate),
            torch.optim.SGD(trained[half:], lr=1e-2, momentum=0.9),
        ]

    def wrapped(self) -> nn.Module:
        if self.strategy in {"ddp", "zero1"}:
            wrapped = DistributedDataParallel(self.net, bucket_cap_mb=self.story.get("bucket_mb", 25), **self.options)
            if self.story.get("hook"):
                wrapped.register_comm_hook(*HOOKS[self.story["hook"]]())
            return wrapped
        world = dist.get_world_size()
        options: dict[str, Any] = {"reshard_after_forward": self.strategy != "zero2"}
        options["mesh"] = init_device_mesh("cpu", (world,))
        if self.strategy == "hsdp":
            options["mesh"] = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        if self.strategy == "tp":
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
            options["mesh"] = mesh["data"]
            for layer in self.net.body:
                parallelize_module(layer, mesh["tensor"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
        for layer in self.net.body:
            fully_shard(layer, **options)
        fully_shard(self.net, **options)
        return self.net

    def step(self, run: Any, batch: Any, die: Any) -> dict[str, Any]:
        index: list[int] = []
        losses = []
        parts = len(list(run.micro(batch)))
        for number, part in enumerate(run.micro(batch), 1):
            samples, tokens, noise = part
            if self.strategy == "tp":  # the ranks of one tensor parallel group work on the same samples
                place = self.optimizers[0].param_groups[0]["params"][0].device_mesh.get_local_rank("data")
                tokens = torch.arange(12).view(2, 6) * (run.step + 3 + place) % WORDS
                noise = torch.zeros(2)
            index += samples.tolist() if run.weight else []
            if isinstance(self.model, DistributedDataParallel):
                self.model.require_backward_grad_sync = number == parts
            loss = nn.functional.cross_entropy(self.model(tokens, noise), tokens[:, 0]) * run.weight
            losses.append(loss.item().hex())
            if self.scaler is not None:
                # At step 3 no number is finite: a step that the scaler skips is a step.
                self.scaler.scale(loss * (torch.inf if run.step == 3 else 1.0)).backward()
            else:
                loss.backward()
            die(run.step, number)
        for optimizer in self.optimizers:
            if self.scaler is not None:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.net)
        return {
            "losses": losses, "samples": index, "batch": run.batch_id,
            "rates": [group["lr"].hex() for o in self.optimizers for group in o.param_groups],
            "scale": self.scaler.state_dict() if self.scaler is not None else None,
        }  # fmt: skip

    def given(self) -> dict[str, Any]:
        given: dict[str, Any] = {"model": self.model, "optimizer": self.optimizers, "scheduler": self.schedulers}
        if self.scaler is not None:
            given["scaler"] = self.scaler
        if self.average is not None:
            given["ema"] = self.average
        for leave_out in self.story.get("leave_out", ()):
            del given[leave_out]
        return given

    def digests(self) -> dict[str, str]:
        """Of everything this rank holds: parameters, buffers, moments, averages."""
        given = self.given()
        extras = {key: given.pop(key) for key in ("ema",) if key in given}
        blocks, _ = Parts(
            given["model"], given.get("optimizer"), given.get("scheduler"), given.get("scaler"), extras
        ).flatten()
        return {b.name: _sha(b.local) for b in blocks}

    def full(self) -> dict[str, str]:
        """Of whole parameters and moments, wherever their pieces are."""
        found = {}
        for name, parameter in sorted(self.net.named_parameters()):
            found[name] = _sha(_whole(parameter))
            for optimizer in self.optimizers:
                inner = getattr(optimizer, "optim", optimizer)
                for key, value in inner.state.get(parameter, {}).items():
                    found[f"{name}/{key}"] = _sha(_whole(value))
        if self.strategy != "zero1":
            return found
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, found)
        return {name: digest for one in everywhere for name, digest in one.items()}


def _whole(tensor: Any) -> torch.Tensor:
    plain = tensor.detach()
    return plain.full_tensor() if isinstance(plain, DTensor) else plain


def _sha(tensor: Any) -> str:
    return hashlib.sha256(bytes(view_of(tensor.detach().cpu().contiguous()))).hexdigest()[:16]


def attempt(folder: Path, story: dict[str, Any], number: int, rank: int) -> None:
    told = story["attempts"][number - 1]
    settings = {"seed": 7, "save_every_steps": 1, "keep_last": 30, "rng": story.get("rng", "derived")}
    settings |= told.get("settings", {})
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(told["world"]), "ZRUN_ATTEMPT": str(number), "ZRUN_JOB": "story-1",
        "ZRUN_CHECKPOINT_DIR": str(folder / "checkpoints"), "ZRUN_SETTINGS": RankSettings(**settings).to_json(),
    }  # fmt: skip
    worker_rank._here.clear()
    # What a script draws before its loop must not matter, and differs with the attempt.
    random.seed(100 * number + rank)
    np.random.seed(100 * number + rank)  # noqa: NPY002 - the stream scripts use
    if told.get("unprimed"):
        Parts.resume = lambda self, source: []  # type: ignore[method-assign]
    job = Job(story | told.get("change", {}), told["strategy"])
    torch.manual_seed(100 * number + rank)
    workers = story.get("workers", 0)
    loader = Loader(
        Rows(draws=not story.get("plain")), global_batch=6, micro_batch=story.get("micro"), drop_last=False,
        num_workers=workers, **({"persistent_workers": story["persistent"], "multiprocessing_context": "fork"} if workers else {}),
    )  # fmt: skip
    kill = told.get("kill") or [0, 0]

    def die(step: int, part: int) -> None:
        """Rank 1 is gone once the last step's checkpoint is there, so that this is where the next attempt begins."""
        if rank == told["world"] - 1 and [step, part] == kill:
            manifest = folder / "checkpoints" / f"step-{step - 1:06d}" / "manifest.json"
            give_up_at = time.monotonic() + 60
            while not manifest.exists() and time.monotonic() < give_up_at:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    with (folder / f"rank-{rank}.jsonl").open("a") as lines:

        def tell(**fields: Any) -> None:
            lines.write(json.dumps({"attempt": number, "world": told["world"]} | fields) + "\n")
            lines.flush()

        try:
            with Session(data=loader, **job.given()) as run:
                first = True
                for batch in run.steps(total=told.get("total", 13)):
                    if first:
                        tell(resumed=run.step - 1, full=job.full() if told.get("full") else {})
                        first = False
                    if run.step > told.get("until", run.step):
                        break  # the step before is saved
                    drawn = [torch.rand(1).item(), random.random(), np.random.random()]  # noqa: NPY002 - as scripts do
                    tell(step=run.step, drawn=drawn, **job.step(run, batch, die))
                    run.state["done"] = run.step
            tell(full=job.full() if told.get("full") else {})
            tell(digests=job.digests())
        except Exception as error:
            tell(failed=f"{type(error).__name__}: {error}", hint=getattr(error, "hint", None))
            traceback.print_exc()
            raise


def main(folder: Path, stories: list[dict[str, Any]]) -> None:
    for story in stories:
        here = folder / story["name"]
        here.mkdir()
        for number, told in enumerate(story["attempts"], 1):
            statuses = fork_ranks(
                told["world"],
                here / f"attempt-{number}",
                partial(attempt, here, story, number),
            )
            (here / f"attempt-{number}" / "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
