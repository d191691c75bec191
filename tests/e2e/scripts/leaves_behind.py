"""A real job that leaves whatever a job can leave: `--steps N --pause S --make WORD,…`, and a fault by with_fault.py.

bytes: loader workers blocked in a write of 1 MB to a pipe; tensors: loader workers; wrapper: a shell that waits for a
child; setsid: one in a session of its own; daemon: one without parent, session, descriptors or environment; deaf: one
that ignores TERM; stdout: one that inherits our output; segment: named shared memory; lock: a child that holds flock.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zrun.worker import Session


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, big: bool) -> None:
        self.big = big

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Any:
        return b"x" * (1 << 20) if self.big else torch.full((64, 64), float(index))


def loaders(big: bool) -> Any:
    """Workers that have more to say than anybody reads."""
    given = iter(torch.utils.data.DataLoader(Rows(big), batch_size=1, num_workers=2, collate_fn=list))
    next(given)
    return given


def daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            os.execve("/bin/sleep", ["sleep", "302"], {})
        os._exit(0)


def held_by_child(path: Path) -> None:
    """As a dataset's own guard against two that prepare it: waits until it has the lock, for as long as that takes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(300)
            os._exit(0)


def make(what: str, folder: Path, kept: list[Any]) -> None:
    rank = os.environ["RANK"]
    match what:
        case "bytes" | "tensors":
            kept.append(loaders(what == "bytes"))
        case "wrapper":
            subprocess.Popen(["bash", "-c", "sleep 301 & wait"])
        case "setsid":
            subprocess.Popen(["setsid", "sleep", "300"])
        case "daemon":
            daemon()
        case "deaf":
            subprocess.Popen(["bash", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"], start_new_session=True)
        case "stdout":
            subprocess.Popen(["sleep", "303"])
        case "segment":
            kept.append(
                shared_memory.SharedMemory(f"{folder.name}-{folder.parent.name}-{rank}", create=True, size=4096)
            )
        case "lock":
            held_by_child(folder / f"dataset-{rank}.lock")
        case "":
            pass
        case _:
            raise SystemExit(f"unknown {what}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--make", default="")
    options = parser.parse_args()
    kept: list[Any] = []
    for what in options.make.split(","):
        make(what, Path(os.environ["E2E_FOLDER"]), kept)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with Session(model=model, optimizer=opt) as run:
        print("begun", flush=True)
        for _ in run.steps(total=options.steps):
            time.sleep(options.pause)
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
    for thing in kept:
        if isinstance(thing, shared_memory.SharedMemory):
            thing.close()
            thing.unlink()
    dist.destroy_process_group()
    os._exit(0)  # what was started lives on


if __name__ == "__main__":
    main()
