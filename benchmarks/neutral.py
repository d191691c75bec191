"""The script both launchers run: a small DDP model, 50 ms a step, state every 20 steps, resume from the newest.

`--session` uses zrun's Session and Loader; without it the script keeps its own checkpoint, as scripts under plain
torchrun do. Each rank appends {step, t, pid, rank} to $BENCH_FOLDER/steps.jsonl after each step. Once a file `now` lies
there, rank 1 has the `--fault` (raise, sleep, stop) in its next step, writes its time into `fault`, and never again.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["BENCH_FOLDER"])


class Noise(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), index / 4096)


def note(step: int, rank: int) -> None:
    line = json.dumps({"step": step, "t": time.time(), "pid": os.getpid(), "rank": rank}) + "\n"
    with (FOLDER / "steps.jsonl").open("a") as file:
        file.write(line)


def train(model: torch.nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, pause_s: float) -> float:
    end = time.perf_counter() + pause_s
    loss: torch.Tensor = model(x).square().mean()
    opt.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    opt.step()
    while time.perf_counter() < end:
        time.sleep(max(0.0, min(0.001, end - time.perf_counter())))
    return float(loss.item())


def with_session(model: torch.nn.Module, opt: torch.optim.Optimizer, options: argparse.Namespace, rank: int) -> None:
    from zrun.worker import Loader, Session

    with Session(model=model, optimizer=opt, data=Loader(Noise(), global_batch=32)) as run:
        for batch in run.steps(total=options.steps):
            fail(rank, options.fault)
            train(model, opt, batch, options.pause)
            note(run.step, rank)


def alone(model: torch.nn.Module, opt: torch.optim.Optimizer, options: argparse.Namespace, rank: int) -> None:
    saved = FOLDER / "state.pt"
    first = 1
    if saved.exists():
        state: dict[str, Any] = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        first = state["step"] + 1
    data = torch.utils.data.DataLoader(Noise(), batch_size=16)
    source = iter(data)
    for step in range(first, options.steps + 1):
        try:
            x = next(source)
        except StopIteration:
            source = iter(data)
            x = next(source)
        fail(rank, options.fault)
        train(model, opt, x, options.pause)
        note(step, rank)
        if step % 20 == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, saved.with_suffix(".tmp"))
            saved.with_suffix(".tmp").replace(saved)


def fail(rank: int, fault: str) -> None:
    happened = FOLDER / "fault"
    if rank != 1 or not fault or happened.exists() or not (FOLDER / "now").exists():
        return
    happened.write_text(repr(time.time()))
    if fault == "raise":
        raise ValueError("a fault by appointment")
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--session", action="store_true")
    parser.add_argument("--fault", choices=["raise", "sleep", "stop"], default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
    opt = torch.optim.AdamW(model.parameters())
    (with_session if options.session else alone)(model, opt, options, rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
