"""`killed_program.py FOLDER kill|full`: saves step 1, then dies, or runs into a limit, in the middle of step 2."""

import os
import resource
import signal
import sys
from pathlib import Path

from torch import nn

from zrun.state import safetensors_file
from zrun.state.checkpoints import Checkpoints
from zrun.state.parts import Parts
from zrun.state.progress import Progress

made = Checkpoints(Path(sys.argv[1]), job="toy-1", name="toy", attempt=1, rank=0, world_size=1, seed=3, warn=print)
made.claim(0)
parts = Parts(nn.Linear(1000, 600))
made.save(parts, Progress(step=1), {})
if sys.argv[2] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    made.save(parts, Progress(step=2), {})
written = 0
real = safetensors_file._write_all


def write(handle: int, view: memoryview) -> None:
    global written  # noqa: PLW0603 - this is a program of its own
    real(handle, view[: len(view) // 2])
    written += len(view) // 2
    if written > 1 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle, view[len(view) // 2 :])


safetensors_file._write_all = write
made.save(parts, Progress(step=2), {})
