"""Keeps the coordinator and the agent of one run alive until the job is final; `python -m zrun.cli.supervisor RUN_DIR`.

Holds RUN_DIR/supervisor.lock while it lives. Its own death stops nothing: coordinator and agent go on, and the next
launch takes over. Decides nothing about the job, and knows the two programs by their command lines only.
"""

import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from zrun.cli.children import Child, become_subreaper, children_of, kill_session, reap, send, started_at
from zrun.cli.lookup import read_json
from zrun.core import durable
from zrun.core.own_log import log_line
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL

SHORT_S: Final = 5.0
"""A program that dies sooner after its start has not really run."""
NEVER_CAME_UP: Final = 5
"""So many short lives of a program that never came up: give up and say why."""
FLAPPING: Final = 20
"""So many short lives in a row of one that did; never for a coordinator while the agent has ranks to look after."""
AGENT_LEAVES_S: Final = 10.0
ORPHANS_S: Final = 15.0
LOCK_S: Final = 3.0

Command = Callable[[], list[str]]


def facts_path(folder: RunFolder) -> Path:
    """{pid, host, coordinator, agent, failed}: what the supervisor tells of itself, for viewers and its successor."""
    return folder.root / "supervisor.json"


def resume_path(folder: RunFolder) -> Path:
    """What the next coordinator journals as the command `resume`; it removes the file."""
    return folder.root / "resume.json"


def log_path(folder: RunFolder, program: str) -> Path:
    return folder.root / f"{program}.log"


