"""A disk without room in the run's folder: the agent lives on, and says what it is."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zrun.wire.order import End, Leave
from zrun.wire.report import Doing

WORKS = """
this.session()
import os, time
for n in range(1, 100000):
    try:
        step(n)
        os.write(1, b"x" * 200 + b"\\n")
    except OSError:
        time.sleep(0.01)
"""


@pytest.fixture
def small(place: Any) -> Iterator[Any]:
    """A run folder of 3 MB."""
    token = (place.run_dir / "token").read_bytes()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "zrun-test", str(place.run_dir)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this account may not mount a small disk")
    (place.run_dir / "token").write_bytes(token)
    yield place
    subprocess.run(["umount", "-l", str(place.run_dir)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass  # full


def test_an_agent_whose_disk_is_full_ends_no_job_and_goes_on(small: Any) -> None:
    async def story() -> None:
        async with small.coordinator(small.brief(WORKS)) as fake:
            agent = small.agent_process()
            try:
                await fake.connected()
                await fake.run(1)
                await fake.until(lambda r: r.doing == Doing.RUNNING)
                fill(small.run_dir)
                report = await fake.until(lambda r: any("No space left" in text for text in r.warnings))
                assert (report.doing, len(report.warnings)) == (Doing.RUNNING, 1)
                await fake.end(1, End.KILL, collect=1)
                await fake.until_doing(Doing.IDLE, 1)
                await fake.run(2)
                report = await fake.until(lambda r: r.attempt == 2 and r.doing in (Doing.RUNNING, Doing.FAILED))
                if report.doing == Doing.FAILED:
                    assert report.failures[0]["message"].startswith("disk full: ")
                    assert "bytes free" in report.failures[0]["message"]
                await fake.end(2, End.KILL)
                await fake.until_doing(Doing.IDLE, 2)
                (small.run_dir / "filler").unlink()
                await fake.run(3)
                await fake.until(lambda r: r.attempt == 3 and r.doing == Doing.RUNNING)
                assert agent.poll() is None
                await fake.say(Leave("done"))
                assert await asyncio.to_thread(agent.wait, 20) == 0
            finally:
                agent.kill()
                await asyncio.to_thread(agent.wait, 20)

    asyncio.run(story())
