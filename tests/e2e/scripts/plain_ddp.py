"""A torchrun script that has never heard of zrun: DDP, a loop of its own, `STEPS PAUSE`."""

import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    steps, pause = int(sys.argv[1]), float(sys.argv[2])
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        time.sleep(pause)
        loss = model(torch.rand(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
