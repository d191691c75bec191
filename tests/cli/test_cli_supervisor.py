"""The supervisor with programs that die, linger, or never come up."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zrun.cli import children, lookup, starting, supervisor
from zrun.core.runfolder import RunFolder

FAKE = Path(__file__).parent / "fakes" / "fake_program.py"
PROGRAM = """
import sys
from pathlib import Path
from zrun.cli import supervisor
from zrun.core.runfolder import RunFolder
fake, root, short_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
supervisor.SHORT_S, supervisor.AGENT_LEAVES_S, supervisor.ORPHANS_S = short_s, 1.0, 1.5
folder = RunFolder(Path(root))
supervisor.hold_lock(folder)
sys.exit(supervisor.Supervisor(
    folder, lambda port: [sys.executable, fake, "coordinator", root, str(port)], lambda: [sys.executable, fake, "agent", root],
).run())
"""


class Supervised:
    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, coordinator: list[dict[str, Any]], agent: list[dict[str, Any]], short_s: float = 5.0) -> None:
        (self.folder.root / "coordinator.plan").write_text(json.dumps(coordinator))
        (self.folder.root / "agent.plan").write_text(json.dumps(agent))
        with self.folder.supervisor_log.open("ab") as log:
            self.processes.append(subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(FAKE), str(self.folder.root), str(short_s)], stdout=log, stderr=log,
            ))  # fmt: skip

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.processes[-1]

    def end(self) -> int:
        return self.process.wait(30)

    def starts(self, kind: str) -> list[tuple[int, int]]:
        """(pid, port) of each start."""
        path = self.folder.root / f"{kind}.starts"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(pid), int(port)) for pid, port in rows]

    def text(self, name: str) -> str:
        path = self.folder.root / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def supervised(make_run: Callable[..., RunFolder]) -> Iterator[Supervised]:
    run = Supervised(make_run("fake-0000aa"))
    yield run
    for process in run.processes:
        process.kill()
        process.wait()
    for kind in ("coordinator", "agent"):
        for pid, _ in run.starts(kind):
            children.send(pid, signal.SIGKILL)


def until(what: str, check: Callable[[], Any], within_s: float = 20.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {within_s} s")


def gone(pid: int) -> bool:
    return children.started_at(pid) == 0 or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


SERVES = {"serve": True, "for_s": 30}
LIVES = {"for_s": 30}


def test_it_ends_with_0_when_the_coordinator_says_that_the_job_is_final(supervised: Supervised) -> None:
    supervised.start([{**SERVES, "for_s": 0.3, "verdict": "SUCCEEDED"}], [LIVES])
    assert supervised.end() == 0
    assert len(supervised.starts("coordinator")) == 1
    assert supervised.text("agent.terms")
    assert all(gone(pid) for pid, _ in supervised.starts("agent"))


def test_the_programs_logs_are_private_and_the_umask_stays(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o022)
    try:
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
        starting.start_supervisor(supervised.folder)
        monkeypatch.undo()
        supervised.start([{**SERVES, "for_s": 0.1, "verdict": "SUCCEEDED"}], [LIVES])
        assert supervised.end() == 0
    finally:
        assert os.umask(before) == 0o022
    root = supervised.folder.root
    made = ("supervisor.log", "coordinator.log", "agent.log", "supervisor.json", "supervisor.lock")
    assert {name: oct((root / name).stat().st_mode & 0o777) for name in made} == dict.fromkeys(made, "0o600")


def test_a_coordinator_that_ends_with_0_before_the_job_is_final_is_started_again(supervised: Supervised) -> None:
    supervised.start([{**SERVES, "for_s": 0.1}, {**SERVES, "for_s": 0.1, "verdict": "FAILED"}], [LIVES])
    assert supervised.end() == 0
    assert len(supervised.starts("coordinator")) == 2


def test_a_killed_coordinator_comes_back_on_the_same_port_and_the_agent_stays(supervised: Supervised) -> None:
    supervised.start([SERVES, {**SERVES, "for_s": 0.2, "verdict": "SUCCEEDED"}], [LIVES])
    address = until("an address", lambda: lookup.address_in(supervised.folder))
    os.kill(supervised.starts("coordinator")[0][0], signal.SIGKILL)
    assert supervised.end() == 0
    first, second = supervised.starts("coordinator")
    assert first[1] == 0
    assert address.endswith(f":{second[1]}")
    assert len(supervised.starts("agent")) == 1


def test_a_killed_agent_is_started_again(supervised: Supervised) -> None:
    supervised.start([{**SERVES, "ends_when_told": True, "verdict": "PREEMPTED"}], [LIVES])
    until("an agent", lambda: supervised.starts("agent"))
    os.kill(supervised.starts("agent")[0][0], signal.SIGKILL)
    until("a second agent", lambda: len(supervised.starts("agent")) == 2)
    supervised.process.terminate()
    assert supervised.end() == 0
    assert supervised.text("told") == "preempt\n"


def test_term_preempts_the_job_once_the_coordinator_answers(supervised: Supervised) -> None:
    supervised.start([{**SERVES, "ends_when_told": True, "verdict": "PREEMPTED"}], [LIVES])
    until("the supervisor", lambda: supervised.starts("coordinator"))
    supervised.process.terminate()
    assert supervised.end() == 0
    assert supervised.text("told") == "preempt\n"


def test_term_after_the_end_shortens_the_lingering(supervised: Supervised) -> None:
    supervised.start([{**SERVES, "for_s": 0.1, "verdict": "SUCCEEDED", "linger_s": 60}], [{"for_s": 0.5, "exit": 0}])
    until("the verdict", supervised.folder.verdict.exists)
    supervised.process.terminate()
    assert supervised.end() == 0


def test_a_program_that_cannot_start_ends_it_with_the_reason_on_disk(supervised: Supervised) -> None:
    supervised.start([{"exit": 3, "says": "no such module"}], [LIVES])
    assert supervised.end() == 1
    assert len(supervised.starts("coordinator")) == supervisor.NEVER_CAME_UP
    facts = lookup.read_json(supervisor.facts_path(supervised.folder))
    assert facts["failed"] == "the coordinator died 5 times in a row, last with code 3"
    assert "no such module" in supervised.text("coordinator.log")
    assert all(gone(pid) for pid, _ in supervised.starts("agent"))


def test_an_agent_deaf_to_term_is_killed_and_orphans_do_not_stay(supervised: Supervised) -> None:
    supervised.start([{**SERVES, "for_s": 0.5, "verdict": "SUCCEEDED"}], [{**LIVES, "deaf": True, "orphan": 60}])
    assert supervised.end() == 0
    assert all(gone(pid) for pid, _ in supervised.starts("agent"))
    assert gone(int(supervised.text("orphan")))


def test_its_death_stops_nothing_and_the_next_one_takes_the_agent_over(supervised: Supervised) -> None:
    supervised.start([SERVES], [LIVES])
    until("both", lambda: supervised.starts("agent") and lookup.address_in(supervised.folder))
    until("the facts", lambda: lookup.read_json(supervisor.facts_path(supervised.folder)).get("agent", {}).get("pid"))
    supervised.process.kill()
    supervised.process.wait()
    old_coordinator, agent = supervised.starts("coordinator")[0][0], supervised.starts("agent")[0][0]
    assert not gone(old_coordinator)
    assert not gone(agent)
    assert not lookup.supervised(supervised.folder)
    supervised.start([SERVES, {**SERVES, "for_s": 0.3, "verdict": "SUCCEEDED"}], [LIVES])
    assert supervised.end() == 0
    assert gone(old_coordinator)
    assert len(supervised.starts("agent")) == 1
    assert gone(agent)


def test_interrupt_and_hangup_are_not_for_it(supervised: Supervised) -> None:
    supervised.start([SERVES, {**SERVES, "for_s": 0.1, "verdict": "SUCCEEDED"}], [LIVES])
    until("a coordinator", lambda: lookup.address_in(supervised.folder))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        supervised.process.send_signal(number)
    os.kill(supervised.starts("coordinator")[0][0], signal.SIGKILL)
    assert supervised.end() == 0


def test_only_one_lives_for_a_run(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOCK_S", 0.1)
    handle = supervisor.hold_lock(supervised.folder)
    assert lookup.supervised(supervised.folder)
    with pytest.raises(BlockingIOError):
        supervisor.hold_lock(supervised.folder)
    assert supervised.folder.supervisor_lock.read_text() == f"{os.getpid()}\n"
    os.close(handle)
    assert not lookup.supervised(supervised.folder)
