"""The viewer: follows one job until it is over, turns this terminal's signals into wishes, ends with the verdict.

It decides nothing about the job and holds nothing the job needs: killing it is the same as closing the terminal.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from zrun.cli import first_process, screen
from zrun.cli.children import send
from zrun.cli.client import Client
from zrun.cli.lookup import Target, read_json, supervised
from zrun.cli.progress import Progress
from zrun.cli.ranklines import RankLines
from zrun.cli.signal_inbox import SignalInbox
from zrun.cli.starting import wait_for_answer, wait_for_end, why_it_failed
from zrun.cli.supervisor import facts_path
from zrun.cli.verdict import block, headline
from zrun.core.errors import Exit, NotAllowedError, NotFoundError, UsageError, ZrunError
from zrun.core.states import FINAL, JobState, exit_code_of

LOOK_EVERY_S: Final = 0.25
GONE_AFTER_S: Final = 3.0
"""No coordinator and no supervisor for so long: nobody will bring them back."""
DRAIN_S: Final = 2.0
QUIET_S: Final = 2.0
"""Our own agent needs a moment to join; a job that waits for it so long is nothing to hear of."""

_WISH: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "stop": ("stop", {}),
    "stop now": ("stop", {"now": True}),
    "preempt": ("preempt", {}),
}


@dataclass(slots=True)
class Viewer:
    """`owner`: Ctrl-C and TERM reach the job (a local one in the foreground); else they only end the viewer."""

    target: Target
    owner: bool
    preempt_signals: frozenset[int] = frozenset({signal.SIGTERM})
    as_json: bool = False
    start: "Callable[[], subprocess.Popen[bytes]] | None" = None
    """Starts the supervisor, if this viewer is the one to do it: called when signals can no longer hurt."""
    detach: bool = False
    """Go as soon as the coordinator answers."""
    continued: bool = False
    """The job had attempts before this launch: their output is not shown again."""

    _supervisor: "subprocess.Popen[bytes] | None" = None
    _client: Client | None = None
    _wish: str = ""
    _interrupts: int = 0
    _away_since: float | None = None
    _said: tuple[str, str] = ("", "")
    _quiet_until: float = 0.0
    _told: set[str] = field(default_factory=set)
    _progress: Progress = field(default_factory=Progress)
    _lines: RankLines | None = None

    def run(self) -> int:
        """The exit code. Raises ZrunError if nobody is left who could bring the job to an end."""
        if self.target.folder is not None:
            self._lines = RankLines(self.target.folder)
            if self.continued:
                self._lines.skip_what_is_there()
        with SignalInbox({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *self.preempt_signals}) as signals:
            try:
                if self.start is not None:
                    self._supervisor = self.start()
                    wait_for_answer(self.target, self._supervisor, signals.pause)
                    self._quiet_until = time.monotonic() + QUIET_S
                with self.target.client() as client:
                    self._talk(f"page: {client.page}")
                if self.detach and self._may_detach():
                    return self._detached()
                return self._follow(signals)
            finally:
                self._progress.clear()

    def _may_detach(self) -> bool:
        """Not where process 1 is a zrun: a container whose command ends is stopped, and the job with it."""
        if not self.owner and self.start is None:
            return True
        if first_process.in_its_care():
            self._talk("zrun is process 1 here: the container lives as long as the job is followed, so it goes on")
            return False
        return True

    def _detached(self) -> int:
        job = self.target.job
        screen.say(f"zrun: follow it with `zrun logs -f {job}`, stop it with `zrun stop {job}`")
        screen.put_json(self.target.status()) if self.as_json else screen.put(job)
        return Exit.DONE

    def _follow(self, signals: SignalInbox) -> int:
        look_at = 0.0
        while True:
            for number in signals.wait(0.1):
                code = self._on_signal(number)
                if code is not None:
                    return code
            now = time.monotonic()
            self._show_lines()
            if now < look_at:
                continue
            look_at = now + (LOOK_EVERY_S if self.owner else 4 * LOOK_EVERY_S)
            self._carry_wish()
            status = self._look(now)
            if status is None:
                continue
            self._show(status, now)
            if status.get("state") in FINAL:
                return self._end(status, signals)

    # --- signals become wishes

    def _on_signal(self, number: int) -> int | None:
        """An exit code if the viewer ends here."""
        if number == signal.SIGHUP and not self._may_detach():
            return None
        if number == signal.SIGHUP or (number == signal.SIGINT and not self.owner):
            self._talk(f"detached; the job goes on: zrun status {self.target.job}")
            return Exit.NOT_FINISHED if number == signal.SIGHUP else Exit.INTERRUPTED
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 2:
                self._talk("leaving; the job was told to stop at once")
                return Exit.INTERRUPTED
            self._wish = "stop" if self._interrupts == 1 else "stop now"
            self._talk("stopping after a save; Ctrl-C again stops at once" if self._interrupts == 1
                       else "stopping at once")  # fmt: skip
        elif not self.owner:
            return Exit.INTERRUPTED
        elif not self._interrupts:
            self._wish = "preempt"
            self._talk(f"{signal.Signals(number).name}: preempting: save, end, exit {int(Exit.PREEMPTED)}")
        return None

    def _carry_wish(self) -> None:
        """Tell the coordinator, again at each look until it took it."""
        if not self._wish:
            return
        what, body = _WISH[self._wish]
        try:
            self._connected().tell(self.target.job, what, body)
        except UsageError:
            pass  # it is over already: the state says so
        except (NotAllowedError, NotFoundError):
            raise
        except ZrunError:
            return  # said by _look; the wish is kept
        self._wish = ""

    # --- how the job stands

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self.target.client()
        return self._client

    def _look(self, now: float) -> dict[str, Any] | None:
        """The status, None while the coordinator is away. Raises ZrunError if it will not come back."""
        try:
            status = self._connected().status(self.target.job)
        except (NotAllowedError, NotFoundError, UsageError):
            raise
        except ZrunError:  # it does not answer, or fails inside: it will be started again
            self._client = None  # it may come back at another address
            return self._away(now)
        if self._away_since is not None:
            self._away_since = None
            self._talk("the coordinator is back")
        return status

    def _away(self, now: float) -> dict[str, Any] | None:
        written = self.target.written()
        if written.get("state") in FINAL:
            return written
        if self._away_since is None:
            self._away_since = now
            self._talk("the coordinator does not answer; training goes on without it, waiting")
        folder = self.target.folder
        alone = folder is not None and not self.target.coordinator and not supervised(folder)
        if self._supervisor is not None:
            self._supervisor.poll()
        if folder is not None and alone and now - self._away_since >= GONE_AFTER_S:
            raise ZrunError(
                f"{self.target.job}: neither its coordinator nor its supervisor is alive ({why_it_failed(folder)})",
                f"`zrun launch` of the same file or `zrun resume {self.target.job}` goes on with it",
            )
        return None

    # --- what is shown

    def _talk(self, text: str, style: str | None = None) -> None:
        self._progress.clear()
        screen.say(f"zrun: {text}", style)

    def _show(self, status: dict[str, Any], now: float) -> None:
        state, reason = str(status.get("state")), str(status.get("reason") or "")
        joining = state == JobState.PENDING and now < self._quiet_until
        if (state, reason) != self._said and state not in FINAL and not joining:
            self._said = (state, reason)
            style = screen.STATE_STYLE.get(state)
            self._talk(f"{time.strftime('%H:%M:%S')} {state}" + (f": {reason}" if reason else ""), style)
        for text in news(status):
            if text not in self._told:
                self._told.add(text)
                self._talk(text, "yellow")
        if self._lines is not None:
            for line in self._lines.of_failed(status.get("incidents") or []):
                self._put(line, "red")
        self._progress.update(status, now)

    def _show_lines(self) -> int:
        if self._lines is None:
            return 0
        count = 0
        for line in self._lines.new():
            self._put(line)
            count += 1
        return count

    def _put(self, line: dict[str, Any], style: str | None = None) -> None:
        self._progress.clear()
        text = f"[rank {line.get('rank', '?')}] {screen.clean(str(line.get('msg', '')))}"
        if self.as_json:
            screen.say(text, style)
        else:
            try:
                screen.put(screen.paint(text, style, sys.stdout) if style else text)
            except OSError:
                pass  # the terminal hung up; HUP follows

    # --- the end

    def _end(self, status: dict[str, Any], signals: SignalInbox) -> int:
        """The last lines, the verdict, and nothing left running."""
        deadline = time.monotonic() + DRAIN_S
        signals.pause(0.1)
        while self._show_lines() and time.monotonic() < deadline:
            signals.pause(0.1)
        written = self.target.written()
        verdict = written if written.get("state") in FINAL else status
        self._progress.clear()
        folder = self.target.folder
        lines = block(verdict, str(folder.root) if folder else f"zrun logs {self.target.job}")
        screen.say(lines[0], screen.STATE_STYLE.get(str(verdict.get("state"))))
        for text in lines[1:]:
            screen.say(text)
        if self.as_json:
            screen.put_json(verdict)
        if folder is not None and self.owner:
            hurry_supervisor(self.target)
            wait_for_end(folder, signals.pause)
            if self._supervisor is not None:
                self._supervisor.poll()
        return self._exit_code(verdict)

    def _exit_code(self, verdict: dict[str, Any]) -> int:
        if self._interrupts and verdict.get("state") != JobState.SUCCEEDED:
            return Exit.INTERRUPTED
        return final_code(verdict)


def news(status: dict[str, Any]) -> Iterator[str]:
    """What a person should hear of once: suspicions, failed saves, warnings, skipped checkpoints, leftovers."""
    for incident in status.get("incidents") or []:
        if incident.get("suspicion"):
            yield f"suspected: {headline(incident)}"
    for failed in status.get("save_failures") or []:
        yield f"the save of step {failed.get('step')} failed: {failed.get('error')}"
    for attempt in status.get("attempts") or []:
        for skipped in attempt.get("skipped") or []:
            yield f"checkpoint passed over: {skipped.get('path')}: {skipped.get('reason')}"
    yield from (f"warning: {text}" for text in status.get("warnings") or [])
    for slow in status.get("stragglers") or []:
        yield f"{slow['who']} is steadily slower than its peers: `zrun status` shows by how much"
    for name in status.get("secrets_missing") or []:
        yield f"warning: the coordinator was started again and has no value for {name}: `zrun resume` hands it in"
    yield from (f"left behind: {text}" for text in status.get("left_behind") or [])


def final_code(verdict: dict[str, Any]) -> int:
    """zrun's exit code for a job that is over: the one written down, else the state's."""
    code = verdict.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool):
        return code
    return exit_code_of(JobState(str(verdict["state"])), timed_out=bool(verdict.get("timed_out")))


def hurry_supervisor(target: Target) -> None:
    """The job is over and we have seen it: the supervisor need not linger for others."""
    assert target.folder is not None
    facts = read_json(facts_path(target.folder))
    pid = facts.get("pid")
    if isinstance(pid, int) and supervised(target.folder):
        send(pid, signal.SIGTERM, facts.get("started"))
