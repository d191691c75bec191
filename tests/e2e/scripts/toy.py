"""The smallest real job: a linear model under DDP with dropout, `--steps N --pause SECONDS`.

`--bad-sample INDEX` is one that cannot be read; `--say WORD` is printed with the variable GREETING at the start.
"""

import argparse
import hashlib
import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from zrun.worker import Loader, Session


class Numbers(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, samples: int, bad: int) -> None:
        self.samples = samples
        self.bad = bad

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.bad:
            raise ValueError(f"sample {index} cannot be read")
        x = torch.arange(8, dtype=torch.float32) * (index + 1) / 96 + torch.rand(8) * 0.1
        return x, x.sum(dim=0, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--bad-sample", type=int, default=-1)
    parser.add_argument("--say", default="nothing")
    options = parser.parse_args()
    print(f"said {options.say}, greeted {os.environ.get('GREETING')}")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, options.steps)
    loader = Loader(Numbers(options.samples, options.bad_sample), global_batch=16)
    with Session(model=model, optimizer=opt, scheduler=sched, data=loader) as run:
        for x, y in run.steps(total=options.steps):
            time.sleep(options.pause)
            loss = torch.nn.functional.mse_loss(model(x), y)
            (loss * run.weight).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            opt.step()
            sched.step()
            opt.zero_grad()
            run.report(loss=loss.item())
            print(f"step {run.step} batch {run.batch_id} loss {loss.item():.6f}")
    if os.environ["RANK"] == "0":
        state = hashlib.sha256()
        for name, tensor in net.state_dict().items():
            state.update(name.encode() + bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))
        print(f"weights sha256={state.hexdigest()}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
