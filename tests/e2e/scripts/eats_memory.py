"""Two ranks under DDP; in step 4 rank 1 takes memory until somebody stops it. `eats_memory.py [STEPS]`."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = []
for step in range(1, int(sys.argv[1]) if len(sys.argv) > 1 else 12):
    time.sleep(0.05)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    while step == 4 and os.environ["RANK"] == "1":
        held.append(torch.ones(8 << 20))
        time.sleep(0.01)
dist.destroy_process_group()
