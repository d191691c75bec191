"""What a step costs more under zrun (bootstrap, deck, recorder, Session, Loader, memory) than under plain torchrun.

Pairs of runs of the same training on two gloo ranks: plain with DataLoader and DistributedSampler, and with Session
and Loader under `zrun.worker`, with the deck and the files in memory that agent and keeper would make. The step's own
work is a spin of fixed length, then a real forward, backward and all_reduce. The built recorder is made first, unless
`--recorder python`. Prints the ratio of median step times for each pair, and their median.

    python benchmarks/step_overhead.py [--pairs 5] [--steps 200] [--ms 10 50] [--workers 0]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROWS = 4096


def train(mode: str, spin_s: float, steps: int, workers: int, out: str) -> None:
    """One rank."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.rand(ROWS, 32), torch.rand(ROWS, 1))
    began: list[float] = []

    def step(x: Any, y: Any, weight: float) -> Any:
        until = time.perf_counter() + spin_s
        while time.perf_counter() < until:
            pass
        loss = torch.nn.functional.mse_loss(model(x), y)
        torch.autograd.backward(loss * weight)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if mode == "plain":
        sampler: Any = torch.utils.data.DistributedSampler(data)
        loader: Any = torch.utils.data.DataLoader(data, batch_size=16, sampler=sampler, num_workers=workers)
        while len(began) < steps:
            for x, y in loader:
                began.append(time.perf_counter())
                step(x, y, 1.0).item()
                if len(began) >= steps:
                    break
    else:
        from zrun.worker import Loader, Session

        with Session(model=model, optimizer=optimizer, data=Loader(data, global_batch=32, num_workers=workers)) as run:
            for x, y in run.steps(total=steps):
                began.append(time.perf_counter())
                run.report(loss=step(x, y, run.weight).item())
    if os.environ["RANK"] == "0":
        gaps = [b - a for a, b in pairwise(began[10:])]
        Path(out).write_text(json.dumps(gaps))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's teardown now and then aborts the process; that is not what is measured here


def run(mode: str, ms: float, options: argparse.Namespace) -> list[float]:
    """Step times of rank 0, seconds."""
    from zrun.agent.memory_files import MemoryFiles
    from zrun.core.deck import create_deck, deck_path
    from zrun.core.settings import RankSettings

    memory = MemoryFiles()
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="zrun-bench-") as shm,
        tempfile.TemporaryDirectory() as folder,
    ):
        out = f"{folder}/steps.json"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")} | {"OMP_NUM_THREADS": "1"}
        program = [__file__, "--train", mode, str(ms / 1e3), str(options.steps), str(options.workers), out]
        if mode == "zrun":
            for rank in range(2):
                create_deck(deck_path(Path(shm), rank), rank, 1, time.time())
            environment |= {
                "ZRUN_SHM_DIR": shm, "ZRUN_ATTEMPT_DIR": folder, "ZRUN_ATTEMPT": "1",
                "ZRUN_SETTINGS": RankSettings(
                    save_every_steps=None, save_initial=False, memory_every=options.memory
                ).to_json(),
                "ZRUN_CHECKPOINT_DIR": f"{folder}/checkpoints", "ZRUN_MEMORY": f"/proc/{os.getpid()}/fd",
            }  # fmt: skip
            memory.make(range(2))
            if options.recorder == "python":
                environment["XDG_CACHE_HOME"] = folder
            program = ["-m", "zrun.worker", *program]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *program]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        memory.close()
        if done.returncode:
            raise SystemExit(f"the {mode} run ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        found: list[float] = json.loads(Path(out).read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ms", type=float, nargs="+", default=[10.0, 50.0])
    parser.add_argument("--workers", type=int, default=0, help="loader workers")
    parser.add_argument("--recorder", choices=["built", "python"], default="built")
    parser.add_argument("--memory", default="auto", help="checkpoint.memory_every")
    parser.add_argument("--decile", type=int, default=5, help="5: the median; 1: what a busy machine disturbs least")
    parser.add_argument("--train", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        mode, spin_s, steps, workers, out = options.train
        train(mode, float(spin_s), int(steps), int(workers), out)
        return
    if options.recorder == "built":
        subprocess.run([sys.executable, "-m", "zrun.worker.recorder_built"], check=True)
    for ms in options.ms:
        ratios: list[float] = []
        for pair in range(options.pairs):
            # The order changes from pair to pair: a machine that warms up or slows down favours neither.
            modes = ["plain", "zrun"] if pair % 2 == 0 else ["zrun", "plain"]
            times = {mode: statistics.quantiles(run(mode, ms, options), n=10)[options.decile - 1] for mode in modes}
            ratios.append(times["zrun"] / times["plain"])
            print(
                f"{ms:g} ms, pair {pair + 1}: plain {times['plain'] * 1e3:.3f} ms, zrun {times['zrun'] * 1e3:.3f} ms, "
                f"ratio {ratios[-1]:.4f}", flush=True,
            )  # fmt: skip
        print(f"{ms:g} ms: median ratio {statistics.median(ratios):.4f} over {options.pairs} pairs", flush=True)


if __name__ == "__main__":
    main()
