"""A loop that no hook can see: no optimizer, no Session; rank 0 prints steps. `prints.py STEPS STUCK_RANK STUCK_STEP`:
that rank falls asleep before that step's collective in the first attempt (0 0: never).
"""

import os
import sys
import time

import torch
import torch.distributed as dist

steps, stuck_rank, stuck_step = map(int, sys.argv[1:4])
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, steps + 1):
    if os.environ.get("ZRUN_ATTEMPT") == "1" and (rank, step) == (stuck_rank, stuck_step):
        time.sleep(3600)
    x = torch.ones(8)
    dist.all_reduce(x)
    time.sleep(0.05)
    if rank == 0:
        print(f"[train] step {step} loss {x.mean().item():.3f}", flush=True)
dist.destroy_process_group()
