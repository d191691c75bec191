"""What the agent sees of ranks that stand still or are slow: work in their stacks, and shares of waiting."""

from typing import Any

import pytest
from tests.agent.test_node_machine import deck

from zrun.agent.at_work import AGAIN_S, FRESH_S, AtWork, works
from zrun.agent.wait_share import WaitShares

SAVING = """Thread 0x1 (most recent call first):
  File "/lib/python3.11/selectors.py", line 1 in select

Current thread 0x2 (most recent call first):
  File "/site/torch/serialization.py", line 850 in save
  File "/home/me/train.py", line 9 in main
"""
SPY_COMPILING = """Process 7: python train.py
Python v3.11

Thread 7 (active): "MainThread"
    compile (triton/compiler/compiler.py:200)
    main (train.py:3)
Thread 8 (idle): "saver"
    wait (threading.py:300)
"""
BESIDE = """Thread 0x1 (most recent call first):
  File "/site/torch/distributed/checkpoint/state_dict_saver.py", line 1 in write

Current thread 0x2 (most recent call first):
  File "/home/me/train.py", line 9 in main
"""
RUNNING_COMPILED = """Current thread 0x2 (most recent call first):
  File "/site/torch/_dynamo/eval_frame.py", line 1 in _fn
  File "/home/me/train.py", line 9 in main
"""


@pytest.mark.parametrize(
    ("stack", "at_work"),
    [(SAVING, True), (SPY_COMPILING, True), (BESIDE, False), (RUNNING_COMPILED, False), ("", False)],
)
def test_a_main_thread_inside_a_save_or_a_compilation_is_at_work(stack: str, at_work: bool) -> None:
    assert works(stack) is at_work


def test_it_counts_until_the_rank_moves_or_the_stack_is_old() -> None:
    seen = AtWork()
    seen.note({1: SAVING}, {1: deck(1)}, 100.0)
    assert seen.of(deck(1), 101.0)
    assert not seen.of(deck(1, progress=2), 101.0)
    assert not seen.of(deck(1), 100.0 + FRESH_S)
    assert not seen.of(deck(0), 101.0)


def test_a_suspect_that_does_not_move_is_looked_at_again() -> None:
    seen = AtWork()
    decks = {0: deck(0, coll_seq=5, coll_done=4), 1: deck(1)}
    seen.note({0: "", 1: ""}, decks, 100.0)
    assert seen.due(decks, 101.0) == []
    assert seen.due(decks, 100.0 + AGAIN_S) == [1], "one that waits in a collective does nothing else"
    assert seen.due({0: decks[0], 1: deck(1, progress=2)}, 106.0) == []


def steps(shares: WaitShares, count: int, waited_s: float, at: float, **more: Any) -> None:
    shares.note({1: deck(1, completed=count, coll_seq=count, coll_done=count, wait_s=waited_s, **more)}, at)


def test_the_share_of_waiting_is_taken_over_ten_steps_and_a_second() -> None:
    shares = WaitShares()
    steps(shares, 1, 0.0, 10.0)
    steps(shares, 9, 0.3, 10.8)
    assert shares.of(1) is None
    steps(shares, 21, 0.8, 12.0)
    assert shares.of(1) == pytest.approx(0.4)
    steps(shares, 31, 0.8, 13.0)
    assert shares.of(1) == pytest.approx(0.0)


def test_the_collective_it_is_in_counts_but_for_one_whose_end_nobody_sees() -> None:
    shares = WaitShares()
    steps(shares, 1, 0.0, 10.0)
    shares.note({1: deck(1, completed=11, coll_seq=12, coll_done=11, wait_s=0.2, coll_entered_at=11.0,
                         coll_op="all_reduce")}, 12.0)  # fmt: skip
    assert shares.of(1) == pytest.approx(0.6)
    blind = WaitShares()
    steps(blind, 1, 0.0, 10.0)
    blind.note({1: deck(1, completed=11, coll_seq=12, coll_done=11, wait_s=0.2, coll_entered_at=11.0,
                        coll_op="reduce_scatter_tensor")}, 12.0)  # fmt: skip
    assert blind.of(1) == pytest.approx(0.1)
