"""The same agent with the real torchrun and the real bootstrap."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from zrun.core.rows import RowFlag, unpack_rows
from zrun.wire.order import End
from zrun.wire.report import Doing

TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
for n in range(10**6 if os.environ["ZRUN_ATTEMPT"] == "1" else 3):
    dist.all_reduce(x)
    x /= dist.get_world_size()
print("sum", float(x), os.environ["RANK"], os.environ["WORLD_SIZE"])
dist.destroy_process_group()
"""


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_a_rank_killed_under_torchrun_is_named_and_the_next_attempt_finishes(
    place: Any, living: Callable[[], list[int]]
) -> None:
    async def story() -> None:
        async with place.coordinator(place.brief(TRAIN, python=sys.executable)) as fake, place.agent(fake):
            await fake.run(1)
            running = await fake.until(
                lambda r: r.doing == Doing.RUNNING
                and all(RowFlag.IN_COLLECTIVE in row.flags or row.coll_seq > 50 for row in unpack_rows(r.rows)), 90.0,
            )  # fmt: skip
            os.kill(unpack_rows(running.rows)[1].pid, signal.SIGKILL)
            failed = await fake.until_doing(Doing.FAILED, 1)
            causes = [(f["rank"], f["signal"], f["exception"]) for f in failed.failures]
            assert (1, "SIGKILL", None) in causes
            await fake.end(1, End.KILL, collect=1)
            await fake.until_doing(Doing.IDLE, 1)
            assert living() == []
            await fake.run(2)
            await fake.until(lambda r: r.doing == Doing.FINISHED and r.attempt == 2, 90.0)
            assert living() == []

    asyncio.run(story())
    lines = (place.run_dir / "logs" / "attempt-2" / "rank-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["msg"] for line in lines] == ["sum 1.0 1 2"]


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_a_script_that_fails_at_import_is_told_with_its_exception(place: Any) -> None:
    async def story() -> None:
        brief = place.brief("import no_such_module\n", python=sys.executable)
        async with place.coordinator(brief) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until(lambda r: r.doing == Doing.FAILED and r.settled, 60.0)
            assert failed.failures[0]["exception"] == "ModuleNotFoundError"
            assert failed.failures[0]["where"].endswith("train.py:1")
            await fake.end(1, End.KILL)
            await fake.until_doing(Doing.IDLE, 1)

    asyncio.run(story())
