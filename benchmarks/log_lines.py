"""What it costs the agent to turn the ranks' output into JSON lines, and whether any line is lost.

    python benchmarks/log_lines.py [--ranks 8] [--rate 20000] [--seconds 10] [--kind plain|json|warning] [--secret]

Real processes write lines of about 100 bytes into the files that ranks write into, a step marker every 50 ms as a
training loop would, and the agent's own AttemptLogs takes them every 50 ms as the agent's loop does. Prints the CPU
time of the reading process as a share of one core, and counts every line that came out.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from zrun.agent.launch import Where
from zrun.agent.logs import AttemptLogs
from zrun.core.marks import encode_mark
from zrun.core.redact import Redactor
from zrun.core.runfolder import RunFolder

POLL_S: Final = 0.05
"""As the agent's loop."""
BURST_S: Final = 0.01
KINDS: Final = {
    "plain": "2026-12-01 02:23:31,123 train.py:88 INFO loss={0:.6f} lr=3.000e-04 grad_norm=0.8812 tok/s=51234 n={0}",
    "json": '{{"event": "step", "level": "info", "loss": 0.4312, "lr": 3.0e-04, "grad": 0.88, "tok_s": 512, "n": {0}}}',
    "warning": "2026-12-01 02:23:31,123 train.py:88 WARNING loss={0:.6f} scale=1024.0 grad_norm=inf tok/s=51234 n={0}",
}


def write(path: Path, lines: int, rate: int, kind: str) -> None:
    """One rank: bursts of lines at `rate` a second."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    form, begun, done, step = KINDS[kind], time.monotonic(), 0, 0
    while done < lines:
        due = min(lines, int((time.monotonic() - begun) * rate))
        if (now := int((time.monotonic() - begun) / 0.05)) > step:
            step = now
            os.write(out, encode_mark(step, f"e0-s{step:06d}-7f3a9c21", time.time()))
        text = "".join(form.format(n) + "\n" for n in range(done, due))
        os.write(out, text.encode())
        done = due
        time.sleep(BURST_S)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def lost(folder: RunFolder, ranks: int, lines: int) -> int:
    """Lines that are not there, or not once, or not in order."""
    missing = 0
    for rank in range(ranks):
        seen = -1
        with folder.rank_log(1, rank).open() as file:
            for text in file:
                number = int(json.loads(text)["msg"].rpartition("n=")[2] or -1)
                missing += number != seen + 1
                seen = number
        missing += lines - 1 - seen
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=int, default=20_000, help="lines a second of each rank")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kind", choices=list(KINDS), default="plain")
    parser.add_argument("--secret", action="store_true", help="two secrets are to be hidden")
    parser.add_argument(
        "--max-size", type=int, default=64 << 30, help="logs.max_size in bytes; lines are counted below it only"
    )
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="zrun-logging-"))
    try:
        measure(RunFolder(root), asked)
    finally:
        shutil.rmtree(root)


def measure(folder: RunFolder, asked: argparse.Namespace) -> None:
    where = Where(folder, "bench-000000", "node-a", 1, "boot")
    where.attempt_dir.mkdir(parents=True)
    hidden = Redactor(["hunter22-secret-value", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"] if asked.secret else [])
    logs = AttemptLogs(where, list(range(asked.ranks)), asked.max_size // asked.ranks, print, lambda: hidden)
    lines = int(asked.rate * asked.seconds)
    writers = [
        multiprocessing.Process(target=write, args=(where.attempt_dir / f"rank-{r}.out", lines, asked.rate, asked.kind))
        for r in range(asked.ranks)
    ]
    for writer in writers:
        writer.start()
    used, begun, longest = cpu_s(), time.monotonic(), 0.0
    while any(writer.is_alive() for writer in writers):
        turn = time.monotonic()
        logs.poll()
        longest = max(longest, time.monotonic() - turn)
        time.sleep(POLL_S)
    behind = sum((where.attempt_dir / f"rank-{r}.out").stat().st_blocks * 512 for r in range(asked.ranks))
    wall = time.monotonic() - begun
    logs.drain()
    share = (cpu_s() - used) / wall
    logs.close()
    total = lines * asked.ranks
    there = lost(folder, asked.ranks, lines) if asked.kind == "plain" and asked.max_size >= 64 << 30 else None
    size = sum(path.stat().st_size for path in folder.attempt_logs(1).iterdir())
    print(f"{asked.kind}: {asked.ranks} ranks x {lines / wall:,.0f} = {total / wall:,.0f} lines/s for {wall:.1f} s")
    print(
        f"agent: {share:.1%} of a core, {share * wall / total * 1e6:.2f} us a line; longest poll {longest * 1e3:.0f} ms"
    )
    print(f"lines lost: {'not counted' if there is None else there}")
    print(f"disk: logs {size / 1e6:,.0f} MB, ranks' own files at the end {behind / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
