"""What a checkpoint costs, against what the machine can do at best, in one run: ratios, with their bars.

Two gloo ranks hold a sharded model (fully_shard) of `--mib` MiB each. Blocking: how long training stands still for a
save, from the second on, over the copy of the same bytes into memory that was touched before. Save and load: half of
that from each rank, whole and durable, over the same bytes by plain write and fsync, or read from a cold page cache.
Verify: bytes per second of processor time. Seek: a Loader sent to step 1,000,000, until it can name its batch.

    python benchmarks/checkpoint.py [--mib 1024] [--times 5] [--dir DIR]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TENSORS = 32
BARS = {
    "blocked / memcpy": 1.3, "save / write + fsync": 1.3, "load / read": 1.3, "verify GB/s a core": 1.0,
    "seek ms": 50.0,
}  # fmt: skip
_PIECE = 4 << 20


def sharded(mib: int) -> Any:
    """A model of which this rank holds `mib` MiB."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    world = torch.distributed.get_world_size()
    rows = (mib << 20) * world // TENSORS // 4 // 1024
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1024, rows, bias=False) for _ in range(TENSORS)])
    fully_shard(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().uniform_()  # type: ignore[attr-defined]
    return model


def timed(act: Callable[[], Any]) -> float:
    """From a moment at which all ranks are ready; seconds on this rank."""
    import torch

    torch.distributed.barrier()
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def write_plain(path: Path, size: int, content: memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        for at in range(0, size, _PIECE):
            os.write(file.fileno(), content[: min(_PIECE, size - at)])
        os.fsync(file.fileno())


def read_plain(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        at = 0
        while got := os.preadv(file.fileno(), [into[at : at + _PIECE]], at):
            at += got


def forget(path: Path) -> None:
    """Let the page cache drop a file that is on disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove(old: Path) -> None:
    """The one before, by the first rank."""
    import torch

    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        shutil.rmtree(old, ignore_errors=True)


def rank(folder: Path, mib: int, times: int) -> None:
    """One rank."""
    import torch

    from zrun.state.checkpoints import Checkpoints
    from zrun.state.parts import Parts
    from zrun.state.progress import Progress

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    number, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def opened(name: str, attempt: int = 1) -> Checkpoints:
        return Checkpoints(
            folder / name, job="bench", name="bench", attempt=attempt, rank=number, world_size=world, seed=1,
            warn=print,
        )  # fmt: skip

    found: dict[str, list[float]] = {key: [] for key in ("memcpy", "blocked", "write", "save", "read", "load")}
    model = sharded(mib)
    parts, made = Parts(model), opened("whole")
    made.claim(0)
    sources = [p.to_local() for p in model.parameters()]
    targets = [torch.zeros_like(source) for source in sources]
    for step in range(times + 1):
        copied = timed(lambda: [target.copy_(source) for target, source in zip(targets, sources, strict=True)])
        blocked = timed(lambda step=step: made.request(parts, Progress(step=step), {}))  # type: ignore[misc]
        made.settle()
        remove(folder / "whole" / f"step-{step - 1:06d}")
        if step:
            found["memcpy"].append(copied)
            found["blocked"].append(blocked)
    sources.clear()
    targets.clear()
    model = sharded(mib // world)
    parts, made = Parts(model), opened("half")
    made.claim(0)
    size = (mib << 20) // world
    content = memoryview(bytearray(size))
    for step in range(times + 1):
        plain = folder / f"plain-{number}"
        written = timed(lambda plain=plain: write_plain(plain, size, content))  # type: ignore[misc]
        saved = timed(lambda step=step: made.save(parts, Progress(step=step), {}))  # type: ignore[misc]
        forget(plain)
        forget(folder / "half" / f"step-{step:06d}" / f"rank-{number}.safetensors")
        again = opened("half", 2)
        read = timed(lambda plain=plain: read_plain(plain, content))  # type: ignore[misc]
        loaded = timed(lambda again=again: again.restore(parts, "auto", {}))  # type: ignore[misc]
        plain.unlink()
        remove(folder / "half" / f"step-{step - 1:06d}")
        if step:
            for key, value in {"write": written, "save": saved, "read": read, "load": loaded}.items():
                found[key].append(value)
    (folder / f"times-{number}.json").write_text(json.dumps(found))
    torch.distributed.barrier()


def slowest(folder: Path) -> dict[str, float]:
    """Median over the repeats of what the slower rank took."""
    ranks = [json.loads((folder / f"times-{number}.json").read_text()) for number in (0, 1)]
    return {key: statistics.median(map(max, ranks[0][key], ranks[1][key])) for key in ranks[0]}


def verify_speed(folder: Path) -> float:
    from zrun.core.verify import verify

    (step,) = (folder / "whole").glob("step-*")
    verify(step, threads=1)
    begun = time.process_time()
    checked = verify(step, threads=1)
    assert checked.ok, checked.problems
    return checked.bytes / 1e9 / (time.process_time() - begun)


def seek_ms() -> float:
    from zrun.worker import Loader

    loader = Loader(range(100_003), global_batch=64)
    loader.attach(0, 2, 1)
    begun = time.perf_counter()
    loader.seek(1_000_000)
    assert loader.upcoming() is not None
    return 1e3 * (time.perf_counter() - begun)


def disk_of(folder: Path) -> str:
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    device, where, kind = max((m for m in mounts if folder.is_relative_to(m[1])), key=lambda m: len(m[1]))
    return f"{device} at {where} ({kind})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="a folder on the disk to measure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        folder = Path(made).resolve()
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", __file__]
        environment = {**os.environ, "ZRUN_BENCH": json.dumps([str(folder), given.mib, given.times])}
        subprocess.run(command, env=environment, check=True)
        took = slowest(folder)
        print(f"{given.mib} MiB a rank, 2 ranks; disk {disk_of(folder)}; medians of {given.times}")
        print("  ".join(f"{key} {value:.3f} s" for key, value in took.items()))
        ratios = {
            "blocked / memcpy": took["blocked"] / took["memcpy"],
            "save / write + fsync": took["save"] / took["write"], "load / read": took["load"] / took["read"],
            "verify GB/s a core": verify_speed(folder), "seek ms": seek_ms(),
        }  # fmt: skip
    for key, value in ratios.items():
        least = key.startswith("verify")
        met = value >= BARS[key] if least else value <= BARS[key]
        print(f"{key:24} {value:8.2f}   bar {'>=' if least else '<='} {BARS[key]:g}  {'met' if met else 'NOT MET'}")


if __name__ == "__main__":
    if "ZRUN_BENCH" in os.environ:
        where, mib, times = json.loads(os.environ["ZRUN_BENCH"])
        rank(Path(where), mib, times)
    else:
        main()
