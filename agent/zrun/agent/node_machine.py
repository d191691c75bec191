"""Every decision about one job on one node: `handle(event, now) -> actions` and `deadline() -> time`.

Two rules: it does nothing itself (no clock, file, process or log), and it is driven by levels, not by edges: after
each event it looks at the whole state and does what is due, so an order lost or doubled changes nothing.
It knows nothing about other nodes, budgets or blame; those are the coordinator's.
"""

from typing import Final, assert_never

from zrun.agent import node_ending, node_finish
from zrun.agent import node_events as e
from zrun.agent.node_actions import Collect, EndSetup, EnsureKeeper, NodeAction, Release, StartSetup, StartTorchrun
from zrun.agent.node_record import AttemptRecord
from zrun.agent.node_state import NodeState
from zrun.core.deck import Flag
from zrun.core.deck_reader import DeckState
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import End, Ending, JobOrder, LaunchPlan
from zrun.wire.report import Doing

LAUNCHES: Final = 3
COLLECT_LIMIT_S: Final = 4.0


class NodeMachine:
    """One job on one node, for one life of the agent."""

    def __init__(self, job: str, node: str, *, setup: bool, exit_s: float, setup_s: float | None = None) -> None:
        """`setup`: set-up commands this node has not run yet, which may take `setup_s`; `exit_s`: from a script's end
        to its process's end.
        """
        self.state = NodeState(job, node, setup=setup, exit_s=exit_s, setup_s=setup_s)

    def handle(self, event: e.NodeEvent, now: float) -> list[NodeAction]:
        """`now` is monotonic seconds, the clock of the decks."""
        state = self.state
        state.now = max(state.now, now)
        state.out = []
        self._take(event)
        self._drive()
        out, state.out = state.out, []
        return out

    def deadline(self) -> float | None:
        """When TimeUp is due; each value is the very expression of the check behind it."""
        state, record = self.state, self.state.record
        due = [at for _, at in node_finish.early_times(state)]
        if state.collecting:
            due.append(state.collect_until)
        elif record.ending is not None and not record.killing and state.doing == Doing.STOPPING:
            due.append(record.ending_until if record.termed_at is None else record.kill_at)
        if record.setup_until is not None and state.doing == Doing.SETUP:
            due.append(record.setup_until)
        linger = node_finish.linger_at(state)
        if linger is not None:
            due.append(linger)
        return min(due) if due else None

    def _drive(self) -> None:
        state = self.state
        self._drive_collect()
        node_finish.drive_phase(state)
        node_finish.drive_end_of_ranks(state)
        ending = node_ending.wanted_ending(state)
        if ending is not None and (not state.collecting or state.leave):
            node_ending.drive_ending(state, ending)
        node_ending.drive_save(state)
        self._drive_begin()

    # -- what happened ------------------------------------------------------------------------------------------

    def _take(self, event: e.NodeEvent) -> None:
        state = self.state
        match event:
            case e.OrderReceived(order):
                self._order_received(order)
            case e.KeeperReady(left):
                state.keeper_ready, state.keeper_asked = True, False
                if state.record.killing:  # of the processes that its dead forerunner left
                    self._swept(left)
            case e.KeeperLost():
                self._keeper_lost()
            case e.KeeperEnds(stood_s, unix):
                self._keeper_ends(stood_s, unix)
            case e.SetupEnded(failure):
                state.record.setup_running, state.record.setup_until = False, None
                state.setup = failure is not None
                state.record.node_failure = failure if state.doing == Doing.SETUP else None
            case e.SpecChanged(setup, setup_s, exit_s):
                state.setup, state.setup_s, state.exit_s = setup, setup_s, exit_s
            case e.LaunchRefused(failure):
                state.record.torchrun = False
                state.record.node_failure = failure
            case e.Launched(ranks):
                for rank in ranks:
                    state.record.story(rank)
            case e.RankSeen(rank, pid):
                state.record.story(rank).pid = pid
            case e.RankExited():
                state.record.rank_exited(event, state.now)
            case e.TorchrunExited():
                self._torchrun_exited(event)
            case e.DecksRead(decks):
                self._decks_read(decks)
            case e.NoteRead(rank, note):
                state.record.take_note(rank, note)
            case e.Signalled(ranks, unix):
                self._signalled(ranks, unix)
            case e.CollectEnded(incident, places):
                self._collect_ended(incident, places)
            case e.Swept(left):
                self._swept(left)
            case e.PreemptAsked():
                state.term_seen = True
            case e.LeaveNow(why):
                state.leave = why
            case e.TimeUp():
                pass
            case _:
                assert_never(event)

    def _order_received(self, order: JobOrder) -> None:
        self.state.order = order
        if order.run is None:
            self.state.seen = max(self.state.seen, order.attempt)

    def _keeper_lost(self) -> None:
        """A successor ends what it left; until then all that is certain is that the attempt is over."""
        state = self.state
        state.keeper_ready = state.keeper_asked = False
        if state.doing != Doing.IDLE:
            node_ending.begin_ending(state, Ending(End.KILL, 0.0, "the keeper died"))
            state.record.killing = state.keeper_asked = True
            state.out.append(EnsureKeeper("the keeper died; what it watched must be ended"))

    def _keeper_ends(self, stood_s: float, unix: float) -> None:
        """What ranks say or how they end from then on is a consequence; the cause is this node."""
        state, record = self.state, self.state.record
        self._signalled([story.rank for story in record.stories.values() if story.alive], unix)
        if state.doing in (Doing.SETUP, *node_finish.AT_WORK):
            record.torchrun = False
            record.node_failure = Failure(
                rank=-1, node=state.node, kind=FailureKind.NODE, at=unix,
                message=f"the agent of node {state.node} stood still for {stood_s:g} s: its keeper ended the workers",
            )  # fmt: skip

    def _torchrun_exited(self, event: e.TorchrunExited) -> None:
        state, record = self.state, self.state.record
        record.torchrun = False
        if record.killing or state.doing not in node_finish.AT_WORK:
            return
        nobody = not any(story.pid for story in record.stories.values())
        if not nobody and not record.living:
            return
        if nobody and event.address_in_use and record.launches < LAUNCHES:
            record.launches += 1
            record.torchrun = True
            why = f"the port was taken: launch {record.launches} of {LAUNCHES}"
            state.out.append(StartTorchrun(self._plan(), record.launches, why))
            return
        what = "torchrun ended before any rank was there" if nobody else "torchrun ended while its ranks lived"
        what += f" ({event.signal or f'code {event.exit_code}'})"
        if nobody and event.address_in_use:
            what = f"every port was taken in {LAUNCHES} launches"
        kind = FailureKind.LAUNCH if nobody else FailureKind.SIGNALED if event.signal else FailureKind.EXITED
        record.node_failure = Failure(
            rank=-1, node=state.node, kind=kind, at=event.unix, exit_code=event.exit_code, signal=event.signal,
            message=what, last_lines=event.last_lines,
        )  # fmt: skip

    def _decks_read(self, decks: dict[int, DeckState]) -> None:
        state, record = self.state, self.state.record
        for rank, deck in decks.items():
            story = record.story(rank)
            story.deck = deck
            if Flag.FINISHED in deck.flags and story.finished_at is None:
                story.finished_at = state.now
            if Flag.TERM_SEEN in deck.flags and story.signalled_unix is None and record.termed_at is None:
                state.term_seen = True

    def _signalled(self, ranks: list[int], unix: float) -> None:
        for rank in ranks:
            story = self.state.record.story(rank)
            story.signalled_unix = unix if story.signalled_unix is None else story.signalled_unix

    def _collect_ended(self, incident: int, places: dict[int, str]) -> None:
        state = self.state
        for rank in places.keys() & state.record.stories.keys():
            state.record.story(rank).where = places[rank]
        if incident == 0:
            state.record.lingering_seen = True
        elif incident == state.collecting:
            state.collected, state.collecting = incident, 0

    def _swept(self, left: list[str]) -> None:
        state, record = self.state, self.state.record
        record.killing, record.torchrun, record.swept = False, False, True
        state.left_behind = left
        for story in record.stories.values():
            if story.alive:  # the keeper tells of all it sees; this one it never saw, or nobody saw it end
                story.ended_at = state.now
                story.signalled_unix = story.signalled_unix or 0.0
                story.ended_unix = max(story.ended_unix, story.signalled_unix)
        if state.doing == Doing.STOPPING:
            state.move(Doing.IDLE)

    # -- what is due --------------------------------------------------------------------------------------------

    def _drive_collect(self) -> None:
        state = self.state
        if state.collecting and state.now >= state.collect_until:
            self._collect_ended(state.collecting, {})
        wanted = state.order.collect if state.order else 0
        if wanted > max(state.collected, state.collecting):
            state.collecting = wanted
            state.collect_until = state.now + COLLECT_LIMIT_S
            state.out.append(Collect(wanted, f"evidence for incident {wanted}"))

    def _drive_begin(self) -> None:
        state, order = self.state, self.state.order
        if state.doing == Doing.IDLE and order is not None and not state.leave:
            if order.release and not state.released:
                state.released = True
                state.out.append(Release(order.why or "the job is over"))
            elif order.run is not None and order.run.attempt > state.seen:
                self._begin(order.run)
        if state.doing in (Doing.SETUP, Doing.STARTING) and state.keeper_ready:
            self._drive_start()

    def _begin(self, plan: LaunchPlan) -> None:
        state = self.state
        state.seen = plan.attempt
        state.record = AttemptRecord(plan=plan, attempt=plan.attempt)
        state.term_seen, state.left_behind = False, []
        state.move(Doing.SETUP if state.setup and not plan.skip_setup else Doing.STARTING)
        if not state.keeper_ready and not state.keeper_asked:
            state.keeper_asked = True
            state.out.append(EnsureKeeper(f"attempt {plan.attempt} is to be run"))

    def _drive_start(self) -> None:
        state, record = self.state, self.state.record
        if state.doing == Doing.SETUP and not state.setup:
            state.move(Doing.STARTING)
        elif state.doing == Doing.SETUP and not record.setup_running:
            record.setup_running = True
            record.setup_until = None if state.setup_s is None else state.now + state.setup_s
            state.out.append(StartSetup("once on this node, before the first attempt"))
        elif record.setup_until is not None and state.now >= record.setup_until:
            record.setup_until = None
            state.out.append(EndSetup(f"did not end within {state.setup_s:g} s (watchdog.setup)"))
        if state.doing == Doing.STARTING and not record.launches:
            record.launches, record.torchrun = 1, True
            state.out.append(StartTorchrun(self._plan(), 1, f"attempt {record.attempt}"))

    def _plan(self) -> LaunchPlan:
        assert self.state.record.plan is not None
        return self.state.record.plan
