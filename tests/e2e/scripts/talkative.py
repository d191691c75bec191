"""Says things in every way a script can, then kills itself: nothing of it may be missing or of another step."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
libc = ctypes.CDLL(None)

print("before any step")
for step in range(1, 6):
    model(torch.rand(1, 2)).sum().backward()
    print(f"plain {step}")
    print("no newline ", end="")
    print(f"until {step}", file=sys.stdout)
    print(f"error {step}", file=sys.stderr)
    libc.printf(b"from C %d\n", step)
    print(json.dumps({"event": f"as json {step}", "level": "warning", "loss": 0.5, "at": step}))
    subprocess.run([sys.executable, "-c", f"print('from a child {step}')"], check=True)
    sys.stdout.write(f"\r10%\r100% {step}\n")
    os.write(1, b"\xff\x00 rubbish %d\n" % step)
    if step == 3:
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)  # a script that replaces its own stdout
    torch.distributed.barrier()
    optimizer.step()
    optimizer.zero_grad()

print("x" * 1_000_000)
if rank == 1:
    said = Path(os.environ["E2E_FOLDER"]) / "child-has-spoken"
    child = f"import pathlib, time; print('from a wrapped child'); pathlib.Path('{said}').touch(); time.sleep(60)"
    subprocess.Popen(["bash", "-c", f'{sys.executable} -c "{child}"'])
    while not said.exists():
        time.sleep(0.05)
    print("the very last words", end="", file=sys.__stdout__)  # the one of step 3 is line-buffered by its maker
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
