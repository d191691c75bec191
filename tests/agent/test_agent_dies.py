"""What the keeper does when its agent dies, stands still, or when the keeper itself dies."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zrun.agent import proc_table
from zrun.wire.order import End, JobOrder, Leave
from zrun.wire.report import Doing

LEAVES_CHILDREN = """
import os, subprocess, sys, time
this.session()
subprocess.Popen(["sleep", "300"], start_new_session=True)
subprocess.Popen(["bash", "-c", "sleep 301 & exec setsid sleep 302"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(303)
    os._exit(0)
print("begun", flush=True)
for n in range(1, 100000):
    step(n)
    if os.environ["ZRUN_ATTEMPT"] == "2" and n == 3:
        break
"""


async def gone(living: Callable[[], list[int]], within_s: float) -> float:
    began = time.monotonic()
    while living():
        assert time.monotonic() < began + within_s, f"alive after {within_s} s: {living()}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def ended(process: Any) -> int:
    return int(await asyncio.to_thread(process.wait, 20))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nothing_lives_on_without_its_agent(
    place: Any, living: Callable[[], list[int]], shared_memory: Callable[[], list[str]], number: int
) -> None:
    async def story() -> None:
        brief = place.brief(LEAVES_CHILDREN)
        async with place.coordinator(brief) as fake:
            first = place.agent_process()
            try:
                await fake.connected()
                await fake.run(1)
                await fake.until(lambda r: len(living()) >= 11)
                assert shared_memory()
                first.send_signal(number)
                took = await gone(living, 2.0 if number == signal.SIGKILL else 6.0)
                print(f"gone after {took:.2f} s")
            finally:
                first.kill()
                await ended(first)
            assert fake.hello is not None
            second = place.agent_process()
            try:
                await fake.connected(fake.hello.boot)
                assert not [
                    r
                    for r in fake.reports
                    if r.boot == fake.hello.boot and brief.job in r.jobs and r.jobs[brief.job].attempt
                ]
                await fake.run(2)
                await fake.until_doing(Doing.FINISHED, 2)
                assert living() == []
                await fake.order(JobOrder(attempt=2, release=True))
                await fake.until_gone()
                await fake.say(Leave("done"))
                assert await ended(second) == 0
            finally:
                second.kill()
                await ended(second)

    asyncio.run(story())
    assert shared_memory() == []
    log = (place.run_dir / "logs" / "attempt-1" / "rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["msg"] for line in log] == ["begun"]


def keeper_of(agent: int) -> int:
    (keeper,) = [pid for pid in proc_table.children(agent) if b"zrun.agent.keeper" in cmdline(pid)]
    return keeper


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_dead_keeper_ends_the_attempt_and_its_successor_sweeps(place: Any, living: Callable[[], list[int]]) -> None:
    async def story() -> None:
        async with place.coordinator(place.brief(LEAVES_CHILDREN)) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until(lambda r: r.doing == Doing.RUNNING)
            os.kill(keeper_of(os.getpid()), signal.SIGKILL)
            await fake.until_doing(Doing.IDLE, 1)
            assert living() == []
            await fake.run(2)
            await fake.until_doing(Doing.FINISHED, 2)

    asyncio.run(story())


def test_an_agent_told_to_go_lets_its_jobs_save_first(place: Any, living: Callable[[], list[int]]) -> None:
    async def story() -> None:
        brief = place.brief("this.session()\nfor n in range(1, 100000):\n    step(n)\n")
        async with place.coordinator(brief) as fake:
            agent = place.agent_process()
            try:
                await fake.connected()
                await fake.run(1)
                await fake.until(lambda r: r.doing == Doing.RUNNING)
                agent.send_signal(signal.SIGUSR1)
                await fake.until(lambda r: r.term_seen)
                agent.send_signal(signal.SIGTERM)
                await fake.until(lambda _: fake.reports[-1].leaving_in_s is not None)
                await fake.end(1, End.SAVE, 30.0)
                idle = await fake.until_doing(Doing.IDLE, 1)
                assert idle.stopped_at is not None
                assert await ended(agent) == 0
            finally:
                agent.kill()
                await ended(agent)

    asyncio.run(story())
    assert living() == []


def test_an_agent_that_stood_still_blames_the_node_and_no_rank(place: Any, living: Callable[[], list[int]]) -> None:
    async def story() -> None:
        async with place.coordinator(place.brief(LEAVES_CHILDREN)) as fake:
            agent = place.agent_process()
            try:
                await fake.connected()
                await fake.run(1)
                await fake.until(lambda r: r.doing == Doing.RUNNING)
                os.kill(agent.pid, signal.SIGSTOP)
                await gone(living, 8.0)
                os.kill(agent.pid, signal.SIGCONT)
                report = await fake.until(lambda r: len(r.failures) == 3)
                assert [f["kind"] for f in report.failures] == ["node", "ended-by-us", "ended-by-us"]
                assert "stood still for 3 s" in report.failures[0]["message"]
                await fake.leave()
                assert await ended(agent) == 0
            finally:
                agent.kill()
                await ended(agent)

    asyncio.run(story())
