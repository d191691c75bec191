"""The viewer against a coordinator that says what the test tells it: output, signals, the end, and exit codes."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from zrun.cli import lookup
from zrun.core.errors import Exit
from zrun.core.runfolder import RunFolder

MakeRun = Callable[..., RunFolder]
VIEWER = """
import signal, subprocess, sys
from pathlib import Path
from zrun.cli import follow
from zrun.cli.lookup import Target
from zrun.cli.main import _tell
from zrun.core.errors import ZrunError
from zrun.core.runfolder import RunFolder
follow.GONE_AFTER_S = 0.5
folder = RunFolder(Path(sys.argv[1]))
start = lambda: subprocess.Popen(["cat"], stdin=subprocess.PIPE)
try:
    sys.exit(follow.Viewer(
        Target(folder.job, "gpt2", folder, sys.argv[3]), owner=sys.argv[2] == "owner", as_json="json" in sys.argv,
        preempt_signals=frozenset({signal.SIGTERM, signal.SIGUSR1}),
    start=start if "own" in sys.argv else None).run())
except ZrunError as error:
    sys.exit(_tell(error))
"""


def until(what: str, check: Callable[[], Any], within_s: float = 20.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {within_s} s")


class Watching:
    """A viewer process whose output can be waited for."""

    def __init__(self, folder: RunFolder, who: str = "owner", coordinator: str = "", *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", VIEWER, str(folder.root), who, coordinator, *more], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.out: list[str] = []
        self.err: list[str] = []
        streams = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self._threads = [threading.Thread(target=self._read, args=pair) for pair in streams]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, into: list[str]) -> None:
        with stream:
            into.extend(iter(stream.readline, ""))

    def wait_for(self, text: str) -> None:
        until(f"{text!r} in {self.err + self.out}", lambda: any(text in line for line in self.err + self.out))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(20)
        for thread in self._threads:
            thread.join()
        return code


@pytest.fixture
def watch() -> Iterator[Callable[..., Watching]]:
    started: list[Watching] = []

    def begin(*arguments: Any) -> Watching:
        started.append(Watching(*arguments))
        return started[-1]

    yield begin
    for watching in started:
        watching.process.kill()
        watching.end()


@contextmanager
def lock(folder: RunFolder) -> Iterator[None]:
    import fcntl

    with folder.supervisor_lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 100), ("STOPPED", 103), ("PREEMPTED", 105)])
def test_it_ends_with_the_code_of_the_state(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching], state: str, code: int
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    viewer = watch(folder)
    viewer.wait_for("RUNNING: 2 ranks")
    fake.finish(state)
    assert viewer.end() == code
    assert any(f"{state}: all done" in line for line in viewer.err)


def test_that_its_own_agent_has_not_joined_yet_is_nothing_to_hear_of(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    waiting = "waiting for 1 node"
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder, state="PENDING", reason=waiting)
    viewer = watch(folder, "owner", "", "own")
    viewer.wait_for("page: ")
    time.sleep(0.5)  # two looks
    fake.status = {**fake.status, "state": "RUNNING", "reason": "2 ranks"}
    viewer.wait_for("RUNNING: 2 ranks")
    assert not any(waiting in line for line in viewer.err)
    fake.status = {**fake.status, "state": "PENDING", "reason": waiting}
    viewer.wait_for(waiting)  # what lasts longer than two seconds is said
    fake.finish("FAILED")
    assert viewer.end() == 100


def test_it_shows_rank_0_over_attempts_and_the_last_lines_of_the_rank_that_failed(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching], write_log: Callable[..., None]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    write_log(folder, 1, 0, ["one"])
    write_log(folder, 1, 1, ["not shown"] * 40 + ["boom"])
    viewer = watch(folder)
    viewer.wait_for("[rank 0] one")
    incident = {"id": 1, "class": "crash", "rank": 1, "node": "a", "attempt": 1, "exception": "ValueError",
                "message": "bad sample", "step": 5, "batch": "e0-s000005-00000000", "where": "data.py:10",
                "because": ["rank 1 raised first"], "followed": [0]}  # fmt: skip
    fake.status = {**fake.status, "state": "RECOVERING", "reason": "rank 1 crashed", "incidents": [incident]}
    viewer.wait_for("[rank 1] boom")
    write_log(folder, 1, 0, ["last of attempt 1"])
    write_log(folder, 2, 0, ["two", "three"])
    fake.finish("FAILED", attempts=[{"attempt": 1, "outcome": "fault", "first_step": 1, "last_step": 5}])
    assert viewer.end() == Exit.FAILED
    rank0 = [line.strip() for line in viewer.out if "[rank 0]" in line]
    assert rank0 == ["[rank 0] one", "[rank 0] last of attempt 1", "[rank 0] two", "[rank 0] three"]
    block = "".join(viewer.err)
    for text in ("crash of rank 1 on node a: ValueError: bad sample", "data.py:10", "step 5, batch e0-s000005-00000000",
                 "rank 1 raised first", "logs/attempt-1/rank-1.jsonl", "zrun resume gpt2-0000aa"):  # fmt: skip
        assert text in block


def test_ctrl_c_stops_gracefully_a_second_one_at_once_and_the_code_is_130(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    viewer = watch(folder)
    viewer.wait_for("RUNNING")
    viewer.send(signal.SIGINT)
    until("a stop", lambda: ("stop", {}) in fake.told)
    viewer.send(signal.SIGINT)
    until("a stop at once", lambda: ("stop", {"now": True}) in fake.told)
    fake.finish("STOPPED")
    assert viewer.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_term_and_the_jobs_own_signals_preempt(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching], number: int
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    fake.on_told = lambda what: fake.finish("PREEMPTED") if what == "preempt" else None
    viewer = watch(folder)
    viewer.wait_for("RUNNING")
    viewer.send(number)
    assert viewer.end() == Exit.PREEMPTED


def test_hangup_detaches_and_tells_the_job_nothing(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    viewer = watch(folder)
    viewer.wait_for("RUNNING")
    viewer.send(signal.SIGHUP)
    assert viewer.end() == Exit.NOT_FINISHED
    assert fake.told == []


def test_ctrl_c_only_detaches_from_a_coordinator_elsewhere(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    monkeypatch.setenv("ZRUN_TOKEN", "secret")
    viewer = watch(folder, "guest", fake.address)
    viewer.wait_for("RUNNING")
    viewer.send(signal.SIGINT)
    assert viewer.end() == 130
    assert fake.told == []


def test_a_coordinator_that_is_briefly_away_is_waited_for_and_a_wish_is_kept(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    with lock(folder):
        viewer = watch(folder)
        viewer.wait_for("RUNNING")
        fake.stop()
        viewer.wait_for("the coordinator does not answer")
        viewer.send(signal.SIGINT)
        viewer.wait_for("stopping after a save")
        fake.start()
        viewer.wait_for("the coordinator is back")
        until("the wish", lambda: ("stop", {}) in fake.told)
        fake.finish("STOPPED")
        viewer.wait_for("STOPPED: all done")
    assert viewer.end() == 130


def test_nobody_left_is_said_and_ends_with_1(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    (folder.root / "coordinator.log").write_text("Traceback\nKeyError: 'x'\n")
    viewer = watch(folder)
    viewer.wait_for("RUNNING")
    fake.stop()
    assert viewer.end() == Exit.OWN_FAILURE
    assert any("neither its coordinator nor its supervisor is alive" in line for line in viewer.err)
    assert any("KeyError: 'x'" in line for line in viewer.err)
    assert any("zrun resume gpt2-0000aa" in line for line in viewer.err)


def test_a_verdict_written_while_the_coordinator_was_gone_counts(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    viewer = watch(folder)
    viewer.wait_for("RUNNING")
    fake.stop()
    fake.finish("STOPPED", exit_code=104)
    assert viewer.end() == Exit.TIMED_OUT


def test_with_json_stdout_holds_the_verdict_alone(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching], write_log: Callable[..., None]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    write_log(folder, 1, 0, ["one"])
    viewer = watch(folder, "owner", "", "json")
    viewer.wait_for("[rank 0] one")
    fake.finish("SUCCEEDED")
    assert viewer.end() == 0
    assert json.loads("".join(viewer.out))["state"] == "SUCCEEDED"


def test_it_waits_until_the_supervisor_has_gone(
    make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]
) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder)
    with lock(folder):
        viewer = watch(folder)
        viewer.wait_for("RUNNING")
        fake.finish("SUCCEEDED")
        viewer.wait_for("SUCCEEDED: all done")
        assert viewer.process.poll() is None
        assert lookup.supervised(folder)
    assert viewer.end() == 0


def test_news_are_told_once(make_run: MakeRun, coordinator: Callable[..., Any], watch: Callable[..., Watching]) -> None:
    folder = make_run("gpt2-0000aa")
    fake = coordinator(folder, warnings=["no /dev/shm"], save_failures=[{"step": 4, "error": "No space left"}])
    viewer = watch(folder)
    viewer.wait_for("the save of step 4 failed: No space left")
    fake.finish("SUCCEEDED")
    assert viewer.end() == 0
    assert sum("warning: no /dev/shm" in line for line in viewer.err) == 1
