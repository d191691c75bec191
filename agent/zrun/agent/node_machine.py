"""Every decision about one job on one node: `handle(event, now) -> actions` and `deadline() -> time`.

Two rules: it does nothing itself (no clock, file, process or log), and it is driven by levels, not by edges: after
each event it looks at the whole state and does what is due, so an order lost or doubled changes nothing.
It knows nothing about other nodes, budgets or blame; those are the coordinator's.
"""

from typing import Final, assert_never

from zrun.agent import last_line, node_ending, node_finish, node_hold, node_launch, node_recorder, node_standby
from zrun.agent import node_events as e
from zrun.agent.node_actions import Collect, EnsureKeeper, NodeAction, Release
from zrun.agent.node_state import NodeState
from zrun.core.deck import Flag
from zrun.core.deck_reader import DeckState
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import End, Ending, JobOrder
from zrun.wire.report import Doing

COLLECT_LIMIT_S: Final = 4.0
LAST_LOOK_S: Final = 0.8
"""What evidence still gets once all are to be killed: a cause is known by then, and nobody may outlive it for long."""


class NodeMachine:
    """One job on one node, for one life of the agent."""

    def __init__(self, job: str, node: str, *, setup: bool, exit_s: float, setup_s: float | None = None,
                 standby_bytes: int = 0) -> None:  # fmt: skip
        """`setup`: set-up commands this node has not run yet, which may take `setup_s`; `exit_s`: from a script's end
        to its process's end; `standby_bytes`: memory that each of the next ranks, waiting
        beside the running ones, may take; 0: none wait.
        """
        self.state = NodeState(job, node, setup=setup, exit_s=exit_s, setup_s=setup_s, standby_bytes=standby_bytes)

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
        due = [at for _, at in (*node_finish.early_times(state), *node_finish.leaving_times(state))]
        if state.collecting:
            due.append(state.collect_until)
        elif record.ending is not None and not record.killing and state.doing == Doing.STOPPING:
            due.append(record.ending_until if record.termed_at is None else record.kill_at)
        if record.setup_until is not None and state.doing == Doing.SETUP:
            due.append(record.setup_until)
        if record.lost_launch is not None:
            due.append(record.lost_until)
        due += [at for at in (node_finish.linger_at(state), node_hold.hold_time(state)) if at is not None]
        return min(due) if due else None

    def _drive(self) -> None:
        state = self.state
        self._drive_collect()
        node_launch.drive_lost(state)
        node_finish.drive_phase(state)
        node_finish.drive_end_of_ranks(state)
        ending = node_ending.wanted_ending(state)
        node_hold.drive_hold(state, ending)
        if ending is not None and ending.how == End.KILL and state.collecting and not state.last_look:
            state.last_look = True
            state.collect_until = min(state.collect_until, state.now + LAST_LOOK_S)
        busy = state.collecting or node_hold.holding(state)
        if ending is not None and (not busy or state.leave or state.record.cut_off):
            node_ending.drive_ending(state, ending)
        node_ending.drive_save(state)
        last_line.drive_last_lines(state)
        node_recorder.drive_recorder(state)
        node_standby.drive_standbys(state)
        self._drive_begin()

    # -- what happened ------------------------------------------------------------------------------------------

    def _take(self, event: e.NodeEvent) -> None:
        state = self.state
        match event:
            case e.OrderReceived(order):
                self._order_received(order)
            case e.LeftBefore() | e.KeeperReady() | e.KeeperLost() | e.KeeperEnds():
                self._take_of_keeper(event)
            case e.SetupEnded(failure):
                state.record.setup_running, state.record.setup_until = False, None
                state.setup = failure is not None
                state.record.node_failure = failure if state.doing == Doing.SETUP else None
            case e.SpecChanged(setup, setup_s, exit_s, standby_bytes):
                state.setup, state.setup_s, state.exit_s = setup, setup_s, exit_s
                state.standby_bytes = standby_bytes
            case e.FolderShared(attempt, problem):
                if attempt == state.record.attempt:
                    state.record.folder_shared, state.record.node_failure = problem is None, problem
            case e.LaunchRefused(failure):
                state.record.torchrun = False
                state.record.node_failure = failure
                if state.record.killing and not state.keeper_ready:  # nobody is there to end anything
                    state.found([failure.message or "the keeper cannot be started"], [])
                    self._swept()
            case e.Launched(ranks, port):
                state.record.port = port
                node_standby.launched(state)
                for rank in ranks:
                    state.record.story(rank)
            case e.RankSeen() | e.RankExited() | e.DecksRead() | e.NoteRead() | e.Signalled():
                self._take_of_ranks(event)
            case e.TorchrunExited():
                node_launch.torchrun_exited(state, event)
            case e.CollectEnded(incident, places):
                self._collect_ended(incident, places)
            case e.Swept(left, removed):
                state.found(left, removed)
                self._swept()
            case e.Freed(left, removed):
                state.found(left, removed)
            case e.PreemptAsked() | e.LeaveNow() | e.CutOff() | e.NoticeRead():
                self._from_outside(event)
            case e.StandbyReady() | e.StandbyLost():
                node_standby.take(state, event)
            case e.TimeUp():
                pass
            case _:
                assert_never(event)

    def _take_of_keeper(self, event: e.LeftBefore | e.KeeperReady | e.KeeperLost | e.KeeperEnds) -> None:
        state = self.state
        match event:
            case e.LeftBefore():
                self._end_what_was_left("an earlier agent had this job here; what it left must be ended")
            case e.KeeperReady(left, removed):
                state.keeper_ready, state.keeper_asked = True, False
                state.found(left, removed)
                if state.record.killing:  # of the processes that its dead forerunner left
                    self._swept()
            case e.KeeperLost():
                self._keeper_lost()
            case e.KeeperEnds(stood_s, unix):
                self._keeper_ends(stood_s, unix)

    def _take_of_ranks(self, event: e.RankSeen | e.RankExited | e.DecksRead | e.NoteRead | e.Signalled) -> None:
        record = self.state.record
        match event:
            case e.RankSeen(rank, pid):
                record.story(rank).pid = pid
            case e.RankExited():
                record.rank_exited(event, self.state.now)
            case e.DecksRead(decks):
                self._decks_read(decks)
            case e.NoteRead(rank, note):
                record.take_note(rank, note, self.state.now)
            case e.Signalled(ranks, unix):
                self._signalled(ranks, unix)

    def _from_outside(self, event: e.PreemptAsked | e.LeaveNow | e.CutOff | e.NoticeRead) -> None:
        state = self.state
        match event:
            case e.PreemptAsked():
                state.term_seen = True
            case e.LeaveNow(why):
                state.leave = why
            case e.CutOff(why, unix):
                node_ending.cut_off(state, why, unix)
            case e.NoticeRead(text):
                state.record.take_notice(text)

    def _order_received(self, order: JobOrder) -> None:
        self.state.order = order
        if order.run is None:
            self.state.seen = max(self.state.seen, order.attempt)
        elif order.run.attempt == self.state.record.attempt and order.run != self.state.record.plan:
            node_launch.plan_changed(self.state, order.run)

    def _keeper_lost(self) -> None:
        """A successor ends what it left; until then all that is certain is that the attempt is over."""
        state = self.state
        state.keeper_ready = state.keeper_asked = state.standbys_asked = False
        if state.doing != Doing.IDLE:
            node_ending.begin_ending(state, Ending(End.KILL, 0.0, "the keeper died"))
            self._end_what_was_left("the keeper died; what it watched must be ended")

    def _end_what_was_left(self, why: str) -> None:
        """Not idle before a keeper has looked: nobody else knows whether a process of the job is alive here."""
        state = self.state
        if state.doing == Doing.IDLE:
            state.move(Doing.STOPPING)
        state.record.killing = state.keeper_asked = True
        state.out.append(EnsureKeeper(why))

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

    def _swept(self) -> None:
        state, record = self.state, self.state.record
        record.killing, record.torchrun, record.swept = False, False, True
        for story in record.stories.values():
            if story.alive:  # the keeper tells of all it sees; this one it never saw, or nobody saw it end
                story.ended_at = state.now
                story.signalled_unix = story.signalled_unix or 0.0
                story.ended_unix = max(story.ended_unix, story.signalled_unix)
        if state.doing == Doing.STOPPING:
            state.move(Doing.IDLE)
        elif record.relaunching and state.doing == Doing.STARTING:
            node_launch.launched_again(state)

    # -- what is due --------------------------------------------------------------------------------------------

    def _drive_collect(self) -> None:
        state = self.state
        if state.collecting and state.now >= state.collect_until:
            self._collect_ended(state.collecting, {})
        wanted = state.order.collect if state.order else 0
        if wanted > max(state.collected, state.collecting):
            state.collecting, state.last_look = wanted, False
            state.collect_until = state.now + COLLECT_LIMIT_S
            state.out.append(Collect(wanted, f"evidence for incident {wanted}"))

    def _drive_begin(self) -> None:
        state, order = self.state, self.state.order
        if state.doing == Doing.IDLE and order is not None and not state.leave:
            if order.release and not state.released:
                state.released = True
                state.out.append(Release(order.why or "the job is over"))
            elif order.run is not None and order.run.attempt > state.seen:
                node_launch.begin(state, order.run)
        if state.doing in (Doing.SETUP, Doing.STARTING) and state.keeper_ready:
            node_launch.drive_start(state)
