"""The agent process: all jobs of one node, one connection to the coordinator, signals, and the way out.

It knows nothing about processes of ranks (job.py and the keeper do) nor about decisions (the node machine does).
"""

import asyncio
import contextlib
import importlib.metadata
import json
import signal
import socket
import sys
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from zrun.agent import node_events as e
from zrun.agent import vitals
from zrun.agent.job import JobOnNode
from zrun.agent.keeper_link import Beats
from zrun.agent.link import Link
from zrun.agent.lookout import Lookout
from zrun.agent.node_reach import begins_with_others
from zrun.agent.notices import Notices
from zrun.core.errors import Exit
from zrun.core.ids import new_boot
from zrun.core.own_log import Renderer
from zrun.core.redact import Redactor
from zrun.core.runfolder import RunFolder
from zrun.wire.frames import PROTOCOL
from zrun.wire.order import Ack, Brief, Down, Goodbye, JobBrief, JobOrder, Leave, Order, Stacks
from zrun.wire.report import Hello, Lines, NodeReport, Up, WarnLine

POLL_S: Final = 0.05
LAST_WORD_S: Final = 1.0
"""From all idle to leaving after a TERM: time for the coordinator to hear of it and to release its jobs."""
DEFAULT_GRACE_S: Final = 600.0


@dataclass(frozen=True)
class AgentConfig:
    """Either `run_dir` (an embedded coordinator writes its address and token there) or `url` and `token_file`."""

    url: str | None = None
    run_dir: Path | None = None
    token_file: Path | None = None
    node: str = ""
    """"" = this machine's host name."""
    notice_file: Path | None = None
    """Where somebody outside may say why it takes ranks away from this node."""

    def address(self) -> str:
        """Raises OSError, ValueError while there is none."""
        if self.url is not None:
            return self.url
        if self.run_dir is None:
            raise ValueError("no coordinator was named")
        return str(json.loads(RunFolder(self.run_dir).coordinator.read_text())["address"])

    def token(self) -> str:
        """Raises OSError, ValueError."""
        path = self.token_file or (RunFolder(self.run_dir).token if self.run_dir is not None else None)
        if path is None:
            raise ValueError("no token file was named")
        return path.read_text().strip()


