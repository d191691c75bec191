"""Trains the hybrid language model. Runs under `zrun launch job.yaml` and, without its care, under plain torchrun."""

import argparse
import math
import time

import torch
import torch.distributed as dist
from data import Packed, Windows, reference, unigram_entropy
from model import HybridLM, Shape, loss_of
from parallel import STRATEGIES, optimizer_for, spread, start, syncing, weights_digest
from torch import nn

from zrun.worker import Loader, Session


def main() -> None:
    args = parsed()
    device = start()
    documents, held_out_text = reference()
    loader = Loader(Packed(documents, args.seq), global_batch=args.batch, micro_batch=part_size(args))
    torch.manual_seed(args.seed)  # the same first weights on every rank
    shape = Shape(args.layers, args.hidden, args.heads, dropout=args.dropout)
    model = spread(HybridLM(shape), args.strategy, args.wrap, device)
    optimizer = optimizer_for(model, args.strategy, args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: slope(step, args.warmup, args.steps))
    autocast, scaler = precision(args, device)
    tell(introduced(model, args.strategy, b"".join(documents), held_out_text))

    with Session(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, data=loader) as run:
        for batch in run.steps(total=args.steps):
            began = time.perf_counter()
            total = torch.zeros((), device=device)
            for number, part in enumerate(run.micro(batch), start=1):
                with syncing(model, last=number == len(batch)):
                    with autocast:
                        loss = loss_of(model, part.to(device)) * run.weight
                    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()

            tokens_s = args.batch * args.seq / (time.perf_counter() - began)
            run.report(loss=total.item(), tokens_s=tokens_s)
            if run.step % args.log_every == 0:
                tell(f"step {run.step} loss {total.item():.4f} tokens/s {tokens_s:.0f}")
            if run.step % args.eval_every == 0 or run.step == args.steps:
                with run.phase("eval"), autocast:
                    held_out = evaluated(model, Windows(held_out_text, args.seq), args.eval_windows, device)
                run.report(held_out=held_out)
                tell(f"step {run.step} held-out {held_out:.4f}")

    tell(f"weights sha256={weights_digest(model)}")
    finish()


def part_size(args: argparse.Namespace) -> int:
    """Sequences in one backward of one rank, so that its share of the global batch comes in `--accumulate` parts."""
    part: float = args.batch / dist.get_world_size() / args.accumulate
    return math.ceil(part)


def precision(args: argparse.Namespace, device: torch.device) -> tuple[torch.autocast, torch.amp.GradScaler]:
    """What lowers the precision of a forward, and what scales the loss where small gradients would vanish (fp16)."""
    low = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision or args.natural[device.type]]
    autocast = torch.autocast(device.type, dtype=low, enabled=low is not None)
    return autocast, torch.amp.GradScaler(device.type, enabled=low is torch.float16)


def introduced(model: nn.Module, strategy: str, train_text: bytes, held_out_text: bytes) -> str:
    size = sum(one.numel() for one in model.parameters())
    floor = unigram_entropy(train_text, held_out_text)
    return f"{size:,} parameters, {len(train_text):,} bytes, {strategy}; unigram entropy {floor:.3f}"


def tell(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def finish() -> None:
    # Without a last barrier a rank may tear its group down while a thread of gloo still wants the GIL to let go of a
    # tensor, and wait for that thread forever (seen with torch 2.13 where DDP holds the last reference).
    dist.barrier()
    dist.destroy_process_group()


def slope(step: int, warmup: int, total: int) -> float:
    """Warm-up, then half a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def evaluated(model: nn.Module, windows: Windows, most: int, device: torch.device) -> float:
    """Mean loss over the first held-out windows; each rank takes equally many, because a sharded model needs all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    each = max(1, min(most, len(windows)) // world)
    model.eval()
    losses = torch.zeros((), device=device)
    for at in range(rank * each, (rank + 1) * each, 16):
        part = torch.stack([windows[index] for index in range(at, min(at + 16, (rank + 1) * each))])
        losses += loss_of(model, part.to(device)) * len(part)
    model.train()
    dist.all_reduce(losses)
    return losses.item() / (each * world)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp")
    parser.add_argument("--wrap", choices=("layer", "superblock"), default="layer", help="what is sharded as one")
    parser.add_argument("--layers", type=int, default=4, help="a multiple of 4")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a global batch")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a rank's share, one backward each")
    parser.add_argument("--seq", type=int, default=128, help="bytes in a sequence")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), help="bf16 on a GPU, else fp32; fp16: scaled")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--eval-every", type=int, default=60)
    parser.add_argument("--eval-windows", type=int, default=64)
    parser.set_defaults(natural={"cuda": "bf16", "cpu": "fp32"})
    return parser.parse_args()


if __name__ == "__main__":
    main()
