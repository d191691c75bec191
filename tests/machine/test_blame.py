"""Stories of how attempts end, and who has to be named: the first cause, never the loudest echo."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass
from zrun.machine.blame import blame
from zrun.machine.events import Suspected

CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:30127"
RESET = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [127.0.0.1]:2271: Connection reset by peer"
WAITED = "[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
PAIR = "[../gloo/transport/tcp/pair.cc:144] Application timeout caused pair closure"
NCCL = (
    "NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.21"
)
STOOD = "the agent of node a stood still for 8 s: its keeper ended the workers"
SAVE = "save of step 20 failed: rank 1: No space left on device"
FULL = "/data (0 bytes free of 1048576)"
BY_HAND = 'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\n    raise RuntimeError(text)\nRuntimeError: x'
LOADER = 'Traceback (most recent call last):\n  File "/v/torch/utils/data/dataloader.py", line 9, in f\nConnectionResetError: x'
STORE = "failed to recv, got 0 bytes"


def raised(rank: int, at: float, exception: str, message: str, **more: Any) -> Failure:
    known: dict[str, Any] = {"where": "train.py:10", "step": 5, "phase": "step", "exit_code": 1}
    kind = more.pop("kind", FailureKind.RAISED)
    return Failure(rank, "a", kind, at, exception=exception, message=message, **(known | more))


def lost_peer(rank: int, at: float, message: str = CLOSED, **more: Any) -> Failure:
    return raised(rank, at, "RuntimeError", message, collective="all_reduce #17", **more)


def end(rank: int, at: float, kind: FailureKind, **more: Any) -> Failure:
    known: dict[str, Any] = {"step": 5, "phase": "step"}
    return Failure(rank, "a", kind, at, **(known | more))


def killed(rank: int, at: float, signal: str = "SIGKILL", **more: Any) -> Failure:
    return end(rank, at, FailureKind.SIGNALED, signal=signal, **more)


def ours(rank: int, at: float, **more: Any) -> Failure:
    return end(rank, at, FailureKind.ENDED_BY_US, signal="SIGTERM", **more)


def suspect(rank: int, kind: str = "not-arrived", provable: bool = False) -> Suspected:
    return Suspected(
        attempt=1, ranks=[rank], kind=kind, provable=provable,
        roll_call=f"1 of 2 ranks in all_reduce #17; rank {rank} not there", because=["others wait"], node="a",
    )  # fmt: skip


@dataclass(frozen=True)
class Story:
    name: str
    failures: Sequence[Failure]
    rank: int | None
    fault: FaultClass = FaultClass.CRASH
    followed: tuple[int, ...] = ()
    says: str = ""
    because: str = ""
    suspicion: Suspected | None = None
    lost: tuple[str, ...] = field(default=())


E, F = FailureKind, FaultClass
STORIES = [
    Story("a lone exception", [raised(1, 1.0, "ValueError", "boom")], 1, says="rank 1: ValueError: boom"),
    Story(
        "an exception, and a peer that lost it",
        [raised(1, 1.0, "ValueError", "boom"), lost_peer(0, 1.03)], 1, followed=(0,), because="0.03 s later",
    ),
    Story(
        "the victim's death was seen first, the culprit still tears down",
        [lost_peer(0, 1.0), raised(1, 5.0, "IndexError", "index 9")], 1, followed=(0,), says="IndexError",
    ),
    Story("a silent kill", [killed(1, 1.0), lost_peer(0, 1.02, RESET)], 1, followed=(0,), says="killed by SIGKILL"),
    Story("a silent kill is not ours", [killed(1, 1.0)], 1, because="not sent by zrun"),
    Story("a kill seen after its echo", [lost_peer(0, 1.0), killed(1, 1.01)], 1, followed=(0,)),
    Story("exit code 7", [end(1, 1.0, E.EXITED, exit_code=7), lost_peer(0, 1.2)], 1, followed=(0,), says="code 7"),
    Story(
        "137 from a wrapper", [end(0, 1.0, E.EXITED, exit_code=137)], 0, says="code 137", because="killed by signal 9"
    ),
    Story(
        "left early with code 0",
        [end(1, 1.0, E.EARLY, exit_code=0), lost_peer(0, 1.2)], 1, followed=(0,), says="rank 1 ended with code 0 before the others",
    ),
    Story(
        "left early after another had failed",
        [raised(0, 1.0, "ValueError", "boom"), end(1, 1.5, E.EARLY, exit_code=0)], 0, followed=(1,), says="ValueError",
    ),
    Story(
        "left early before its peer saw an error of its own",
        [end(1, 1.0, E.EARLY, exit_code=0), raised(0, 9.0, "AssertionError", "no")], 0, followed=(1,),
    ),
    Story(
        "left early, told by the judge, and a peer with an error of its own",
        [raised(0, 9.0, "AssertionError", "no")], 0, suspicion=suspect(1, "early-exit", provable=True),
    ),
    Story(
        "left early after its peers had seen it go",
        [lost_peer(0, 1.0), lost_peer(2, 1.1, WAITED), end(1, 1.5, E.EARLY, exit_code=0)], 1, followed=(0, 2),
        says="rank 1 ended with code 0 before the others",
    ),
    Story(
        "left early, and a peer whose own connection was reset",
        [raised(0, 1.0, "ConnectionResetError", "[Errno 104]"), end(1, 1.5, E.EARLY, exit_code=0)], 1, followed=(0,),
    ),
    Story(
        "the agent stood still and its keeper ended the ranks",
        [end(-1, 9.0, E.NODE, message=STOOD), ours(0, 8.9), ours(1, 8.9)], None, F.NODE, followed=(0, 1),
        says="the agent of node a stood still for 8 s", because="node a failed its ranks",
    ),
    Story(
        "the same while a hang was suspected",
        [end(-1, 9.0, E.NODE, message=STOOD), ours(0, 8.9), ours(1, 8.9)], None, F.NODE, followed=(0, 1),
        suspicion=suspect(1),
    ),
    Story(
        "an exit code and the words in its last lines that a disk is full",
        [end(0, 1.0, E.EXITED, exit_code=1, last_lines=["loss 1", "write: No space left on device"])], 0, F.DISK,
        says="write: No space left on device",
    ),
    Story("killed by the kernel for memory", [end(1, 1.0, E.OOM, signal="SIGKILL"), lost_peer(0, 1.0)], 1, F.OOM, (0,)),
    Story(
        "CUDA out of memory",
        [raised(2, 1.0, "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"), lost_peer(0, 2.0)],
        2, F.OOM, (0,), because="ran out of memory",
    ),
    Story("MemoryError", [raised(0, 1.0, "MemoryError", "")], 0, F.OOM),
    Story(
        "the CPU allocator",
        [raised(0, 1.0, "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")],
        0, F.OOM,
    ),
    Story(
        "disk full on one rank",
        [raised(1, 1.0, "OSError", "[Errno 28] No space left on device: 'x'"), lost_peer(0, 1.1)], 1, F.DISK, (0,),
    ),
    Story(
        "disk full, disguised on the rank that failed first",
        [
            raised(0, 1.0, "RuntimeError", "[enforce fail at inline_container.cc:664] . unexpected pos 576 vs 534"),
            raised(1, 1.1, "OSError", "[Errno 122] Disk quota exceeded"),
        ], 1, F.DISK, (0,), because="full",
    ),
    Story("disk full, only disguised", [raised(0, 1.0, "RuntimeError", "unexpected pos 576 vs 534")], 0, F.DISK),
    Story(
        "a checkpoint error that every rank raises about rank 1",
        [
            raised(0, 1.0, "zrun.core.errors.CheckpointError", SAVE),
            raised(1, 1.1, "zrun.core.errors.CheckpointError", SAVE),
        ], 1, F.DISK, (0,),
    ),
    Story(
        "words of the network, raised by hand in the user's own code",
        [lost_peer(0, 1.0), raised(1, 1.2, "RuntimeError", "connection reset by peer: shard 3", traceback=BY_HAND)], 1,
        followed=(0,),
    ),
    Story(
        "a rank that says the network's words again is still an echo of a real end",
        [raised(0, 1.0, "RuntimeError", f"sync failed: {CLOSED}", traceback=BY_HAND), end(1, 1.2, E.EXITED, exit_code=3)],
        1, followed=(0,), says="code 3",
    ),
    Story(
        "the line to a loader worker broke",
        [raised(1, 1.0, "ConnectionResetError", "[Errno 104] Connection reset by peer", traceback=LOADER), lost_peer(0, 0.9),
         killed(2, 1.1, "SIGTERM")], 1, followed=(0, 2), because="DataLoader workers went away",
    ),
    Story(
        "a loader worker killed by the kernel for memory",
        [raised(1, 1.0, "RuntimeError", "DataLoader worker (pid 4) is killed by signal: Killed.", kind=E.OOM),
         lost_peer(0, 2.0)], 1, F.OOM, (0,), because="killed one of its DataLoader workers for memory",
    ),
    Story(
        "killed by the kernel, with what it held",
        [end(1, 1.0, E.OOM, signal="SIGKILL", peak_rss_bytes=900 << 20, memory_limit_bytes=1 << 30)], 1, F.OOM,
        because="the kernel killed it for memory (peak 900 MiB resident, limit of its cgroup 1,024 MiB)",
    ),
    Story(
        "a full disk that nobody mentions",
        [raised(1, 1.0, "RuntimeError", "the writer lost its place", phase="save", full_disks=[FULL]), lost_peer(0, 1.1)],
        1, F.DISK, (0,), says="disk full on /data", because="disk full on /data (0 bytes free of 1048576)",
    ),
    Story(
        "a full disk beside a bug of the script's",
        [raised(1, 1.0, "ValueError", "bad sample", full_disks=[FULL])], 1, F.CRASH, because="disk full on /data",
    ),
    Story("a mapped file that could not grow", [killed(1, 1.0, "SIGBUS", full_disks=[FULL])], 1, F.DISK),
    Story("setup failed", [Failure(-1, "a", E.SETUP, 1.0, exit_code=1)], None, F.SETUP, says="node a: exited"),
    Story(
        "two nodes without the folder of the first",
        [Failure(-1, node, E.LAUNCH, at, message="checkpoint.dir /c is not the folder that node a has")
         for node, at in (("c", 1.0), ("b", 1.1))], None, F.SETUP,
        says="nodes b, c: checkpoint.dir /c is not the folder that node a has", because="nodes b, c could not be made ready",
    ),
    Story("no python", [Failure(-1, "a", E.LAUNCH, 1.0, message="no py")], None, F.SETUP, says="no py"),
    Story(
        "a loader worker was killed",
        [raised(1, 1.0, "RuntimeError", "DataLoader worker (pid 4) is killed by signal: Killed."), lost_peer(0, 2.0)],
        1, followed=(0,), because="DataLoader workers died",
    ),
    Story(
        "a loader worker was ended with its rank's peers",
        [raised(0, 1.0, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Terminated."),
         raised(1, 1.2, "KeyError", "'x'")], 1, followed=(0,),
    ),
    Story(
        "a socket error inside a loader worker is the worker's own",
        [raised(1, 1.0, "RuntimeError", "Caught ConnectionResetError in DataLoader worker process 0.\nConnection reset "
                                        "by peer"), lost_peer(0, 0.9)], 1, followed=(0,),
    ),
    Story(
        "the same error everywhere",
        [raised(r, 1.0 + r / 100, "ImportError", "no module x") for r in range(4)], 0,
        says="ranks 0-3: ImportError", because="all alike",
    ),
    Story(
        "the same error on some, echoes on one",
        [lost_peer(1, 0.9), *(raised(r, 1.0 + r / 100, "ValueError", f"bad {r}") for r in (0, 2, 3))], 0,
        followed=(1,), says="ranks 0, 2-3: ValueError",
    ),
    Story(
        "terminate called after a peer's end",
        [killed(0, 1.0, "SIGABRT", last_lines=["terminate called after throwing 'gloo::IoException'", CLOSED]),
         raised(1, 1.5, "ValueError", "boom")], 1, followed=(0,),
    ),
    Story(
        "the NCCL watchdog took the process down",
        [killed(0, 1.0, "SIGABRT", last_lines=["terminate called after throwing an instance of 'c10::DistBackendError'",
                                               NCCL]),
         killed(1, 1.1)], 1, followed=(0,),
    ),
    Story("a native abort", [killed(1, 1.0, "SIGABRT"), lost_peer(0, 1.1)], 1, followed=(0,), says="SIGABRT"),
    Story("a segmentation fault", [lost_peer(0, 1.0), killed(1, 1.1, "SIGSEGV")], 1, followed=(0,), says="SIGSEGV"),
    Story(
        "terminate called alone is the cause",
        [killed(1, 1.0, "SIGABRT", last_lines=["terminate called after throwing an instance of 'std::logic_error'"]),
         lost_peer(0, 1.1)], 1, followed=(0,),
    ),
    Story(
        "NCCL says that the remote exited",
        [raised(0, 1.0, "torch.distributed.DistBackendError", NCCL), end(1, 1.2, E.EXITED, exit_code=3)], 1,
        followed=(0,),
    ),
    Story(
        "the store went with rank 0",
        [raised(1, 1.0, "torch.distributed.DistNetworkError", STORE), raised(0, 1.3, "FileNotFoundError", "x.pt")], 0,
        followed=(1,), says="FileNotFoundError",
    ),
    Story(
        "connecting the mesh failed because a rank died in set-up",
        [raised(0, 1.0, "RuntimeError", "Gloo connectFullMesh failed with [..] no error"),
         raised(1, 2.0, "FileNotFoundError", "data.bin", phase="setup", step=None)], 1, followed=(0,),
    ),
    Story(
        "broken pipe in a collective",
        [raised(0, 1.0, "BrokenPipeError", "[Errno 32] Broken pipe", collective="all_reduce #3"), killed(1, 1.1)], 1,
        followed=(0,),
    ),
    Story(
        "a script's own server refused it",
        [raised(1, 1.0, "ConnectionRefusedError", "[Errno 111] Connection refused"), lost_peer(0, 1.1)], 1,
        followed=(0,), says="ConnectionRefusedError",
    ),
    Story(
        "exit 1 after printing what a peer's end looks like",
        [end(0, 1.0, E.EXITED, exit_code=1, last_lines=["Traceback …", f"RuntimeError: {CLOSED}"]),
         end(1, 1.5, E.EXITED, exit_code=4)], 1, followed=(0,), says="code 4",
    ),
    Story(
        "only echoes: the peer left no trace",
        [lost_peer(2, 1.2), lost_peer(0, 1.0)], 0, followed=(2,), because="left neither an exit code nor last words",
    ),
    Story(
        "a collective's own limit ran out on an absent rank",
        [lost_peer(0, 30.0, WAITED), ours(1, 31.0, collective=None, where="data.py:10")], 1, F.HANG, (0,),
        says="rank 1 not there (data.py:10)",
    ),
    Story(
        "everybody waited in vain", [lost_peer(0, 30.0, WAITED), lost_peer(1, 30.1, PAIR)], 0, F.HANG, (1,),
        because="own time limit",
    ),
    Story("a timeout is an echo of a death", [lost_peer(0, 30.0, PAIR), killed(1, 40.0)], 1, followed=(0,)),
    Story("TERM is weaker than an exception", [killed(0, 1.0, "SIGTERM"), raised(1, 2.0, "OSError", "x")], 1,
          followed=(0,)),
    Story("ended by us is never a cause", [ours(0, 0.5), raised(1, 1.0, "ValueError", "boom")], 1, followed=(0,),
          because="ended by zrun"),
    Story("only our own endings", [ours(0, 1.0), ours(1, 1.0)], None, followed=(0, 1), says="without a trace"),
    Story("nothing at all", [], None, says="without a trace"),
    Story("a node fell silent", [lost_peer(0, 1.0)], None, F.NODE, (0,), says="node b was lost", lost=("b",)),
    Story("a node fell silent after its rank's own error", [raised(1, 1.0, "ValueError", "boom")], 1, says="ValueError",
          because="lost as well", lost=("b",)),
    Story(
        "a hang, acted on", [ours(1, 9.0), lost_peer(0, 9.02)], 1, F.HANG, (0,), says="1 of 2 ranks",
        because="only a consequence", suspicion=suspect(1),
    ),
    Story(
        "a survivor's odd error after the release of a hang",
        [ours(1, 9.0), raised(0, 9.1, "AssertionError", "no loss")], 1, F.HANG, (0,), suspicion=suspect(1),
    ),
    Story(
        "a suspect that died with an exception of its own",
        [raised(1, 9.0, "ValueError", "late"), lost_peer(0, 9.1)], 1, F.CRASH, (0,), suspicion=suspect(1),
    ),
    Story(
        "another rank's error while nothing was proved",
        [raised(0, 9.0, "ValueError", "mine")], 0, F.CRASH, suspicion=suspect(1),
    ),
    Story("a stopped rank", [], 1, F.HANG, suspicion=suspect(1, "stopped", provable=True)),
    Story("an early exit told by the judge alone", [], 1, F.CRASH, suspicion=suspect(1, "early-exit", provable=True)),
    Story("a hung rank reported as a failure", [end(1, 1.0, E.HUNG), lost_peer(0, 1.1)], 1, F.HANG, (0,)),
    Story("died while an echo was in flight", [killed(0, 1.0, "SIGABRT", exception="RuntimeError", message=CLOSED),
                                               killed(1, 1.1)], 1, followed=(0,)),
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.name)
def test_the_first_cause_is_named(story: Story) -> None:
    verdict = blame(story.failures, story.suspicion, story.lost)
    assert verdict.rank == story.rank
    assert verdict.fault is story.fault
    assert verdict.followed == story.followed
    assert story.says in verdict.headline
    assert story.because in "\n".join(verdict.because)
    assert verdict.because
    assert "\n" not in verdict.headline
    assert verdict.same_as


def test_two_failures_are_the_same_but_for_numbers() -> None:
    first = blame([raised(1, 1.0, "ValueError", "bad sample 17 at 0x7f00aa", step=5, pid=1)])
    again = blame([raised(0, 9.0, "ValueError", "bad sample 23 at 0x7f11bb", step=9, pid=2)])
    elsewhere = blame([raised(0, 9.0, "ValueError", "bad sample 23 at 0x7f11bb", where="train.py:11")])
    assert first.same_as == again.same_as
    assert first.same_as != elsewhere.same_as


def test_exit_codes_and_phases_tell_failures_apart() -> None:
    def of(code: int, phase: str) -> str:
        return blame([end(1, 1.0, FailureKind.EXITED, exit_code=code, phase=phase)]).same_as

    assert of(7, "step") == of(7, "step")
    assert of(7, "step") != of(8, "step")
    assert of(7, "step") != of(7, "setup")


def test_kills_from_outside_on_two_ranks_are_two_accidents() -> None:
    assert blame([killed(0, 1.0)]).same_as != blame([killed(1, 1.0)]).same_as
    assert blame([killed(0, 1.0, "SIGSEGV")]).same_as == blame([killed(1, 1.0, "SIGSEGV")]).same_as


def test_a_taken_back_suspicion_is_no_cause() -> None:
    cleared = Suspected(
        attempt=1, ranks=[1], kind="not-arrived", provable=False, roll_call="x", because=[], cleared=True
    )
    assert blame([killed(0, 1.0)], cleared).rank == 0


def test_better_evidence_replaces_the_earlier_one_of_the_same_rank() -> None:
    verdict = blame(
        [end(1, 1.0, FailureKind.EXITED, exit_code=1), raised(1, 1.0, "ValueError", "boom"), lost_peer(0, 1.1)]
    )
    assert verdict.failure is not None
    assert verdict.failure.exception == "ValueError"
    assert verdict.followed == (0,)


def test_a_long_message_makes_one_line() -> None:
    assert blame([raised(1, 1.0, "ValueError", "one\ntwo\nthree")]).headline.endswith("…")


_some = st.builds(
    Failure, rank=st.integers(0, 5), node=st.sampled_from("ab"), kind=st.sampled_from(FailureKind),
    at=st.floats(0, 100), exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.sampled_from(["SIGKILL", "SIGABRT"]),
    exception=st.none() | st.sampled_from(["RuntimeError", "ValueError", "torch.OutOfMemoryError"]),
    message=st.none() | st.sampled_from([CLOSED, WAITED, NCCL, "boom", "No space left on device"]),
    last_lines=st.lists(st.sampled_from(["a", CLOSED]), max_size=2),
)  # fmt: skip


@given(st.lists(_some, max_size=8))
def test_any_ending_has_a_verdict_that_names_no_rank_as_its_own_consequence(failures: list[Failure]) -> None:
    verdict = blame(failures)
    assert verdict.headline
    assert verdict.because
    if verdict.failure is not None and not any(f.rank == verdict.rank and f.node != verdict.node for f in failures):
        assert verdict.rank not in verdict.followed


@given(st.lists(_some, max_size=6, unique_by=lambda f: (f.rank, f.at)), st.randoms(use_true_random=False))
def test_the_order_in_which_failures_are_told_does_not_matter(failures: list[Failure], random: Any) -> None:
    one_each = list({f.rank: f for f in failures}.values())
    shuffled = one_each[:]
    random.shuffle(shuffled)
    assert blame(one_each) == blame(shuffled)
