"""A real job in a real memory cgroup; where cgroups cannot be written, the counters are files of the test's."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zrun.agent.oom import MemoryWatch

SCRIPT = Path(__file__).resolve().parent / "scripts" / "eats_memory.py"
LIMIT = 1200 << 20
TOPS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}


@pytest.fixture
def group() -> Iterator[Path | None]:
    """A memory cgroup of 1.2 GB that this test may put processes into; None where there is none to be had."""
    for top, limit in TOPS.items():
        made = top / f"zrun-test-{os.getpid()}"
        try:
            made.mkdir()
            (made / limit).write_text(f"{LIMIT}\n")
        except OSError:
            with contextlib.suppress(OSError):
                made.rmdir()
            continue
        yield made
        for pid in (made / "cgroup.procs").read_text().split():
            (top / "cgroup.procs").write_text(pid)
        made.rmdir()
        return
    yield None


def start_in(group: Path, job: Any) -> None:
    """`zrun launch` and all it starts, in the cgroup."""
    command = [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"]
    with (job.folder / "launch-1.out").open("w") as out:
        process = subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command], cwd=job.folder, env=job.env,
            text=True, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    job.launches.append(process)


@pytest.mark.long
def test_a_rank_that_the_kernel_kills_for_memory_is_called_that(
    make_job: Callable[..., Any], group: Path | None, tmp_path: Path
) -> None:
    if group is None:
        _with_files(tmp_path)
        return
    job = make_job(str(SCRIPT), restart="policy: never")
    start_in(group, job)
    assert job.finish() == 100, job.story()
    incident = job.verdict["incidents"][0]
    assert (incident["class"], incident["rank"], incident["signal"]) == ("oom", 1, "SIGKILL"), job.story()
    assert 300 << 20 < incident["peak_rss_bytes"] < LIMIT
    assert "the kernel killed it for memory" in " ".join(incident["because"])
    assert f"limit of its cgroup {LIMIT >> 20:,} MiB" in " ".join(incident["because"])
    ends = {end["rank"]: end for end in job.verdict["attempts"][0]["ends"]}
    assert ends[0]["peak_rss_bytes"] < ends[1]["peak_rss_bytes"]
    assert "out of memory" in job.output()


def _with_files(folder: Path) -> None:
    cgroup, proc = folder / "cgroup", folder / "proc"
    (proc / "11").mkdir(parents=True)
    cgroup.mkdir()
    (proc / "11" / "cgroup").write_text("0::/\n")
    (proc / "11" / "status").write_text("VmHWM:\t 900000 kB\n")
    (cgroup / "memory.events").write_text("oom_kill 0\n")
    watch = MemoryWatch(100.0, proc=proc, cgroups=cgroup)
    watch.look({1: 11}, 101.0)
    (cgroup / "memory.events").write_text("oom_kill 1\n")
    assert watch.killed(1, 101.2, 101.3)


@pytest.mark.long
def test_a_rank_killed_by_hand_is_no_want_of_memory_though_somebody_else_had_it(
    make_job: Callable[..., Any], group: Path | None
) -> None:
    """The kernel killed another process of the same cgroup a while ago."""
    if group is None:
        return
    job = make_job(f"{SCRIPT.with_name('stories.py')} sleeps 900", restart="policy: never",
                   extra="watchdog: {enabled: false}\n")  # fmt: skip
    (job.folder / "glutton.py").write_text("held = []\nwhile True: held.append(bytearray(16 << 20))\n")
    start_in(group, job)
    job.wait_for_step(3)
    glutton = subprocess.run(
        ["sh", "-c", f'echo $$ > {group}/cgroup.procs; echo 1000 > /proc/self/oom_score_adj; exec "$@"', "sh",
         sys.executable, "glutton.py"], cwd=job.folder, check=False,
    )  # fmt: skip
    assert glutton.returncode == -9
    pid = job.ranks()[1]["pid"]
    now = job.status()["now_s"]
    job.until("the kill to be some seconds ago", lambda: job.status()["now_s"] > now + 4)
    os.kill(pid, 9)
    assert job.finish() == 100, job.story()
    incident = job.verdict["incidents"][0]
    assert (incident["class"], incident["rank"], incident["signal"]) == ("crash", 1, "SIGKILL"), job.story()
