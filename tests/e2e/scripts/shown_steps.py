"""show.py's facts of each attempt, then plain steps: `STEPS ONE "two  words"`; into E2E_INTO/attempt-A-rank-R.json.

In attempt 1 it steps on without end. `sys.exit(CODE)` in attempt 2 if E2E_EXIT names one for this rank.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

rank, attempt = os.environ["RANK"], os.environ["ZRUN_ATTEMPT"]


def inherited() -> list[str]:
    """What a program started from here would have open."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    found = []
    for number in numbers:
        try:
            if os.get_inheritable(number):
                found.append(f"{number} {Path(f'/proc/self/fd/{number}').readlink().name}")
        except OSError:
            continue  # the one that listed them
    return sorted(found)


facts = {
    "env": {name.decode("latin-1"): value.decode("latin-1") for name, value in os.environb.items()},
    "argv": sys.argv, "name": __name__, "file": __file__, "cwd": str(Path.cwd()), "path0": sys.path[0],
    "cpus": sorted(os.sched_getaffinity(0)), "main": sys.modules["__main__"].__file__, "nice": os.nice(0),
    "autogroup": Path("/proc/self/autogroup").read_text().split()[1:] if Path("/proc/self/autogroup").exists() else [],
    "threads": threading.active_count(), "stdin": str(Path("/proc/self/fd/0").readlink()),
    "inherited": inherited(), "session": os.getsid(0) == os.getpid(), "flags": list(sys.flags), "torch_threads": torch.get_num_threads(),
}  # fmt: skip
Path(os.environ["E2E_INTO"], f"attempt-{attempt}-rank-{rank}.json").write_text(json.dumps(facts))
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = 0
while attempt == "1" or step < int(sys.argv[1]):
    step += 1
    time.sleep(0.02)
    loss = model(torch.rand(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"the end of rank {rank}")
torch.distributed.destroy_process_group()
