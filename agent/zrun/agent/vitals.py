"""The node itself: cores, memory, GPUs, load; knows nothing about jobs."""

import os
import shutil
import socket
import subprocess

import psutil

from zrun.wire.report import Vitals


def gpu_count() -> int:
    """By `nvidia-smi -L`; 0 without it. Slow (0.1 s and more): ask once."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0))


def read(gpus: int) -> Vitals:
    memory = psutil.virtual_memory()
    return Vitals(
        cores=cores(), memory_bytes=memory.total, memory_free_bytes=memory.available, gpus=gpus,
        load1=os.getloadavg()[0], host=socket.gethostname(), agent_pid=os.getpid(),
        agent_rss_bytes=resident_bytes(None),
    )  # fmt: skip


def resident_bytes(pid: int | None) -> int:
    """Memory of a process (None: this one) that is in RAM; 0 if it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
