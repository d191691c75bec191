"""Trains a small convolutional network with BatchNorm and dropout on pictures drawn from their index.

Runs under `zrun launch job.yaml` and, without its care, under plain torchrun.
"""

import argparse
import ctypes
import hashlib
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from zrun.worker import Loader, Session

CLASSES = 8


class Gratings(Dataset[tuple[Tensor, int]]):
    """Stripes in one of eight directions, with a phase, a contrast and noise that follow from the index.

    In training each may be mirrored and its contrast changed: randomness that Loader seeds by (seed, epoch, index).
    """

    def __init__(self, size: int, first: int = 0, side: int = 16, train: bool = True) -> None:
        self.size, self.first, self.side, self.train = size, first, side, train

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        own = torch.Generator().manual_seed(self.first + index)
        label = int(torch.randint(CLASSES, (), generator=own))
        phase, pitch = torch.rand(2, generator=own)
        y, x = torch.meshgrid(torch.arange(self.side), torch.arange(self.side), indexing="ij")
        angle = math.pi * label / CLASSES
        stripes = torch.sin((x * math.cos(angle) + y * math.sin(angle)) * (0.8 + 0.6 * pitch) + 2 * math.pi * phase)
        picture: Tensor = stripes + 0.7 * torch.randn(3, self.side, self.side, generator=own)
        if self.train:
            picture = picture * (0.8 + 0.4 * torch.rand(()))
            if torch.rand(()) < 0.5:
                picture = picture.flip(-1, -2)
        return picture, label


class Net(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(wide, out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
                nn.Dropout2d(dropout),
            )
            for wide, out, stride in ((3, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 2))
        )  # fmt: skip
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.head(x.mean((-1, -2)))
        return out


def main() -> None:
    args = parsed()
    device = start()
    chief = dist.get_rank() == 0
    loader = Loader(Gratings(args.images), global_batch=args.batch, num_workers=args.workers)
    torch.manual_seed(args.seed)  # the same first weights on every rank
    model = spread(Net(args.width, args.dropout), args.strategy, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    with Session(model=model, optimizer=optimizer, scheduler=scheduler, data=loader) as run:
        for pictures, labels in run.steps(total=args.steps):
            began = time.perf_counter()
            loss = F.cross_entropy(model(pictures.to(device)), labels.to(device))
            (loss * run.weight).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            run.report(loss=loss.item(), images_s=args.batch / (time.perf_counter() - began))
            if chief and run.step % args.log_every == 0:
                print(f"step {run.step} loss {loss.item():.4f}", flush=True)
            if run.step % args.eval_every == 0 or run.step == args.steps:
                with run.phase("eval"):
                    right = accuracy(model, Gratings(256, first=10**6, train=False), device)
                if chief:
                    print(f"step {run.step} held-out accuracy {right:.3f}", flush=True)

    digest = weights_digest(model)
    if chief:
        print(f"weights sha256={digest}", flush=True)
    # Without a last barrier a rank may tear its group down while a thread of gloo still wants the GIL to let go of a
    # tensor, and wait for that thread forever (seen with torch 2.13 where DDP holds the last reference).
    dist.barrier()
    dist.destroy_process_group()


def start() -> torch.device:
    """Join the ranks torchrun has started; the device of this one."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            torch.set_num_threads(1)  # the ranks share the cores
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def spread(model: Net, strategy: str, device: torch.device) -> nn.Module:
    """ddp: whole weights on each rank. zero3: sharded, gathered stage by stage."""
    model.to(device)
    if strategy == "ddp":
        ddp: nn.Module = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        return ddp
    for stage in model.stages:
        fully_shard(stage)
    fully_shard(model)
    # As DDP does: every forward starts from rank 0's running means, so that they are one state, not one for each rank.
    model.register_forward_pre_hook(lambda module, _: share_buffers(module))
    return model


def share_buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


@torch.no_grad()
def accuracy(model: nn.Module, pictures: Gratings, device: torch.device) -> float:
    """Share of right answers over the held-out pictures, each rank taking its part."""
    rank, world = dist.get_rank(), dist.get_world_size()
    each = len(pictures) // world
    mine = [pictures[rank * each + index] for index in range(each)]
    model.eval()
    answers = model(torch.stack([picture for picture, _ in mine]).to(device)).argmax(-1)
    model.train()
    right = (answers == torch.tensor([label for _, label in mine], device=device)).sum()
    dist.all_reduce(right)
    return float(right) / (each * world)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over the full weights and rank 0's buffers in fp32, in the order of names. Every rank takes part."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    digest = hashlib.sha256()
    for _, value in sorted(inner.state_dict().items()):
        whole: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
        whole = whole.detach().to("cpu", torch.float32).contiguous()
        digest.update((ctypes.c_char * (whole.numel() * 4)).from_address(whole.data_ptr()))
    return digest.hexdigest()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=("ddp", "zero3"), default="ddp")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="pictures in a global batch")
    parser.add_argument("--images", type=int, default=4096, help="pictures in an epoch")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw pictures, for each rank")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--eval-every", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    main()
