"""Real jobs that failed, recorded by record_stories.py: whom a tired person has to be told of, and what followed."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass
from zrun.machine.blame import Verdict, blame
from zrun.machine.echo import Weight, weigh
from zrun.machine.events import Suspected

RECORDED = Path(__file__).resolve().parent / "recorded"
CRASH, HANG, OOM, DISK = FaultClass.CRASH, FaultClass.HANG, FaultClass.OOM, FaultClass.DISK


@dataclass(frozen=True)
class Told:
    """What blame was given."""

    failures: list[Failure]
    suspicion: Suspected | None
    lost: list[str]
    ran_before: bool

    def blame(self, failures: list[Failure] | None = None) -> Verdict:
        given = self.failures if failures is None else failures
        return blame(given, self.suspicion, self.lost, ran_before=self.ran_before)


def story(kind: str) -> Told:
    told = json.loads((RECORDED / f"{kind}.json").read_text())
    suspicion = msgspec.convert(told["suspicion"], Suspected) if told["suspicion"] else None
    return Told([Failure.from_dict(f) for f in told["failures"]], suspicion, told["lost_nodes"], told["ran_before"])


EXPECTED: dict[str, tuple[FaultClass, int, tuple[int, ...], str]] = {
    "raises": (CRASH, 1, (0,), "rank 1: ValueError: sample 17 is broken"),
    "slow_finally": (CRASH, 1, (0,), "rank 1: IndexError: index 9"),
    "exit_0": (CRASH, 1, (0,), "rank 1 ended with code 0 before the others"),
    "exit_7": (CRASH, 1, (0,), "rank 1: exited with code 7"),
    "sys_exit_7": (CRASH, 1, (0,), "rank 1: exited with code 7"),
    "exit_137": (CRASH, 1, (0,), "rank 1: exited with code 137"),
    "kill": (CRASH, 1, (0, 2), "rank 1: killed by SIGKILL"),
    "abort": (CRASH, 1, (0,), "rank 1: killed by SIGABRT"),
    "segfault": (CRASH, 1, (0,), "rank 1: killed by SIGSEGV"),
    "memory_error": (OOM, 1, (0,), "rank 1: MemoryError"),
    "allocator": (OOM, 1, (0,), "rank 1: RuntimeError"),
    "waits_in_vain": (HANG, 1, (0,), "rank 1 not there"),
    "sleeps": (HANG, 1, (0,), "rank 1 not there"),
    "stops": (HANG, 1, (0,), "rank 1"),
    "broken_pipe": (CRASH, 1, (0,), "rank 1: BrokenPipeError"),
    "loader_killed": (CRASH, 1, (0,), "rank 1: "),
    "loader_raises": (CRASH, 1, (0,), "rank 1: KeyError"),
    "all_the_same": (CRASH, 0, (), "ranks 0-3: ValueError: no such config"),
    "most_the_same": (CRASH, 0, (2,), "ranks 0-1, 3: ValueError: no such config"),
    "chained": (CRASH, 1, (0,), "rank 1: KeyError: 'missing'"),
    "keyboard": (CRASH, 1, (0,), "rank 1: KeyboardInterrupt"),
    "disk_full": (DISK, 1, (0,), "rank 1: OSError: [Errno 27] File too large"),
    "save_disk_full": (DISK, 1, (0,), "rank 1: RuntimeError"),
    "http_reset": (CRASH, 1, (0,), "rank 1: ConnectionResetError"),
    "network_words": (CRASH, 1, (0,), "rank 1: RuntimeError: rank 0 of the feature store"),
    "user_timeout": (CRASH, 1, (0,), "rank 1: TimeoutError: the lock on vocab.json"),
    "end_of_file": (CRASH, 1, (0,), "rank 1: "),
    "two_raise": (CRASH, 1, (0,), "rank 1: ValueError: sample 17 is broken"),
    "odd_survivor": (CRASH, 1, (0,), "rank 1: killed by SIGKILL"),
    "wrapped_echo": (CRASH, 1, (0,), "rank 1: killed by SIGKILL"),
    "hidden_echo": (CRASH, 1, (0,), "rank 1: exited with code 3"),
    "work_wait": (CRASH, 1, (0,), "rank 1: killed by SIGKILL"),
    "monitored_barrier": (HANG, 1, (0,), "rank 1 not there"),
    "mismatch": (CRASH, 0, (1,), "rank 0: killed by SIGABRT"),
    "store_wait": (HANG, 1, (0,), "rank 1: "),
    "backward_hook": (CRASH, 1, (0,), "rank 1: ArithmeticError: the gradient is not finite"),
    "at_import": (CRASH, 0, (1, 2, 3), "rank 0: ModuleNotFoundError"),
    "setup_one": (CRASH, 1, (0, 2), "rank 1: FileNotFoundError"),
}
KINDS = sorted(path.stem for path in RECORDED.glob("*.json"))


def test_each_recording_has_an_expectation_and_there_are_many() -> None:
    assert set(KINDS) == set(EXPECTED)
    assert len(KINDS) >= 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_cause_of_a_real_failure_is_named(kind: str) -> None:
    fault, rank, followed, says = EXPECTED[kind]
    verdict = story(kind).blame()
    assert (verdict.fault, verdict.rank, verdict.followed) == (fault, rank, followed), verdict
    assert verdict.headline.startswith(says) or (fault is HANG and says in verdict.headline)
    assert rank in verdict.alike
    assert not set(verdict.alike) & set(verdict.followed)


def test_what_native_code_said_of_a_mismatch_is_among_the_reasons() -> None:
    reasons = " ".join(story("mismatch").blame().because)
    assert "Received data size doesn't match expected size" in reasons
    assert "may be the one that is wrong" in reasons


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_in_which_it_was_told_does_not_matter(kind: str) -> None:
    told = story(kind)
    wanted = told.blame()
    for seed in range(6):
        shuffled = told.failures[:]
        random.Random(seed).shuffle(shuffled)
        assert told.blame(shuffled) == wanted


_late = st.sampled_from([
    ("RuntimeError", "[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:30127"),
    ("torch.distributed.DistBackendError", "NCCL error: remote process exited or there was a network error"),
    ("torch.distributed.DistNetworkError", "failed to recv, got 0 bytes"),
])  # fmt: skip


@given(st.sampled_from(KINDS), st.lists(_late, max_size=4), st.integers(0, 3), st.floats(0.0, 60.0))
def test_what_comes_after_the_cause_never_changes_it(kind: str, echoes: list[tuple[str, str]], ours: int,
                                                     later: float) -> None:  # fmt: skip
    told = story(kind)
    wanted = told.blame()
    if wanted.failure is not None and weigh(wanted.failure) in {Weight.ECHO, Weight.OURS}:
        return  # nobody left a cause: more echoes say more
    last = max(f.at for f in told.failures)
    more = [Failure(50 + n, "b", FailureKind.RAISED, last + later + n, exception=name, message=text, exit_code=1,
                    step=9, collective="all_reduce #9") for n, (name, text) in enumerate(echoes)]  # fmt: skip
    more += [Failure(80 + n, "b", FailureKind.ENDED_BY_US, last + later, signal="SIGKILL") for n in range(ours)]
    found = told.blame([*told.failures, *more])
    assert (found.fault, found.rank, found.headline, found.failure) == (
        wanted.fault, wanted.rank, wanted.headline, wanted.failure,
    )  # fmt: skip
    assert found.same_as == wanted.same_as
    assert set(found.followed) == {*wanted.followed, *(f.rank for f in more)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_failure_of_a_later_attempt_is_the_same(kind: str) -> None:
    """Other pids, ports, addresses and times."""
    told = story(kind)
    again = [replace(f, at=f.at + 1000.0, pid=(f.pid or 0) + 77) for f in told.failures]
    assert told.blame(again).same_as == told.blame().same_as
