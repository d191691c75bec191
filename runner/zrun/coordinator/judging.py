"""Asking the hang judge: hands it the table's rows of a job's newest attempt and journals what it says that is new.

Knows when the judge may look (all ranks report, the attempt is meant to run), not how it judges.
"""

from collections.abc import Sequence
from typing import Final

from zrun.coordinator.fleet import Fleet
from zrun.coordinator.held import HeldJob
from zrun.coordinator.papers import remark
from zrun.machine.events import Suspected, Suspended
from zrun.machine.faults import patience_s
from zrun.machine.hang import HangJudge
from zrun.machine.moves import TRAINING
from zrun.machine.ordering import against_collectives

SETTLED_S: Final = 3.0
"""A judge that looked for so long without repeating an older judge's suspicion does not share it."""


def judge(fleet: Fleet, job: HeldJob) -> None:
    current = job.state.current
    if current is None or job.state.stage not in TRAINING:
        return
    by_node = fleet.table.rows(job.id, current.number, current.nodes)
    if by_node is None or any(not fleet.table.nodes[node].connected for node in by_node):
        return
    now = fleet.clock.now()
    watch, watchdog = job.watch, job.spec.watchdog
    same = watch.judge is not None and watch.attempt == current.number
    hang_judge = watch.judge if same and watch.judge else watch.begin(watchdog, current.number, now)
    rows = {row.rank: row for rows in by_node.values() for row in rows}
    nodes = {row.rank: node for node, rows in by_node.items() for row in rows}
    # On the silence clock, so that a stall of this process does not make every row look stale.
    age = {rank: max(0.0, fleet.silence.now - fleet.table.nodes[node].heard) for rank, node in nodes.items()}
    names = {rank: name for node in by_node for rank, name in fleet.table.nodes[node].phase_names(job.id).items()}
    standings = {rank: at for node in by_node for rank, at in fleet.table.nodes[node].standings(job.id).items()}
    for said in hang_judge.look(rows, now, age, nodes, current.resumed_step, names, standings):
        if _is_news(job, said):
            fleet.emit(job.id, said)
    _take_back_the_forgotten(fleet, job, hang_judge, now)
    for slow in watch.stragglers.look(rows, nodes):
        fleet.log.warning("straggler", job=job.id, attempt=current.number, because=slow.text)
        remark(job.papers, fleet.scribe, fleet.committed_n, "straggler", **slow.to_dict())
    if watch.learning.due(now):
        watch.learning.keep(hang_judge.learned(), job.spec, now)
    _check_the_order(fleet, job, current.nodes)


def _check_the_order(fleet: Fleet, job: HeldJob, nodes: Sequence[str]) -> None:
    """Would the script's own collectives give up before we act? Said as soon as both numbers are known."""
    told = [said.collective_timeout_s for node in nodes if (said := fleet.table.nodes[node].job(job.id)) is not None]
    watchdog = job.spec.watchdog
    shortest = min((seconds for seconds in told if seconds), default=0.0)
    if not shortest:
        return
    before = job.watch.disorder
    job.watch.disorder = against_collectives(watchdog, job.watch.limits(watchdog), patience_s(job.state), shortest)
    if job.watch.disorder and not before:
        fleet.log.warning("limits out of order", job=job.id, because=job.watch.disorder)
        remark(job.papers, fleet.scribe, fleet.committed_n, "limits out of order", why=job.watch.disorder)


def _is_news(job: HeldJob, said: Suspected | Suspended) -> bool:
    """After a restart of this process a new judge says again what the machine was told by the old one."""
    if isinstance(said, Suspended):
        return said.stopped != job.told.suspended
    before = job.told.suspected
    if said.cleared or before is None:
        return not said.cleared or before is not None
    return (before.attempt, before.ranks, before.kind, before.provable, before.busy) != (
        said.attempt, said.ranks, said.kind, said.provable, said.busy)  # fmt: skip


def _take_back_the_forgotten(fleet: Fleet, job: HeldJob, hang_judge: HangJudge, now: float) -> None:
    told = job.told.suspected
    if told is None or told.attempt != job.watch.attempt or hang_judge.standing is not None:
        return
    if now - job.watch.since >= SETTLED_S:
        fleet.emit(job.id, Suspected(
            told.attempt, told.ranks, told.kind, provable=False, roll_call="it moves again",
            because=["the coordinator was restarted and sees progress"], cleared=True, blind_s=told.blind_s,
        ))  # fmt: skip
