"""Frames between agent and coordinator read back, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.errors import ProtocolError
from zrun.wire.frames import LARGEST_UP, PROTOCOL, decode_down, decode_up, encode
from zrun.wire.order import Brief as BriefFrame
from zrun.wire.order import End, Ending, Goodbye, JobBrief, JobOrder, LaunchPlan, Order, Peer
from zrun.wire.report import CheckpointInfo, Doing, Hello, JobReport, NodeReport, Vitals


def test_reports_and_orders_read_back() -> None:
    job = JobReport(Doing.RUNNING, 2, 2, rows=b"\0" * 64, checkpoints=[CheckpointInfo(5, "b", "/p", 10, 0.1)])
    report = NodeReport("a", "boot", 7, 3, {"toy-1": job}, Vitals(cores=2), at=1.0)
    assert decode_up(encode(report)) == report
    plan = LaunchPlan(1, 0, 1, 2, "127.0.0.1", 0, [Peer("a")])
    order = Order("boot", 4, {"toy-1": JobOrder(run=plan), "b-1": JobOrder(ending=Ending(End.KILL, 0.0, "why"))})
    assert decode_down(encode(order)) == order
    for down in (Goodbye("no"), BriefFrame([JobBrief("j", "/r", {"name": "x"}, {"A": "b"})])):
        assert decode_down(encode(down)) == down
    hello = Hello(PROTOCOL, "a", "boot", "0.1")
    assert decode_up(encode(hello)) == hello


@given(st.binary(max_size=200))
def test_rubbish_is_refused_as_a_protocol_error(frame: bytes) -> None:
    for decode in (decode_up, decode_down):
        with pytest.raises(ProtocolError):
            decode(frame)


def test_a_huge_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        decode_up(b"\0" * (LARGEST_UP + 1))


def test_an_order_is_not_taken_for_a_report() -> None:
    with pytest.raises(ProtocolError):
        decode_up(encode(Goodbye("x")))


def test_half_a_surrogate_and_bottomless_nesting_are_refused_as_protocol_errors() -> None:
    good = encode(Hello(PROTOCOL, "abc", "boot", "0.1"))
    deep = encode(
        NodeReport("a", "b", 1, 1, {"j": JobReport(Doing.RUNNING, 1, 1, metrics={"m": "HERE"})}, Vitals(), 1.0)
    )
    for frame in (good.replace(b"abc", b"\xed\xa0\x80"), deep.replace(b"\xa4HERE", b"\x91" * 100_000 + b"\xc0")):
        with pytest.raises(ProtocolError):
            decode_up(frame)
