"""An agent led by a coordinator through whole attempts, with real processes and ranks that need no torch."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from zrun.core.rows import RowFlag, unpack_rows
from zrun.wire.order import End, JobOrder
from zrun.wire.report import Doing

TRAIN = """
this.session()
for n in range(1, 6):
    step(n)
    print("step", n, "of rank", rank)
"""
KILLED = """
import os, signal, pathlib, time
this.session()
for n in range(1, 1000):
    step(n)
    print("line", n)
    if n == 5 and rank == 1 and os.environ["ZRUN_ATTEMPT"] == "1":
        print("the last line", end="")
        import sys; sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 8 and os.environ["ZRUN_ATTEMPT"] == "2":
        break
"""


def lines_of(place: Any, attempt: int, rank: int) -> list[dict[str, Any]]:
    path = place.run_dir / "logs" / f"attempt-{attempt}" / f"rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_is_run_to_its_end_and_its_lines_carry_their_step(place: Any, living: Callable[[], list[int]]) -> None:
    async def story() -> None:
        async with place.coordinator(place.brief(TRAIN)) as fake, place.agent(fake):
            await fake.run(1)
            report = await fake.until_doing(Doing.FINISHED, 1)
            assert report.failures == []
            rows = unpack_rows(report.rows)
            assert [row.rank for row in rows] == [0, 1]
            assert all(RowFlag.FINISHED in row.flags and row.step == 5 for row in rows)
            assert living() == []
            await fake.order(JobOrder(attempt=1, release=True))
            await fake.until_gone()

    asyncio.run(story())
    for rank in (0, 1):
        lines = lines_of(place, 1, rank)
        assert [line["msg"] for line in lines] == [f"step {n} of rank {rank}" for n in range(1, 6)]
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
        assert {line["node"] for line in lines} == {"a"}


def test_a_killed_rank_fails_the_attempt_and_the_next_one_runs(place: Any, living: Callable[[], list[int]]) -> None:
    async def story() -> None:
        async with place.coordinator(place.brief(KILLED)) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until_doing(Doing.FAILED, 1)
            (failure,) = failed.failures
            assert (failure["rank"], failure["signal"], failure["kind"]) == (1, "SIGKILL", "signaled")
            assert failure["step"] == 5
            assert failure["last_lines"][-1] == "the last line"
            await fake.end(1, End.KILL, collect=1)
            idle = await fake.until_doing(Doing.IDLE, 1)
            assert idle.collected == 1
            assert [f["kind"] for f in idle.failures] == ["signaled", "ended-by-us"]
            assert living() == []
            await fake.run(2)
            await fake.until_doing(Doing.FINISHED, 2)

    asyncio.run(story())
    assert [line["msg"] for line in lines_of(place, 1, 1)[-2:]] == [
        "the last line",
        "[zrun: killed by SIGKILL, not by zrun]",
    ]
    stack = (place.run_dir / "incidents" / "0001" / "stacks" / "rank-0.txt").read_text()
    assert "in step" in stack
    facts = json.loads((place.run_dir / "incidents" / "0001" / "node-a.json").read_text())
    assert [rank["alive"] for rank in facts["ranks"]] == [True, False]


def test_all_ranks_save_and_stop_at_one_step(place: Any) -> None:
    script = "this.session()\nfor n in range(1, 100000):\n    step(n, 0.002 + 0.003 * rank)\n"

    async def story() -> None:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until(lambda r: bool(r.rows) and all(row.step > 3 for row in unpack_rows(r.rows)))
            await fake.run(1, save=1)
            saved = await fake.until(lambda r: r.saved_at is not None)
            assert saved.doing == Doing.RUNNING
            assert saved.checkpoints[-1].step == saved.saved_at
            await fake.end(1, End.SAVE, 30.0)
            idle = await fake.until_doing(Doing.IDLE, 1)
            assert idle.stopped_at is not None
            assert idle.stopped_at > (saved.saved_at or 0)
            assert idle.failures == []

    asyncio.run(story())


def test_a_rank_that_raises_is_named_with_its_words(place: Any) -> None:
    script = "this.session()\nstep(1)\nif rank == 1: raise ValueError('bad sample')\nimport time; time.sleep(60)\n"

    async def story() -> None:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until_doing(Doing.FAILED, 1)
            (failure,) = failed.failures
            assert (failure["kind"], failure["exception"], failure["message"]) == ("raised", "ValueError", "bad sample")
            assert failure["exit_code"] == 1
            await fake.end(1, End.TERM, 2.0)
            await fake.until_doing(Doing.IDLE, 1)

    asyncio.run(story())


def test_a_taken_port_is_tried_again_within_the_attempt(place: Any) -> None:
    counter = place.work / "ports"
    counter.write_text("2")

    async def story() -> None:
        brief = place.brief(TRAIN, env={"FAIL_PORTS": str(counter)})
        async with place.coordinator(brief) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until_doing(Doing.FINISHED, 1)

    asyncio.run(story())
    assert counter.read_text() == "0"


def test_a_missing_script_is_said_before_anything_is_started(place: Any) -> None:
    async def story() -> None:
        brief = place.brief(TRAIN)
        (place.work / "train.py").unlink()
        async with place.coordinator(brief) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until_doing(Doing.FAILED, 1)
            assert failed.failures[0]["kind"] == "launch"
            assert "train.py does not exist" in failed.failures[0]["message"]
            await fake.end(1)
            await fake.until_doing(Doing.IDLE, 1)

    asyncio.run(story())


def test_setup_runs_once_and_its_failure_is_an_end_of_its_own(place: Any) -> None:
    async def story() -> None:
        brief = place.brief(TRAIN, setup="echo preparing; test -e ready")
        async with place.coordinator(brief) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until_doing(Doing.FAILED, 1)
            assert (failed.failures[0]["kind"], failed.failures[0]["last_lines"]) == ("setup", ["preparing"])
            await fake.end(1)
            await fake.until_doing(Doing.IDLE, 1)
            (place.work / "ready").touch()
            await fake.run(2)
            await fake.until_doing(Doing.FINISHED, 2)

    asyncio.run(story())
    assert (place.run_dir / "node-a" / "setup.done").exists()


def test_training_goes_on_while_the_coordinator_is_away(place: Any) -> None:
    script = "this.session()\nfor n in range(1, 100000):\n    step(n)\n"

    async def story() -> None:
        brief = place.brief(script)
        async with place.coordinator(brief) as first, place.agent(first) as task:
            await first.run(1)
            await first.until(lambda r: bool(r.rows) and all(row.step > 3 for row in unpack_rows(r.rows)))
            hello = first.hello
            async with place.coordinator(brief) as second:  # another port: the agent reads coordinator.json again
                assert first.socket is not None
                await first.socket.close()
                await second.connected()
                assert second.hello == hello
                report = await second.until(lambda r: r.doing == Doing.RUNNING)
                assert report.attempt == 1
                await second.end(1)
                await second.until_doing(Doing.IDLE, 1)
                await second.leave()
                await asyncio.wait_for(task, 15)

    asyncio.run(story())
