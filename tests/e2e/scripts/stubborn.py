"""Two ranks that do not want to be stopped, each in a way of its own: `stubborn.py MODE`.

barrier  its TERM handler calls dist.barrier() while rank 1 is stopped; ignore  TERM and INT are ignored
block    every signal is blocked; import  is still importing; handler  saves in its own TERM handler and ends
save     its state takes for ever to be read; own  counts INT, HUP and USR1 in handlers of its own
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

MODE = sys.argv[1]
RANK = os.environ["RANK"]
INTO = Path(os.environ["E2E_FOLDER"])


def tell(text: str) -> None:
    print(text, flush=True)
    (INTO / f"{text}.{RANK}").touch()


if MODE == "import":
    tell("importing")
    time.sleep(3600)

import torch  # noqa: E402 - what comes first is the point
import torch.distributed as dist  # noqa: E402

seen: list[str] = []


def on_term_barrier(*_: Any) -> None:
    tell("asked")
    dist.barrier()


def on_term_save(*_: Any) -> None:
    tell("asked")
    seen.append("TERM")


def count(number: int, _frame: Any) -> None:
    tell(signal.Signals(number).name)


class Endless(torch.optim.lr_scheduler.ConstantLR):
    """From step 5 on its state takes for ever to be read."""

    def state_dict(self) -> dict[str, Any]:
        if seen:
            tell("saving")
            time.sleep(3600)
        return super().state_dict()


def prepare() -> None:
    if MODE == "barrier":
        signal.signal(signal.SIGTERM, on_term_barrier)
    elif MODE == "handler":
        signal.signal(signal.SIGTERM, on_term_save)
    elif MODE == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    elif MODE == "block":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    elif MODE == "own":
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, count)


def with_session() -> None:
    from zrun.worker import Session

    model = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model=model, optimizer=opt, scheduler=Endless(opt)) as run:
        for step in run.steps(total=100000):
            seen.extend(["step"] * (step == 5))
            time.sleep(0.05)
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
            print(f"step {step}", flush=True)
            if step == 5:
                tell("stepping")


def plain() -> None:
    for step in range(1, 100000):
        time.sleep(0.05)
        dist.all_reduce(torch.ones(1))
        print(f"step {step}", flush=True)
        if step == 5:
            tell("stepping")
            if MODE == "barrier" and RANK == "1":
                os.kill(os.getpid(), signal.SIGSTOP)
        both = torch.tensor(int(bool(seen)))  # the rank that was signalled is asked twice
        if MODE == "handler":
            dist.all_reduce(both)
        if both == dist.get_world_size():
            tell("saved")
            return


if __name__ == "__main__":
    dist.init_process_group("gloo")
    prepare()
    with_session() if MODE == "save" else plain()
    dist.destroy_process_group()