class Supervisor:
    """`coordinator_command` and `agent_command` give the command line for the next start."""

    def __init__(self, folder: RunFolder, coordinator_command: Callable[[int], list[str]], agent_command: Command,
                 port: int = 0) -> None:  # fmt: skip
        self.folder = folder
        self.port = port
        self.coordinator_command = coordinator_command
        self.agent_command = agent_command
        self.coordinator = Child("coordinator", log_path(folder, "coordinator"))
        self.agent = Child("agent", log_path(folder, "agent"))
        self.came_up: set[str] = set()
        self.preempt_due: float | None = None
        self.hurry = False
        self.failed = ""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Until the job is final (0) or a program cannot be kept alive (1)."""
        self._listen()
        become_subreaper()
        self._take_over()
        while True:
            now = time.monotonic()
            self._notice_deaths(now)
            if self._over():
                return self._end()
            self._start_due(now)
            self._ask_preempt(now)
            self._sleep(now)

    # --- what comes in

    def _listen(self) -> None:
        """TERM preempts the job, the others are for the viewer. Ranks inherit SIG_IGN but no handler."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._on_term())

    def _on_term(self) -> None:
        if self._final():
            self.hurry = True
        elif self.preempt_due is None:
            self.preempt_due = 0.0

    def _final(self) -> bool:
        """verdict.json says so, and nobody has asked meanwhile to go on."""
        return not resume_path(self.folder).exists() and read_json(self.folder.verdict).get("state") in FINAL

    def _notice_deaths(self, now: float) -> None:
        for pid, code in reap():
            for child in (self.coordinator, self.agent):
                if child.pid == pid:
                    self._died(child, code, now)
        for child in (self.coordinator, self.agent):
            if child.adopted_gone():
                self._died(child, None, now)

    def _died(self, child: Child, code: int | None, now: float) -> None:
        if child is self.coordinator:
            self._learn_port(child)
        elif now - child.born >= SHORT_S or code == 0:
            self.came_up.add(child.name)
        child.died(code, short_s=SHORT_S, now=now)
        if child is self.agent and code == 0:
            child.not_before = now + AGENT_LEAVES_S  # it was told to leave: the job is about to be final
        log(f"{child.name} ended with {'an unknown code' if code is None else code}")
        limit = FLAPPING if child.name in self.came_up else NEVER_CAME_UP
        training = child is self.coordinator and self.agent.pid and children_of(self.agent.pid)
        if child.short_lives >= limit and not training and not self._final():
            self.failed = f"the {child.name} died {child.short_lives} times in a row, last with code {code}"
        self._write_facts()

    def _learn_port(self, child: Child) -> None:
        """The port to come back on; after three starts that never answered, any port."""
        found = read_json(self.folder.coordinator)
        if found.get("pid") == child.pid:
            self.came_up.add(child.name)
            self.port = urlsplit(str(found.get("address"))).port or 0
        elif child.short_lives >= 3:
            self.port = 0

    # --- what goes out

    def _take_over(self) -> None:
        """An earlier supervisor died: its agent is kept with its ranks; its coordinator, deaf if it lives, ends."""
        facts = read_json(facts_path(self.folder))
        for child in (self.coordinator, self.agent):
            old: dict[str, Any] = facts.get(child.name) or {}
            pid = int(old.get("pid") or 0)
            if not pid or started_at(pid) != old.get("started") or facts.get("host") != socket.gethostname():
                continue
            if child is self.coordinator:
                send(pid, signal.SIGKILL, old["started"])
            elif child.adopt(pid):
                log(f"goes on with agent {pid}")

    def _over(self) -> bool:
        if self.failed:
            return True
        if self.hurry and not self.agent.pid:  # nobody waits for the last answers: the viewer has them
            self.coordinator.signal(signal.SIGTERM)
        return not self.coordinator.pid and self.coordinator.deaths > 0 and self._final()

    def _start_due(self, now: float) -> None:
        for child in (self.coordinator, self.agent):
            if child.pid or now < child.not_before:
                continue
            argv = self.coordinator_command(self.port) if child is self.coordinator else self.agent_command()
            child.start(argv, self.folder.root)
            log(f"{child.name} is process {child.pid}")
            self._write_facts()

    def _ask_preempt(self, now: float) -> None:
        """Again each second until the coordinator took it."""
        if self.preempt_due is None or now < self.preempt_due:
            return
        from zrun.cli.lookup import Target
        from zrun.core.errors import ZrunError

        try:
            with Target(self.folder.job, "", self.folder).client(timeout_s=2.0) as client:
                client.tell(self.folder.job, "preempt")
            self.preempt_due = float("inf")
            log("asked the coordinator to preempt the job")
        except ZrunError as error:
            self.preempt_due = time.monotonic() + 1.0
            log(f"cannot ask for preemption yet: {error}")

    def _sleep(self, now: float) -> None:
        due = [c.not_before for c in (self.coordinator, self.agent) if not c.pid]
        if self.preempt_due is not None:
            due.append(self.preempt_due)
        timeout = max(0.0, min([*due, now + 30.0]) - now)
        adopted = [c.pidfd for c in (self.coordinator, self.agent) if c.pidfd >= 0]
        ready, _, _ = select.select([self._woken, *adopted], [], [], timeout)
        if self._woken in ready:
            os.read(self._woken, 4096)

    def _write_facts(self) -> None:
        programs = {
            c.name: {"pid": c.pid, "started": started_at(c.pid) if c.pid else 0, "deaths": c.deaths,
                     "short_lives": c.short_lives, "last_exit": c.last_exit}
            for c in (self.coordinator, self.agent)
        }  # fmt: skip
        own = {"pid": os.getpid(), "started": started_at(os.getpid()), "host": socket.gethostname()}
        facts = {**own, **programs, "failed": self.failed}
        try:
            durable.write_json(facts_path(self.folder), facts)
        except OSError as error:
            log(f"cannot write {facts_path(self.folder)}: {error}")  # a full disk must not end the supervision

    # --- the end

    def _end(self) -> int:
        """TERM the agent, 10 s later KILL its session; then what was orphaned goes, and we with it."""
        if self.failed:
            log(self.failed)
            self.coordinator.signal(signal.SIGTERM)
        self.agent.signal(signal.SIGTERM)
        session, coordinator = (self.agent.pid, self.agent.started), self.coordinator
        if not self._wait_until(lambda: not self.agent.pid and not self.coordinator.pid, AGENT_LEAVES_S):
            for pid, started in (session, (coordinator.pid, coordinator.started)):
                if pid:
                    kill_session(pid, started)
        if not self._wait_until(lambda: not children_of(os.getpid()), ORPHANS_S):
            for pid in children_of(os.getpid()):
                send(pid, signal.SIGKILL)
        self._write_facts()
        return 1 if self.failed else 0

    def _wait_until(self, done: Callable[[], bool], within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while True:
            now = time.monotonic()
            self._notice_deaths(now)
            if done():
                return True
            if now >= deadline:
                return False
            select.select([self._woken], [], [], 0.05)


def log(text: str) -> None:
    print(log_line("supervisor", "info", text, {"pid": os.getpid()}), flush=True)


def hold_lock(folder: RunFolder) -> int:
    """Take supervisor.lock and keep it by the returned handle. Raises BlockingIOError if another supervisor lives."""
    handle = os.open(folder.supervisor_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.02)  # a command may be looking whether we live
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def zrun(*arguments: str) -> list[str]:
    """The command line of another zrun program; -P keeps files of the current folder from hiding modules."""
    return [sys.executable, "-P", "-m", "zrun.cli.main", *arguments]


def main() -> int:
    folder = RunFolder(Path(sys.argv[1]))
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    try:
        hold_lock(folder)
    except BlockingIOError:
        log("another supervisor lives; nothing to do")
        return 2
    run_dir = str(folder.root)
    return Supervisor(
        folder,
        lambda at: zrun("coordinator", "--embedded", run_dir, "--port", str(at)),
        lambda: zrun("agent", "--embedded", run_dir),
        port,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
