"""Runs another script unchanged, with one fault by appointment: `KIND:RANK:STEP SCRIPT ARGS`.

The fault comes in that rank's forward pass of step STEP, so the others wait for it in their all_reduce. It comes in
attempt 1 alone, with `KIND:RANK:STEP:always` in every attempt that does this step.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def trip(kind: str) -> None:
    print(f"fault by appointment: {kind}", flush=True)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "raise":
        raise ValueError("fault by appointment")
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleep":
        time.sleep(3600)
    elif kind == "nap":
        time.sleep(6)
    elif kind == "sysexit":
        sys.exit(75)
    elif kind == "exit":
        os._exit(7)
    elif kind == "exit0":
        os._exit(0)
    else:
        raise SystemExit(f"unknown fault {kind}")


def arm(kind: str, step: int) -> None:
    """At the end of step STEP - 1's update the trap is set: the next forward of any module springs it."""
    done = 0
    first: int | None = None

    def after_step(optimizer: Any, *_: Any) -> None:
        nonlocal done, first
        first = id(optimizer) if first is None else first
        if id(optimizer) == first:
            done += 1
        # Session says where it resumed; a script without one begins at step 1 in every attempt.
        if done + int(os.environ.get("ZRUN_RESUME_STEP") or 0) == step - 1:
            torch.nn.modules.module.register_module_forward_pre_hook(spring)

    sprung = False

    def spring(*_: Any) -> None:
        nonlocal sprung
        if not sprung:
            sprung = True
            trip(kind)

    register_optimizer_step_post_hook(after_step)


if __name__ == "__main__":
    kind, rank, step, *always = sys.argv[1].split(":")
    if os.environ["RANK"] == rank and (always or os.environ.get("ZRUN_ATTEMPT", "1") == "1"):
        arm(kind, int(step))
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
