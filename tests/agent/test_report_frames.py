"""Whatever a report holds, it leaves the agent: a frame that cannot be sent would be tried again for ever."""

import asyncio
from typing import Any

from zrun.agent.link import frame_of
from zrun.core.failure import Failure, FailureKind
from zrun.wire.frames import LARGEST_UP, decode_up
from zrun.wire.report import Doing, JobReport, NodeReport, Vitals


def report(**more: Any) -> NodeReport:
    job = JobReport(doing=Doing.FAILED, attempt=1, seen=1, rows=b"\xff\x00", **more)
    vitals = Vitals(cores=2, memory_bytes=1, memory_free_bytes=1, gpus=0, load1=0.0, host="h", agent_pid=1,
                    agent_rss_bytes=1)  # fmt: skip
    return NodeReport(node="a", boot="b", serial=1, order_serial=1, jobs={"toy": job}, vitals=vitals, at=1.0)


def sent(message: NodeReport) -> NodeReport:
    frame = frame_of(message)
    assert len(frame) <= LARGEST_UP
    back = decode_up(frame)
    assert isinstance(back, NodeReport)
    return back


def test_what_cannot_be_encoded_is_sent_escaped() -> None:
    job = sent(report(warnings=["\ud800"], phase_names={"0": "\udc80"})).jobs["toy"]
    assert (job.warnings, job.phase_names, job.rows) == (["\\ud800"], {"0": "\\udc80"}, b"\xff\x00")


def test_a_report_larger_than_is_read_is_sent_with_its_texts_cut() -> None:
    failure = Failure(1, "a", FailureKind.RAISED, 1.0, last_lines=["x" * 300_000] * 50)
    job = sent(report(failures=[failure.to_dict()])).jobs["toy"]
    assert "characters cut" in job.failures[0]["last_lines"][0]


def test_an_exception_with_a_lone_surrogate_is_reported(place: Any) -> None:
    script = """
import os, sys
from zrun.core.notes import NoteKind
if rank == 1:
    os.write(1, b'{"msg": "ERROR \\\\ud800"}\\n')
    os.write(notes._fd, b'{"kind": "last-words", "at": 1.0, "final": true, "exception": "E", "message": "x\\\\ud800"}\\n')
    os._exit(1)
import time; time.sleep(60)
"""

    async def story() -> None:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until_doing(Doing.FAILED, 1)
            assert failed.failures[0]["message"] == "x\\ud800"
            assert failed.failures[0]["last_lines"] == ["ERROR \\ud800"]
            await fake.end(1)
            await fake.until_doing(Doing.IDLE, 1)

    asyncio.run(story())