class Agent:
    """One life of the agent of one node."""

    def __init__(self, config: AgentConfig, log: FilteringBoundLogger, hush: "Hush | None" = None) -> None:
        self._hush = hush or Hush()
        self.node = config.node or socket.gethostname()
        self.boot = new_boot()
        self._log = log.bind(node=self.node, boot=self.boot)
        self._jobs: dict[str, JobOnNode] = {}
        self._orders: dict[str, JobOrder] = {}
        self._lease_s = 3.0
        self._serial = 0
        self._order_serial = 0
        self._gpus = vitals.gpu_count()
        self._beats = Beats()
        self._link = Link(config.address, config.token, self._hello, self._report, self._on_down, self._log)
        self._lookout = Lookout(self._log)
        self._link.opened = self._lookout.open
        self._notices = Notices(self.node, config.notice_file)
        self._leaving_at: float | None = None
        self._leave: str | None = None
        self._idle_since: float | None = None
        self._exit = Exit.DONE
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Exit:
        self._listen_to_signals()
        self._log.info("agent starts", gpus=self._gpus)
        link = asyncio.create_task(self._link.run())
        try:
            while not self._done():
                self._turn()
                await asyncio.sleep(POLL_S)
        finally:
            await asyncio.gather(*(job.close() for job in self._jobs.values()))
            link.cancel()
            await asyncio.gather(link, *self._tasks, return_exceptions=True)
            self._lookout.port.close()
            self._beats.close()
        self._log.info("agent ends", why=self._leave or "asked to")
        return self._exit

    def _turn(self) -> None:
        self._beats.turned()
        now = time.monotonic()
        if self._leaving_at is not None and now >= self._leaving_at and self._leave is None:
            self._end("the grace of a leaving node is over")
        for name, job in list(self._jobs.items()):
            job.poll()
            self._notices.look(job)
            if job.released:
                del self._jobs[name]
                self._orders.pop(name, None)
                self._run(job)
        self._look_out()
        idle = all(job.idle for job in self._jobs.values())
        self._idle_since = (self._idle_since or now) if idle else None

    def _look_out(self) -> None:
        """End what this node may not go on with; if nobody is left to hear of it, end the agent too."""
        cut_off = self._lookout.turn([job.machine.state for job in self._jobs.values()], self._lease_s)
        self._link.beat_s = self._lookout.beat_s
        for name, why in cut_off.items():
            self._log.error("cut off: this node ends its workers", job=name, why=why)
            text = f"node {self.node} was cut off: {why}; its agent ended its workers"
            self._jobs[name].feed(e.CutOff(text, time.time()))
        if self._lookout.forsaken and self._leave is None and all(job.idle for job in self._jobs.values()):
            self._exit = Exit.UNREACHABLE
            self._end("neither the coordinator nor the other nodes were heard for too long")

    def _done(self) -> bool:
        if self._idle_since is None:
            return False
        if self._leave is not None:
            return True
        leaving = self._leaving_at is not None
        return leaving and (not self._jobs or time.monotonic() >= self._idle_since + LAST_WORD_S)

    def _run(self, job: JobOnNode) -> None:
        task = asyncio.create_task(job.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- signals -------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_term)
        loop.add_signal_handler(signal.SIGUSR1, self._on_warning, "USR1")
        loop.add_signal_handler(signal.SIGUSR2, self._on_warning, "USR2")
        loop.add_signal_handler(signal.SIGHUP, self._on_warning, "HUP")

    def _on_term(self) -> None:
        """This node leaves: jobs are told, saved and stopped within their grace; the second time at once."""
        if self._leaving_at is not None:
            self._end("told twice to leave")
            return
        grace_s = max((job.spec.preempt.grace_s for job in self._jobs.values()), default=DEFAULT_GRACE_S)
        self._log.warning("this node leaves", within_s=grace_s)
        self._leaving_at = time.monotonic() + grace_s
        self._idle_since = None
        for job in self._jobs.values():
            job.feed(e.PreemptAsked())
        self._link.changed()

    def _on_warning(self, name: str) -> None:
        """A scheduler's warning: preempt soon, for jobs that take this signal as one; the agent lives on."""
        self._log.warning("signal", signal=name)
        for job in self._jobs.values():
            if name in job.spec.preempt.signals:
                job.feed(e.PreemptAsked())

    def _end(self, why: str) -> None:
        self._leave = why
        self._idle_since = None
        for job in self._jobs.values():
            job.feed(e.LeaveNow(why))

    # -- wire ----------------------------------------------------------------------------------------------------

    def _on_down(self, message: Down) -> None:
        match message:
            case Order():
                self._take_order(message)
            case Ack(boot, acked):
                if boot == self.boot:
                    self._lookout.reach.acked(acked)
            case Brief(jobs):
                for brief in jobs:
                    self._take_brief(brief)
            case Stacks(job, into):
                if job in self._jobs:
                    task = asyncio.create_task(self._jobs[job].stacks(into))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            case Goodbye(why):
                self._log.error("the coordinator refused this agent", why=why)
                self._exit = Exit.NOT_ALLOWED
                self._end(why)
            case Leave(why):
                self._end(why or "the coordinator is done with this node")

    def _take_order(self, order: Order) -> None:
        if order.boot != self.boot:
            return
        self._lookout.reach.acked(order.acked)
        if order.serial < self._order_serial:
            return
        if begins_with_others(order) and self._lookout.reach.too_late(order.lease_s):
            self._log.warning("an order came too late to begin an attempt with other nodes", serial=order.serial)
            return  # it is repeated if it still holds
        self._order_serial, self._lease_s = order.serial, order.lease_s
        self._orders |= order.jobs
        for name, wish in order.jobs.items():
            if name in self._jobs:
                self._jobs[name].obey(wish, order.lease_s)
        self._link.changed()

    def _take_brief(self, brief: JobBrief) -> None:
        brief = brief.whole()
        self._hush.hide(brief.secrets.values())
        known = self._jobs.get(brief.job)
        try:
            if known is not None:
                known.take(brief)
                return
            job = JobOnNode(brief, self.node, self.boot, self._gpus, self._beats, self._link.changed, self._log)
        except (msgspec.ValidationError, OSError) as error:
            self._log.error("a job cannot be taken", job=brief.job, error=str(error))
            return
        self._jobs[brief.job] = job
        if brief.job in self._orders:
            job.obey(self._orders[brief.job], self._lease_s)

    def _hello(self) -> Hello:
        held = [name for name, job in self._jobs.items() if job.brief.secrets]
        return Hello(PROTOCOL, self.node, self.boot, importlib.metadata.version("zrun"), held)

    def _report(self) -> list[Up]:
        self._serial += 1
        left = None if self._leaving_at is None else max(0.0, self._leaving_at - time.monotonic())
        report = NodeReport(
            node=self.node, boot=self.boot, serial=self._serial, order_serial=self._order_serial,
            jobs={name: job.report() for name, job in self._jobs.items()}, vitals=vitals.read(self._gpus),
            at=time.time(), leaving_in_s=left, address=self._lookout.address, peer_port=self._lookout.port.port,
        )  # fmt: skip
        self._lookout.reach.sent(self._serial)
        lines: list[WarnLine] = []
        dropped = 0
        for job in self._jobs.values():
            told, more = job.told_at_once()
            lines, dropped = lines + told, dropped + more
        return [report, Lines(lines, dropped)] if lines or dropped else [report]


class Hush:
    """Hides the secrets of all jobs ever held in every field of the agent's own log."""

    def __init__(self) -> None:
        self._hidden = Redactor()

    def hide(self, values: Iterable[str]) -> None:
        self._hidden = self._hidden.also(values)

    def __call__(self, _log: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        clean: MutableMapping[str, Any] = self._hidden.value({name: _plain(value) for name, value in fields.items()})
        return clean


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list | tuple | dict | None) else str(value)


class LastingLogger(structlog.PrintLogger):
    """A line that cannot be written (the disk is full) is lost; the agent lives on, for training depends on it."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def json_log(hush: Hush) -> FilteringBoundLogger:
    """JSON lines on stderr."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        LastingLogger(sys.stderr),
        processors=[
            structlog.processors.format_exc_info,
            hush,
            Renderer("agent"),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return log


def run_agent(config: AgentConfig) -> int:
    """Blocking; the exit code of the process."""
    return int(asyncio.run(_run(config)))


async def _run(config: AgentConfig) -> Exit:
    hush = Hush()
    return await Agent(config, json_log(hush), hush).run()
