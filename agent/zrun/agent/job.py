"""One job on this node: carries out what the node machine wants, and tells it what happened.

The only place where decisions meet processes and files; it decides nothing itself. Called by the agent's loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any, assert_never

import msgspec
from structlog.typing import FilteringBoundLogger

from zrun.agent import evidence, keeper_news, launch, post_mortem, preflight, shared_folder, vitals
from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.agent.attempt import Attempt, take_left_over
from zrun.agent.keeper_link import Beats, KeeperLink
from zrun.agent.launch import Where, explained
from zrun.agent.node_limits import limits_of
from zrun.agent.node_machine import NodeMachine
from zrun.agent.once import Once
from zrun.agent.rank_start import RankStart, Start
from zrun.agent.reporting import essence, job_report
from zrun.agent.setup_run import SetupRun
from zrun.core.errors import LaunchError
from zrun.core.failure import Failure, FailureKind
from zrun.core.private import make_folder
from zrun.core.redact import Redactor
from zrun.core.runfolder import RunFolder
from zrun.spec.job import spec_from_dict
from zrun.wire.order import JobBrief, JobOrder, LaunchPlan
from zrun.wire.report import Doing, JobReport, WarnLine


class JobOnNode:
    """Raises msgspec.ValidationError for a brief of another version, OSError if the run's folder cannot be used."""

    def __init__(
        self, brief: JobBrief, node: str, boot: str, gpus: int, beats: Beats, changed: Callable[[], None],
        log: FilteringBoundLogger,
    ) -> None:  # fmt: skip
        self.spec = spec_from_dict(brief.spec)
        self.brief = brief
        self._hidden = Redactor(brief.secrets.values())
        self.released = False
        self._node, self._boot, self._gpus, self._beats, self._changed = node, boot, gpus, beats, changed
        self._log = log.bind(job=brief.job)
        self._folder = RunFolder(Path(brief.run_dir))
        self._own_dir = self._folder.node(node)
        make_folder(self._own_dir)
        self._once = Once(self._own_dir)
        self._setup = SetupRun(self._own_dir)
        self._ranks = RankStart(brief.job, self._own_dir)
        self.machine = NodeMachine(brief.job, node, **self._limits())
        self._attempt: Attempt | None = None
        self._keeper: KeeperLink | None = None
        self._kills = 0
        self._events: deque[e.NodeEvent] = deque()
        self._feeding = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._left_over_read = False
        self._lease_s = 0.0
        self._essence: tuple[object, ...] = ()
        if self._folder.node_lock(node).exists():
            self.feed(e.LeftBefore())

    # -- for the agent's loop -----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return self.machine.state.doing in (Doing.IDLE, Doing.FINISHED)

    def take(self, brief: JobBrief) -> None:
        """The job as the coordinator now has it; one that does not know its secrets takes none away.

        Raises msgspec.ValidationError, and then nothing has changed.
        """
        self.spec = spec_from_dict(brief.spec)
        self.brief = msgspec.structs.replace(brief, secrets=brief.secrets or self.brief.secrets)
        self._hidden = self._hidden.also(brief.secrets.values())
        self.feed(e.SpecChanged(**self._limits()))

    def obey(self, order: JobOrder, lease_s: float) -> None:
        self._set_lease(lease_s)
        self.feed(e.OrderReceived(order))

    def feed(self, event: e.NodeEvent) -> None:
        """Hand an event to the machine and carry out what it answers; events born of that come after."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                for action in self.machine.handle(self._events.popleft(), time.monotonic()):
                    self._do(action)
        finally:
            self._feeding = False
        if (now := essence(self.machine.state)) != self._essence:
            self._essence = now
            self._changed()

    def poll(self) -> None:  # every 50-100 ms: output, notes, decks, and whatever became due
        attempt, state = self._of_now(), self.machine.state
        if attempt is not None and state.doing != Doing.IDLE:
            attempt.logs.poll()
            attempt.look(state.record.living)
            for rank in attempt.ranks:
                self._read_notes(rank)
            self.feed(e.DecksRead(attempt.decks.read()))
        due = self.machine.deadline()
        if (due is not None and time.monotonic() >= due) or not state.settled:
            self.feed(e.TimeUp())

    def _of_now(self) -> Attempt | None:  # not the last one's files, while a new attempt still waits for its launch
        here = self._attempt
        return here if here and here.where.attempt == self.machine.state.record.attempt else None

    def report(self) -> JobReport:
        report = job_report(self.machine.state, self._of_now(), time.monotonic(), self._ranks.standby_bytes())
        if not self._hidden.active:
            return report
        hide = self._hidden.value
        return msgspec.structs.replace(report, metrics=hide(report.metrics), warnings=hide(report.warnings))

    def told_at_once(self) -> tuple[list[WarnLine], int]:
        return self._attempt.logs.take_told() if self._attempt is not None else ([], 0)

    async def stacks(self, into: str) -> None:
        """For a person: all stacks now, into a folder of the run."""
        if self._attempt is None:
            return
        subjects = self._attempt.subjects(self.machine.state.record.living)
        try:
            await evidence.take_stacks(subjects, self._folder.root / into, self._node, self._hidden)
        except OSError as error:
            self._log.warning("stacks cannot be written", error=str(error))

    async def close(self) -> None:
        """End what is left through the keeper, read the last output, forget secrets."""
        self._closing = True
        for task in [*self._tasks]:
            task.cancel()
        if self._keeper is not None:
            await self._keeper.close()
        self._close_attempt()
        self._read_left_over()

    # -- what the machine wants ---------------------------------------------------------------------------------

    def _do(self, action: a.NodeAction) -> None:
        match action:
            case a.EnsureKeeper(why):
                self._log.info("keeper wanted", why=why)
                self._run(self._start_keeper())
            case a.StartSetup(why):
                self._log.info("set-up starts", why=why)
                self._start_setup()
            case a.EndSetup(why):
                self._log.warning("set-up is ended", why=why)
                self._setup.late = why
                self._kill_all()
            case a.ShareFolder(plan, why):
                self._log.info("checkpoint.dir is looked at", attempt=plan.attempt, why=why)
                self._run(self._share_folder(plan))
            case a.StartTorchrun(plan, number, why):
                self._log.info("torchrun starts", attempt=plan.attempt, launch=number, why=why)
                self._start_torchrun(plan)
            case a.WriteOrderPages(ask, within_s, why):
                self._log.info("order pages", kind=ask.kind.name, step=ask.step, confirmed=ask.confirmed, why=why)
                if self._attempt is not None:
                    self._attempt.write_order(ask, within_s)
            case a.SignalRanks(ranks, name, why):
                self._log.info("signal", ranks=ranks, signal=name, why=why)
                self.feed(e.Signalled(ranks, time.time()))
                if self._keeper is not None:
                    self._keeper.signal(ranks, Signals[f"SIG{name}"])
            case a.KillAll(why):
                self._log.info("kill all", why=why)
                self._kill_all()
            case a.Collect(incident, why):
                self._log.info("collect evidence", why=why)
                self._run(self._collect(incident))
            case a.TellRank(rank, text):
                if self._attempt is not None:
                    self._attempt.logs.say_last(rank, f"[zrun: {text}]", "warning")
            case a.BuildRecorder() | a.PrepareStandbys() | a.DropStandbys():
                self._do_aside(action)
            case a.Release(why):
                self._log.info("released", why=why)
                self.released = True
            case a.Say(text):
                self._log.info(text)
            case _:
                assert_never(action)

    def _do_aside(self, action: a.BuildRecorder | a.PrepareStandbys | a.DropStandbys) -> None:
        """What the ranks of now do not wait for."""
        match action:
            case a.BuildRecorder(why):
                self._log.info("the recorder is built in the background", why=why)
                self._build_recorder()
            case a.PrepareStandbys(why):
                self._log.info("standbys are made ready", why=why)
                self._prepare_standbys()
            case a.DropStandbys(why):
                self._log.warning("standbys are ended", why=why)
                self._ranks.forget()
                if self._keeper is not None:
                    self._keeper.drop_standbys()

    async def _start_keeper(self) -> None:
        keeper = self._keeper = KeeperLink(self._beats, self._heard)
        try:
            await keeper.start(
                self.brief.job, self._boot, self._folder.node_lock(self._node), self._own_dir / "keeper.log"
            )
        except OSError as error:
            self._keeper = None
            why = f"{explained(error, self._own_dir)}: the keeper cannot be started"
            self.feed(e.LaunchRefused(self._failure(FailureKind.LAUNCH, why)))
            return
        keeper.lease(max(self._lease_s, 1.0))

    def _start_setup(self) -> None:
        state, where = self.machine.state, self._where()
        try:
            preflight.check_workdir(self.spec)
            self._check_resources()
            launch.make_places(where, [])
        except (LaunchError, OSError) as error:
            self.feed(e.SetupEnded(self._failure(FailureKind.LAUNCH, explained(error, self._own_dir))))
            return
        assert state.record.plan is not None
        assert self._keeper is not None
        env = self._environment(state.record.plan, where)
        argv = self._setup.begin(self.spec.setup or "")
        self._keeper.spawn("setup", argv, env, self.spec.workdir, self._setup.log, None)

    async def _share_folder(self, plan: LaunchPlan) -> None:
        problem = await shared_folder.of_job(self.spec, self._where(), plan, self._environment(plan, self._where()))
        self.feed(e.FolderShared(plan.attempt, self._failure(FailureKind.LAUNCH, problem) if problem else None))

    def _build_recorder(self) -> None:
        if self._keeper is not None and (plan := self.machine.state.record.plan) is not None:
            env, _ = launch.environment(self.spec, plan, self._where(), self.brief.env, {})
            argv = ["nice", "-n", "19", launch.python_of(self.spec), "-m", "zrun.worker.recorder_built"]
            self._keeper.spawn_aside("recorder", argv, env, self.spec.workdir, self._own_dir / "recorder.log")

    def _start_torchrun(self, plan: LaunchPlan) -> None:
        where = self._where()
        self._close_attempt()
        try:
            preflight.check_script(self.spec, launch.python_of(self.spec))
            self._check_resources()
            nproc = launch.ranks_here(self.spec, plan, self._gpus)
            first = plan.node_rank * nproc
            ranks = list(range(first, first + nproc))
            launch.make_places(where, ranks)
            world = nproc * plan.nnodes
            self._attempt = Attempt(where, ranks, self.spec, world, self._say, self.poll, lambda: self._hidden)
            port = plan.master_port or launch.free_port()
        except (LaunchError, OSError) as error:
            self.feed(e.LaunchRefused(self._failure(FailureKind.LAUNCH, explained(error, self._own_dir))))
            return
        if not plan.nproc and self.spec.nproc_per_node == "auto" and not self._gpus:
            self._say("nproc_per_node is auto and this node has no GPU: one rank runs, on the CPU")
        assert self._keeper is not None
        self.feed(e.Launched(ranks, 0 if plan.nnodes == 1 or plan.node_rank else port))
        start = Start(self.spec, plan, where, self._environment(plan, where), ranks, port)
        if self._ranks.start(self._keeper, start):
            self._log.info("ranks start from standbys", attempt=plan.attempt)

    def _prepare_standbys(self) -> None:
        plan, attempt = self.machine.state.record.plan, self._of_now()
        if self._keeper is not None and plan is not None and attempt is not None:
            env = self._environment(plan, attempt.where)
            self._ranks.prepare(self._keeper, Start(self.spec, plan, attempt.where, env, attempt.ranks, 0))

    def _check_resources(self) -> None:
        self._once.check_resources(self.spec.resources, vitals.read(self._gpus), self._folder.root, launch.SHM)

    def _environment(self, plan: LaunchPlan, where: Where) -> dict[str, str]:
        keeper, brief = self._keeper.pid if self._keeper is not None else None, self.brief
        env, dropped = launch.environment(self.spec, plan, where, brief.env, brief.secrets, keeper)
        if dropped:
            self._log.info("variables of other launchers left out", names=dropped)
        return env

    def _kill_all(self) -> None:
        living = [story.rank for story in self.machine.state.record.living]
        if living:
            self.feed(e.Signalled(living, time.time()))
        if self._keeper is None:
            self.feed(e.Swept([]))
            return
        self._kills += 1
        self._keeper.kill(self._kills)

    async def _collect(self, incident: int) -> None:
        attempt, state = self._attempt, self.machine.state
        into = self._folder.incident(incident) if incident else self._where().attempt_dir / "lingering"
        places: dict[int, str] = {}
        try:
            if attempt is not None:
                stacks = await attempt.evidence(state.record.stories.values(), into, self._node)
                places = evidence.user_lines(stacks, launch.users_code(self.spec), Path(self.spec.workdir))
        except OSError as error:
            self._log.warning("evidence cannot be written", incident=incident, error=str(error))
        self.feed(e.CollectEnded(incident, places))

    # -- what the keeper says -----------------------------------------------------------------------------------

    def _heard(self, line: dict[str, Any]) -> None:
        line = keeper_news.told(line, self._log, self._hidden)
        match line["said"]:
            case "ready":
                self._read_left_over()
                self.feed(e.KeeperReady(line["left"], line["removed"]))
            case "ending" if line["stood_s"]:
                self.feed(e.KeeperEnds(line["stood_s"], line["at"]))
            case "rank":
                self.feed(e.RankSeen(line["rank"], line["pid"]))
            case "rank-exited":
                self._rank_exited(line)
            case "exited" | "not-spawned" if self._keeper is None or line["id"] != self._keeper.spawned:
                pass  # of something spawned earlier
            case "exited" if line["name"] == "torchrun":
                self._torchrun_exited(line)
            case "exited":
                self._setup_ended(line)
            case "not-spawned":
                self._not_spawned(line)
            case "swept" if line["id"] == self._kills:
                if self._attempt is not None:
                    self._attempt.logs.drain()
                    self.feed(e.DecksRead(self._attempt.decks.read()))
                if self._setup.late:  # its end was not seen: what cannot be killed must not keep the job waiting
                    self._setup_ended(None)
                self.feed(e.Swept(line["left"], line["removed"]))
            case "standby-ready" | "standby-gone":
                self.feed(self._ranks.heard(line))
                self._log.info("standbys", ready=sorted(self._ranks.standbys))
            case "not-activated" if self._keeper is not None and line["id"] == self._keeper.spawned:
                self._log.warning("standbys are no good: torchrun starts", why=line["error"])
                self._ranks.not_activated(self._keeper)
            case "freed":
                self.feed(e.Freed(line["left"], line["removed"]))
            case "waiting":
                self._say(f"the keeper of an earlier agent still holds this node: {line['holder']}")
            case "lost" if not self._closing:
                self._keeper = None
                self._ranks.forget()
                self.feed(e.KeeperLost())

    def _rank_exited(self, line: dict[str, Any]) -> None:
        rank, attempt = line["rank"], self._attempt
        if attempt is None:
            self.feed(e.RankExited(rank, line["pid"], line["exit_code"], line["signal"], line["at"], []))
            return
        attempt.logs.drain([rank])
        self._read_notes(rank)
        self.feed(e.DecksRead(attempt.decks.read()))
        last_lines = attempt.logs.last_lines(rank)
        story = self.machine.state.record.stories.get(rank)
        if story is not None and not story.booted and not last_lines:
            last_lines = self._tail(attempt.where.torchrun_log)
        self.feed(post_mortem.rank_exited(attempt, story, line, last_lines, self.spec, self._hidden))

    def _torchrun_exited(self, line: dict[str, Any]) -> None:
        lines = self._tail(self._attempt.where.torchrun_log) if self._attempt is not None else []
        in_use = launch.address_in_use("\n".join(lines))
        self.feed(e.TorchrunExited(line["exit_code"], line["signal"], line["at"], in_use, lines))

    def _setup_ended(self, line: dict[str, Any] | None) -> None:
        ended = self._setup.ended(line, self._failure)
        try:
            self._hidden.file(self._setup.log)
        except OSError as error:  # it stays, 0600 in a folder 0700
            self._say(f"{self._setup.log.name} cannot be written without secrets: {error}")
        if ended is None:
            self._once.setup_succeeded(self._setup.text)
        self.feed(e.SetupEnded(ended and replace(ended, last_lines=self._tail(self._setup.log))))

    def _not_spawned(self, line: dict[str, Any]) -> None:
        why = line["error"]
        if line.get("errno"):
            why = explained(OSError(line["errno"], line["strerror"], line["path"]), self._own_dir)
        text = f"{why}: {line['name']} cannot be started"
        if line["name"] == "setup":
            self.feed(e.SetupEnded(self._failure(FailureKind.SETUP, text)))
        else:
            self.feed(e.LaunchRefused(self._failure(FailureKind.LAUNCH, text)))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _read_notes(self, rank: int) -> None:
        if self._attempt is not None:
            for note in self._attempt.notes(rank):
                self.feed(e.NoteRead(rank, self._hidden.value(note)))

    def _read_left_over(self) -> None:
        """Output that an earlier agent had not turned into lines when it died."""
        if self._left_over_read:
            return
        self._left_over_read = True
        newest = self._attempt.where.attempt if self._attempt is not None else None
        take_left_over(self._where(), newest, self.spec, self._say, lambda: self._hidden)

    def _set_lease(self, lease_s: float) -> None:
        if lease_s != self._lease_s:
            self._lease_s = lease_s
            if self._keeper is not None:
                self._keeper.lease(max(lease_s, 1.0))

    def _where(self) -> Where:
        return Where(self._folder, self.brief.job, self._node, self.machine.state.record.attempt, self._boot)

    def _failure(self, kind: FailureKind, message: str) -> Failure:
        message = self._hidden.text(message)
        return Failure(rank=-1, node=self._node, kind=kind, at=time.time(), message=message)

    def _tail(self, log: Path) -> list[str]:
        return [self._hidden.text(line) for line in launch.tail(log)]

    def _limits(self) -> dict[str, Any]:
        """What the machine has to know of the spec."""
        return limits_of(self.spec) | {"setup": self._once.setup_wanted(self.spec)}

    def _close_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.clear()
            self._attempt.close()
            self._attempt = None

    def _say(self, text: str) -> None:
        text = self._hidden.text(text)
        self._log.warning(text)
        self.machine.state.record.warn(text)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
