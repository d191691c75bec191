"""The node machine's way from an order to running ranks: whose port it is, when torchrun starts, and starting again.

Pure. The node with node rank 0 hosts the store of the attempt and picks its port; every other node starts torchrun
once the order names that port and checkpoint.dir proved to be the same folder, and again if the port moves. Knows
nothing about how attempts end.
"""

from typing import Final

from zrun.agent import node_events as e
from zrun.agent.node_actions import EndSetup, EnsureKeeper, ShareFolder, StartSetup, StartTorchrun
from zrun.agent.node_record import AttemptRecord
from zrun.agent.node_state import NodeState
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import LaunchPlan
from zrun.wire.report import Doing

LAUNCHES: Final = 3
NEW_PORT_S: Final = 5.0
"""A torchrun that cannot talk to the store may have met a stranger at its port: so long another port is waited for."""
STORE_WORDS: Final = (
    "DistNetworkError", "DistStoreError", "TCPStore", "client socket", "ping failed", "Connection re", "Broken pipe",
)  # fmt: skip


def begin(state: NodeState, plan: LaunchPlan) -> None:
    state.seen = plan.attempt
    state.record = AttemptRecord(plan=plan, attempt=plan.attempt)
    state.term_seen, state.removed = False, []
    state.move(Doing.SETUP if state.setup and not plan.skip_setup else Doing.STARTING)
    if not state.keeper_ready and not state.keeper_asked:
        state.keeper_asked = True
        state.out.append(EnsureKeeper(f"attempt {plan.attempt} is to be run"))


def plan_changed(state: NodeState, plan: LaunchPlan) -> None:
    """The attempt stays; where its store is, or where its other agents are, may have become known or moved."""
    record = state.record
    before, record.plan = record.plan, plan
    moved = before is not None and plan.node_rank > 0 and before.master_port != plan.master_port
    if moved and record.launches and state.doing == Doing.STARTING:
        record.relaunching, record.lost_launch = True, None
        state.kill(f"the store of attempt {record.attempt} is at another port now: {plan.master_port}")


def launched_again(state: NodeState) -> None:
    """What was started for the old port is gone."""
    record = state.record
    state.record = AttemptRecord(plan=record.plan, attempt=record.attempt, warnings=record.warnings,
                                 launches=record.launches, relaunching=True, folder_asked=record.folder_asked,
                                 folder_shared=record.folder_shared)  # fmt: skip


def drive_lost(state: NodeState) -> None:
    """The store did not move: the launch that could not talk to it has failed."""
    record = state.record
    if record.lost_launch is not None and state.now >= record.lost_until:
        record.node_failure, record.lost_launch = record.lost_launch, None


def drive_start(state: NodeState) -> None:
    """In SETUP and STARTING, with a keeper."""
    record = state.record
    if state.doing == Doing.SETUP and not state.setup:
        state.move(Doing.STARTING)
    elif state.doing == Doing.SETUP and not record.setup_running:
        record.setup_running = True
        record.setup_until = None if state.setup_s is None else state.now + state.setup_s
        state.out.append(StartSetup("once on this node, before the first attempt"))
    elif record.setup_until is not None and state.now >= record.setup_until:
        record.setup_until = None
        state.out.append(EndSetup(f"did not end within {state.setup_s:g} s (watchdog.setup)"))
    if state.doing == Doing.STARTING and not record.killing:
        _drive_torchrun(state)


def _drive_torchrun(state: NodeState) -> None:
    record, plan = state.record, plan_of(state)
    if (record.launches and not record.relaunching) or (plan.node_rank and not plan.master_port):
        return
    if plan.nnodes > 1 and not record.folder_shared:
        if not record.folder_asked:
            record.folder_asked = True
            state.out.append(ShareFolder(plan, f"every node of attempt {record.attempt} has to see the same one"))
        return
    where = f", its store is at {plan.master_addr}:{plan.master_port}" if plan.node_rank else ""
    record.launches, record.torchrun, record.relaunching = record.launches + 1, True, False
    state.out.append(StartTorchrun(plan, record.launches, f"attempt {record.attempt}{where}"))


def torchrun_exited(state: NodeState, event: e.TorchrunExited) -> None:
    record = state.record
    record.torchrun = False
    if record.killing or state.doing not in (Doing.STARTING, Doing.RUNNING):
        return
    nobody = not any(story.pid for story in record.stories.values())
    if not nobody and not record.living:
        return
    if nobody and event.address_in_use and record.launches < LAUNCHES:
        record.launches += 1
        record.torchrun = True
        why = f"the port was taken: launch {record.launches} of {LAUNCHES}"
        state.out.append(StartTorchrun(plan_of(state), record.launches, why))
        return
    what = "torchrun ended before any rank was there" if nobody else "torchrun ended while its ranks lived"
    what += f" ({event.signal or f'code {event.exit_code}'})"
    if nobody and event.address_in_use:
        what = f"every port was taken in {LAUNCHES} launches"
    kind = FailureKind.LAUNCH if nobody else FailureKind.SIGNALED if event.signal else FailureKind.EXITED
    plan = plan_of(state)
    lost_store = nobody and plan.node_rank > 0 and _speaks_of_the_store(event.last_lines)
    if lost_store:  # in words that blame takes for the echo of what became of the store's node
        kind, what = FailureKind.EXITED, f"{what}: its TCPStore at {plan.master_addr}:{plan.master_port} failed"
    failure = Failure(
        rank=-1, node=state.node, kind=kind, at=event.unix, exit_code=event.exit_code, signal=event.signal,
        message=what, last_lines=event.last_lines,
    )  # fmt: skip
    if lost_store:
        record.lost_launch, record.lost_until = failure, state.now + NEW_PORT_S
    else:
        record.node_failure = failure


def _speaks_of_the_store(lines: list[str]) -> bool:
    return any(word in line for line in lines for word in STORE_WORDS)


def plan_of(state: NodeState) -> LaunchPlan:
    assert state.record.plan is not None
    return state.record.plan
