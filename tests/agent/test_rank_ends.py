"""How each kind of a rank's end is told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from zrun.core.deck import Phase
from zrun.core.rows import RowFlag, unpack_rows
from zrun.wire.order import End
from zrun.wire.report import Doing


def fails(place: Any, script: str, **spec: Any) -> dict[str, Any]:
    """The first failure of a script, then everything is ended."""

    async def story() -> dict[str, Any]:
        async with place.coordinator(place.brief(script, **spec)) as fake, place.agent(fake):
            await fake.run(1)
            report = await fake.until_doing(Doing.FAILED, 1)
            await fake.end(1, End.KILL)
            await fake.until_doing(Doing.IDLE, 1)
            failure: dict[str, Any] = report.failures[0]
            return failure

    return asyncio.run(story())


WAIT = "\nimport time; time.sleep(60)"


@pytest.mark.parametrize(
    ("script", "kind", "code", "signal"),
    [
        ("import os\nif rank == 1: os._exit(7)", "exited", 7, None),
        ("import os\nif rank == 1: os.abort()", "signaled", None, "SIGABRT"),
        ("import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)", "signaled", None, "SIGSEGV"),
    ],
)
def test_code_or_signal_comes_from_the_zombie(
    place: Any, script: str, kind: str, code: int | None, signal: str | None
) -> None:
    failure = fails(place, script + WAIT)
    assert (failure["rank"], failure["kind"], failure["exit_code"], failure["signal"]) == (1, kind, code, signal)


def test_a_rank_that_leaves_with_0_while_others_go_on_is_early(place: Any) -> None:
    script = "import os\nthis.session()\nfor n in range(1, 100000):\n    step(n)\n    if rank == 1: os._exit(0)"
    failure = fails(place, script)
    assert (failure["rank"], failure["kind"]) == (1, "early-exit")


def test_words_of_a_rank_that_still_unwinds_come_before_its_victims_end(place: Any) -> None:
    """Rank 1 raises and takes long in its teardown; rank 0 dies of it first."""
    script = """
import os, time
from zrun.core.notes import NoteKind
if rank == 1:
    notes.write(NoteKind.LAST_WORDS, final=False, exception="ValueError", message="the cause", step=0)
    time.sleep(60)
time.sleep(0.3)
os._exit(1)
"""
    failure = fails(place, script)
    assert (failure["rank"], failure["exception"]) == (1, "ValueError")


def test_a_process_that_stays_after_its_script_is_ended_without_blame(
    place: Any, living: Callable[[], list[int]]
) -> None:
    script = "import threading, time\nif rank == 0: threading.Thread(target=time.sleep, args=(60,)).start()"

    async def story() -> None:
        brief = place.brief(script, watchdog={"exit_s": 0.5})
        async with place.coordinator(brief) as fake, place.agent(fake):
            await fake.run(1)
            report = await fake.until_doing(Doing.FINISHED, 1)
            assert report.failures == []
            assert "rank 0 did not exit" in report.warnings[0]
            assert living() == []

    asyncio.run(story())
    assert (place.run_dir / "node-a" / "attempt-1" / "lingering" / "stacks" / "rank-0.txt").exists()


def test_a_stopped_rank_is_seen_and_looked_into(place: Any) -> None:
    script = "import os, signal\nthis.session()\nstep(1)\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)" + WAIT

    async def story() -> None:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            report = await fake.until(
                lambda r: any(RowFlag.NODE_OTHERS_RUN in row.flags for row in unpack_rows(r.rows))
            )
            row = unpack_rows(report.rows)[1]
            assert (row.rank, row.state) == (1, "T")
            assert row.stopped_s >= 0.5
            await fake.end(1, End.TERM, 1.0, collect=3)
            await fake.until_doing(Doing.IDLE, 1)

    asyncio.run(story())
    assert "train.py" in (place.run_dir / "incidents" / "0003" / "stacks" / "rank-1.txt").read_text()


def test_a_rank_that_left_with_a_code_keeps_it_when_zrun_ends_its_process(place: Any) -> None:
    script = """
import time
from zrun.core.notes import NoteKind
if rank == 1:
    notes.write(NoteKind.LAST_WORDS, final=True, exception=None, exit_code=75, step=0)
time.sleep(60)
"""

    async def story() -> dict[int, Any]:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until_doing(Doing.FAILED, 1)
            await fake.end(1, End.KILL)
            report = await fake.until_doing(Doing.IDLE, 1)
            return {failure["rank"]: failure for failure in report.failures}

    failures = asyncio.run(story())
    assert (failures[1]["kind"], failures[1]["exit_code"], failures[1]["signal"]) == ("exited", 75, None)
    assert (failures[0]["kind"], failures[0]["exit_code"], failures[0]["signal"]) == ("ended-by-us", None, None)
    assert "SIGKILL" in failures[0]["message"]


@pytest.mark.parametrize("how", ["time.sleep(60)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_the_line_at_which_a_rank_hung_is_told_once_its_stack_was_taken(place: Any, how: str) -> None:
    script = f"import os, signal, time\nthis.session()\nstep(1)\n\ndef load():\n    this.deck.enter_phase(7, 'load'); {how}\n\nload()"

    async def story() -> dict[int, Any]:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until(lambda r: all(row.phase is Phase.OWN for row in unpack_rows(r.rows)) and bool(r.rows))
            await fake.end(1, End.KILL, collect=1)
            report = await fake.until_doing(Doing.IDLE, 1)
            return {failure["rank"]: failure["where"] for failure in report.failures}

    assert asyncio.run(story()) == {0: "train.py:6", 1: "train.py:6"}


def test_a_fatal_signals_own_stack_is_evidence_and_names_the_line(place: Any) -> None:
    script = (
        "import faulthandler, ctypes, time\nif rank == 1:\n    faulthandler.enable(this.dump)\n    ctypes.string_at(0)"
    )

    async def story() -> dict[int, Any]:
        async with place.coordinator(place.brief(script + WAIT)) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until_doing(Doing.FAILED, 1)
            await fake.end(1, End.KILL, collect=1)
            report = await fake.until_doing(Doing.IDLE, 1)
            return {failure["rank"]: (failure["signal"], failure["where"]) for failure in report.failures}

    assert asyncio.run(story())[1] == ("SIGSEGV", "train.py:4")
    assert "Segmentation fault" in (place.run_dir / "incidents" / "0001" / "stacks" / "rank-1.txt").read_text()


def test_setup_that_does_not_end_is_ended_and_says_so(place: Any, living: Callable[[], list[int]]) -> None:
    failure = fails(place, "pass", setup="echo begun; sleep 60 & sleep 60", watchdog={"setup_s": 0.5})
    assert (failure["kind"], failure["signal"], failure["exit_code"]) == ("setup", None, None)
    assert failure["message"] == "the set-up commands did not end within 0.5 s (watchdog.setup)"
    assert failure["last_lines"][0] == "begun"  # the shell may still say that its sleep was killed
    assert living() == []


def test_auto_without_a_gpu_says_that_one_rank_runs(place: Any) -> None:
    async def story() -> None:
        async with place.coordinator(place.brief("pass")) as fake, place.agent(fake):
            await fake.run(1, 0)
            report = await fake.until_doing(Doing.FINISHED, 1)
            assert len(unpack_rows(report.rows)) == 1
            assert "no GPU: one rank runs" in report.warnings[0]

    asyncio.run(story())
