"""Ranks that meet in a few collectives and then sleep outside of any: `[RANK:FAULT]`, in attempt 1 alone.

FAULT is raise, exit1 or stop (SIGSTOP), done once all sleep; later attempts end well after two collectives.
"""

import os
import signal
import sys
import time

import torch

faults = dict(one.split(":") for one in sys.argv[1:])
rank = os.environ["RANK"]
torch.distributed.init_process_group("gloo")
for _ in range(3):
    torch.distributed.all_reduce(torch.ones(1))
if os.environ["ZRUN_ATTEMPT"] == "1":
    print("apart")
    time.sleep(3 if rank in faults else 3600)
    if faults[rank] == "raise":
        raise ValueError("fault by appointment")
    if faults[rank] == "exit1":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)
torch.distributed.destroy_process_group()
print("ended well")
