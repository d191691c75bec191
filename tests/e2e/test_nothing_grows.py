"""Many restarts in a row leave agent, coordinator and supervisor as they were: descriptors, threads, memory."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve().parent / "scripts" / "again.py"
STAND_IN = ROOT / "tests" / "agent" / "stand_ins" / "torchrun.py"
PROGRAMS = ("agent", "coordinator", "supervisor", "keeper")
GROWTH_KIB = {10: 6 << 10, 100: 12 << 10}
"""What the memory of one program may grow by, after the first attempts, for what it has to remember of the others."""


def looked_at(job: Any) -> dict[str, dict[str, Any]]:
    return {what: looked_at_one(job.pid_of(what)) for what in PROGRAMS}


def looked_at_when_quiet(job: Any, before: dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """A paper being written or an answer being given is open for a moment."""
    deadline = time.monotonic() + 10
    last = None
    while True:
        now = looked_at(job)
        files = {what: now[what]["files"] for what in PROGRAMS}
        wanted = {what: before[what]["files"] for what in PROGRAMS} if before is not None else last
        if files == wanted or time.monotonic() >= deadline:
            return now
        last = files
        time.sleep(0.5)


def looked_at_one(pid: int) -> dict[str, Any]:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    kinds = sorted(name_of(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return {"pid": pid, "threads": int(status["Threads"]), "files": kinds, "kib": int(status["VmRSS"].split()[0])}


def name_of(descriptor: Path) -> str:
    """Without numbers: the files of attempt 90 are those of attempt 10."""
    try:
        return "".join(c for c in os.readlink(descriptor) if not c.isdigit())  # noqa: PTH115 - not always a path
    except OSError:
        return "closed meanwhile"


@pytest.mark.long
@pytest.mark.parametrize("restarts", [10, 100])
def test_restarts_in_a_row_leave_the_same_descriptors_threads_and_memory(
    make_job: Callable[..., Any], tmp_path: Path, restarts: int
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase " $* " in *" torch.distributed.run "*) set -- {shlex.quote(str(STAND_IN))} "$@";; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    gates = (4, restarts + 1)
    job = make_job(
        str(SCRIPT), extra=f"python: {python}\n", restart="max_restarts: 500",
        env={"LAST": str(restarts + 1), "GATES": ",".join(map(str, gates))},
    )  # fmt: skip
    job.start()
    seen: list[dict[str, dict[str, Any]]] = []
    for gate in gates:
        job.until(f"attempt {gate}", lambda gate=gate: (s := job.status()).get("attempt") == gate
                  and s.get("state") == "RUNNING" and (s.get("step") or 0) > gate, 30 + 3 * restarts)  # fmt: skip
        seen.append(looked_at_when_quiet(job, seen[0] if seen else None))
        (job.folder / f"go-{gate}").touch()
    assert job.finish() == 0, job.story()
    assert len(job.verdict["attempts"]) == restarts + 1
    for what in PROGRAMS:
        before, after = seen[0][what], seen[1][what]
        print(what, {key: (before[key], after[key]) for key in ("threads", "kib")}, len(before["files"]))
        assert after["pid"] == before["pid"], f"{what} died"
        assert after["files"] == before["files"], what
        assert after["threads"] == before["threads"], what
        assert after["kib"] - before["kib"] <= GROWTH_KIB[restarts], (what, before["kib"], after["kib"])
    assert not list(Path("/dev/shm").glob(f"{tmp_path.name[:40]}-*"))
