"""Situations on the table of rows: who is named, who is not, and that nothing is said twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zrun.core.batch import BatchId
from zrun.core.deck import Phase
from zrun.core.rows import RankRow, RowFlag
from zrun.core.standing import Standing
from zrun.machine.events import Suspected, Suspended
from zrun.machine.hang import HangJudge
from zrun.machine.limits import Learned
from zrun.spec.job import Watchdog

F = RowFlag
USUAL = F.ALIVE | F.SESSION | F.RECORDER | F.STEPPING
USUALLY = Watchdog()
BATCH = BatchId(0, 41, 0x7F3A9C21)


def row(rank: int, age: float, *flags: RowFlag, **more: Any) -> RankRow:
    """A rank in step 41 that has shown no progress for `age` seconds and is in no collective."""
    known: dict[str, Any] = {
        "pid": 100 + rank, "step": 41, "phase": Phase.STEP, "batch": BATCH, "phase_age_s": 60.0, "step_s": 0.05,
        "coll_seq": 16, "coll_age_s": age, "coll_op": "all_reduce", "cpu": 0.01, "state": "S",
    }  # fmt: skip
    return RankRow(rank=rank, age_s=age, flags=reduce(or_, flags, USUAL), **(known | more))


def inside(rank: int, age: float, **more: Any) -> RankRow:
    return row(rank, age, F.IN_COLLECTIVE, **({"coll_seq": 17} | more))


def stopped(rank: int, seconds: float, *flags: RowFlag, **more: Any) -> RankRow:
    return row(rank, more.pop("age", seconds), *flags, state="T", stopped_s=seconds, cpu=0.0, **more)


class Watch:
    """A judge that has seen this job step at 50 ms, and a clock."""

    def __init__(self, watchdog: Watchdog | None = None, *, warm: bool = True, ranks: int = 4) -> None:
        self.judge = HangJudge(watchdog or Watchdog(), attempt=1)
        self.now = 1000.0
        if warm:
            for step in (1, 2, 8, 28, 41):
                assert self.look([row(r, 0.01, step=step, cpu=0.9) for r in range(ranks)]) == []

    def look(
        self, rows: Sequence[RankRow], after: float = 0.25, *, stale: float = 0.0, nodes: str = "aaaaaaaa"
    ) -> list[Suspected | Suspended]:
        self.now += after
        ages = dict.fromkeys(range(len(nodes)), stale)
        names = dict(enumerate(nodes))
        own = {r.rank: "tokenize" for r in rows if r.phase is Phase.OWN}
        return self.judge.look({r.rank: r for r in rows}, self.now, ages, names, 0, own)

    def named(self, rows: Sequence[RankRow], **more: Any) -> Suspected:
        [said] = self.look(rows, **more)
        assert isinstance(said, Suspected)
        assert not said.cleared
        assert self.look(rows, **more) == [], "said twice"
        return said


@dataclass(frozen=True)
class Situation:
    name: str
    rows: Sequence[RankRow]
    ranks: list[int] | None
    kind: str = ""
    says: str = ""
    provable: bool = False
    watchdog: Watchdog = USUALLY
    nodes: str = "aaaaaaaa"


def all_of(make: Any, ages: Sequence[float], **more: Any) -> list[RankRow]:
    return [make(rank, age, **more) for rank, age in enumerate(ages)]


SECOND = F.NODE_OTHERS_RUN
BARE: dict[str, Any] = {"coll_seq": 0, "coll_op": "none", "coll_age_s": 0.0}
SITUATIONS = [
    # someone does not come
    Situation(
        "one of four sleeps before its all_reduce", [inside(0, 2.4), inside(1, 2.4), row(2, 2.5), inside(3, 2.4)], [2],
        "not-arrived", "3 of 4 ranks in all_reduce #17; rank 2 not there (phase step, step 41, batch e0-s000041-7f3a9c21)",
    ),
    Situation("two of four do not come", [inside(0, 2.4), row(1, 2.5), row(2, 2.6), inside(3, 2.4)], [1, 2], "not-arrived",
              "2 of 4 ranks in all_reduce #17; ranks 1-2 not there (1: phase step"),
    Situation("it spins", [inside(0, 2.4), row(1, 2.5, cpu=1.0, state="R")], [1], "not-arrived", "busy with 1.0 cores"),
    Situation("it hangs in its loader", [inside(0, 2.4), row(1, 2.5, F.IN_LOADER)], [1], "in-loader", "data loader"),
    Situation("it waits for a disk", [inside(0, 2.4), row(1, 2.5, state="D")], [1], "uninterruptible", "uninterruptible"),
    Situation(
        "the recorder shows entries only", [row(0, 2.4, coll_seq=17), row(1, 2.5)], [1], "not-arrived",
        "past the entry of all_reduce #17; rank 1 not there",
    ),
    Situation("one is still in an earlier collective", [inside(0, 2.5), inside(1, 2.6, coll_seq=16, coll_op="broadcast")],
              [1], "behind", "1 of 2 ranks in all_reduce #17; rank 1 still in broadcast #16"),
    Situation("an outsider that is ahead is not the absent one", [inside(0, 2.5), row(1, 2.5), row(2, 2.5, coll_seq=20)],
              [1], "not-arrived"),
    # all alike
    Situation("all inside the same collective", all_of(inside, [2.5, 2.6]), [0, 1], "stalled-in-collective",
              "all 2 ranks in all_reduce #17"),
    Situation("all inside, two different ones", [inside(0, 2.5), inside(1, 2.5, coll_op="broadcast")], [0, 1],
              "mismatched", "rank 0 in all_reduce #17; rank 1 in broadcast #17"),
    Situation("send waits for recv", [inside(0, 2.5, coll_op="send"), inside(1, 2.5, coll_op="recv")], [0, 1],
              "stalled-in-collective"),
    Situation("all in the loader", [row(r, 2.5, F.IN_LOADER) for r in range(4)], [0, 1, 2, 3], "all-in-loader",
              "all 4 ranks in the data loader"),
    Situation("all stuck outside, idle", all_of(row, [2.5] * 3), [0, 1, 2], "all-stuck", "none in a collective"),
    Situation("all stuck, one of them in state D", [row(0, 2.5), row(1, 2.5, state="D"), row(2, 2.5)], [1], "uninterruptible"),
    Situation("the only rank sleeps", [row(0, 2.5)], [0], "all-stuck", "the only rank"),
    Situation("all spin: a longer wait", all_of(row, [3.1] * 2, cpu=1.0, state="R"), [0, 1], "all-stuck"),
    Situation("all spin: not yet", all_of(row, [2.5] * 2, cpu=1.0, state="R"), None),
    Situation("all spin and one holds its interpreter", [row(0, 2.5, cpu=1.0), row(1, 2.5, F.GIL_HELD, cpu=1.0)], [1],
              "gil-held", "interpreter blocked (GIL)"),
    Situation("all stuck, one holds its interpreter", [row(0, 2.5), row(1, 2.5, F.GIL_HELD), row(2, 2.5)], [1], "gil-held",
              "rank 1 behind"),
    # what its own state says
    Situation("native code holds the interpreter", [inside(0, 2.4), row(1, 2.5, F.GIL_HELD)], [1], "gil-held",
              "rank 1 not there (phase step, step 41, batch e0-s000041-7f3a9c21, alive, interpreter blocked (GIL))"),
    Situation("one of two absent ones holds its interpreter", [inside(0, 2.4), row(1, 2.5, F.GIL_HELD), row(2, 2.5)],
              [1, 2], "not-arrived"),
    Situation("both absent ones wait for a disk", [inside(0, 2.4), row(1, 2.5, state="D"), row(2, 2.5, state="D")], [1, 2],
              "uninterruptible"),
    Situation("the interpreter is held under the limit", [inside(0, 1.8), row(1, 1.9, F.GIL_HELD)], None),
    Situation("the only rank holds its interpreter", [row(0, 2.5, F.GIL_HELD, cpu=1.0)], [0], "gil-held"),
    # slow but moving
    Situation("it moves and does not come", [inside(0, 12.0), row(1, 0.3)], [1], "slow",
              "rank 0 of 2 ranks have waited 12.0 s in all_reduce #17; rank 1 moves, but does not come"),
    Situation("it moves and others have not waited long", [inside(0, 8.0), row(1, 0.3)], None),
    Situation("it moves in its eval", [inside(0, 60.0), row(1, 0.3, phase=Phase.EVAL)], None),
    # signs that contradict each other
    Situation("all that are outside came further", [inside(0, 2.5), row(1, 2.5, coll_seq=20)], [0, 1], "inconclusive",
              "it is not clear for whom they wait: rank 1 came further than the others"),
    # without the recorder
    Situation(
        "no recorder, one is a step behind",
        [replace(row(0, 2.4, step=42), flags=F.ALIVE, **BARE), replace(row(1, 2.5), flags=F.ALIVE, **BARE)], [1],
        "behind", "rank 1 behind: no progress for 2.5 s (phase step, step 41",
    ),
    Situation("no recorder, all at one step", [replace(row(r, 2.5), flags=F.ALIVE, **BARE) for r in range(2)], [0, 1],
              "all-stuck"),
    # stopped
    Situation("a stopped rank", [inside(0, 0.4), stopped(1, 0.6, SECOND)], [1], "stopped",
              "rank 1 stopped by a signal (phase step, step 41, batch e0-s000041-7f3a9c21, stopped for 0.6 s); 1 of 2 ranks "
              "in all_reduce #17", provable=True),
    Situation("stopped, seen only by its neighbour", [inside(0, 0.4), stopped(1, 0.6)], [1], "stopped", provable=True),
    Situation("stopped for a moment", [inside(0, 0.4), stopped(1, 0.4, SECOND)], None),
    Situation("a node of two is frozen", [inside(0, 2.6), inside(1, 2.6), stopped(2, 2.7, age=3.0), stopped(3, 2.7)], [2, 3],
              "node-frozen", "node b is frozen: all its ranks (ranks 2-3) stopped by a signal", provable=True, nodes="aabb"),
    Situation("one rank of the other node", [inside(0, 2.6), inside(1, 2.6), inside(2, 2.6), stopped(3, 2.7, SECOND)], [3],
              "stopped", provable=True, nodes="aabb"),
    Situation("stopped in set-up", [row(0, 0.6, phase=Phase.SETUP, step=0),
                                    stopped(1, 0.6, SECOND, phase=Phase.SETUP, step=0)], [1], "stopped", provable=True),
    Situation("two of three stopped", [inside(0, 0.4), stopped(1, 0.9, SECOND), stopped(2, 0.9, SECOND)], [1, 2],
              "stopped", "ranks 1-2 stopped", provable=True),
    Situation("a node that a scheduler may be suspending", [inside(0, 0.9), stopped(1, 0.9)], None, nodes="ab"),
    Situation("a node that stays stopped alone", [inside(0, 2.6), stopped(1, 2.7)], [1], "node-frozen",
              "node b is frozen: all its ranks (rank 1) stopped by a signal", provable=True, nodes="ab"),
    # slow is not hung
    Situation("healthy", all_of(row, [0.01, 0.04], cpu=0.9), None),
    Situation("waiting under the limit", [inside(0, 1.8), row(1, 1.9)], None),
    Situation("long since a step, but collectives go on", [row(0, 30.0, coll_age_s=0.1), row(1, 30.0, coll_age_s=0.2)], None),
    Situation("one of two absent ranks still moves", [inside(0, 9.0), row(1, 9.0), row(2, 0.2)], None),
    Situation("files are moving", [inside(0, 2.4), row(1, 2.5, F.IO_MOVING)], [1], "not-arrived"),
    Situation("a phase of the script's own past its limit", [row(0, 50.0, phase=Phase.OWN), inside(1, 50.0)], [0],
              "not-arrived", "phase tokenize", watchdog=Watchdog(phases_s={"tokenize": 40.0, "pack": 3600.0})),
    Situation("a long set-up", [row(0, 20.0, phase=Phase.SETUP, step=0), inside(1, 20.0, phase=Phase.SETUP, step=0)], None),
    Situation("set-up without end", [row(0, 31.0, phase=Phase.SETUP, step=0), inside(1, 31.0, phase=Phase.SETUP, step=0)],
              [0], "not-arrived", "phase setup", watchdog=Watchdog(setup_s=30.0)),
    Situation("a long save on rank 0", [row(0, 20.0, phase=Phase.SAVE), inside(1, 20.0)], None),
    Situation("a save without end", [row(0, 31.0, phase=Phase.SAVE), inside(1, 31.0)], [0], "not-arrived", "phase save",
              watchdog=Watchdog(save_s=30.0)),
    Situation("an eval of 15 s", [row(0, 15.0, phase=Phase.EVAL), inside(1, 15.0)], None),
    Situation("an eval past its stated limit", [row(0, 15.0, phase=Phase.EVAL), inside(1, 15.0)], [0], "not-arrived",
              watchdog=Watchdog(eval_s=10.0)),
    Situation("one compiles its first step", [inside(0, 15.0, phase=Phase.FIRST_STEP, step=1),
                                              row(1, 15.0, phase=Phase.FIRST_STEP, step=1, cpu=1.0)], None),
    Situation("the first step never ends", [inside(0, 21.0, phase=Phase.FIRST_STEP, step=1),
                                            row(1, 21.0, phase=Phase.FIRST_STEP, step=1)], [1], "not-arrived",
              watchdog=Watchdog(first_step_s=20.0)),
    Situation("set-up computes without steps", all_of(row, [3600.0] * 2, phase=Phase.SETUP, step=0, cpu=1.0), None),
    Situation("a phase of the script's own", [row(0, 50.0, phase=Phase.OWN), inside(1, 50.0)], None,
              watchdog=Watchdog(phases_s={"tokenize": 3600.0})),
    Situation("a rank has raised", [inside(0, 9.0), row(1, 9.0, F.LAST_WORDS)], None),
    Situation("a rank is dead", [inside(0, 9.0), row(1, 9.0, F.FAILED)], None),
    Situation("the watchdog is off", [inside(0, 9.0), row(1, 9.0)], None, watchdog=Watchdog(enabled=False)),
    Situation("a stated step limit", [inside(0, 9.0), row(1, 9.0)], None, watchdog=Watchdog(step_s=10.0)),
]  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_who_is_named(situation: Situation) -> None:
    watch = Watch(situation.watchdog, ranks=len(situation.rows))
    if situation.ranks is None:
        assert watch.look(situation.rows, nodes=situation.nodes) == []
        return
    said = watch.named(situation.rows, nodes=situation.nodes)
    assert said.ranks == situation.ranks
    assert said.kind == situation.kind
    assert said.provable is situation.provable
    assert situation.says in said.roll_call
    assert said.because
    assert said.node == situation.nodes[said.ranks[0]]


def test_a_sleeping_rank_is_named_within_five_seconds_at_steps_of_50_ms() -> None:
    watch = Watch(ranks=2)
    hung_at, began = watch.now, watch.now
    reported = [row(0, 0.0), row(1, 0.0)]
    while True:
        if watch.now - began >= 1.0:  # one report a second
            began = watch.now
            reported = [inside(0, watch.now - hung_at), row(1, watch.now - hung_at)]
        if watch.look(reported):
            break
    assert watch.now - hung_at <= 3.5


def test_moving_files_of_the_suspect_do_not_delay_its_name_and_are_said_with_it() -> None:
    watch = Watch(ranks=2)
    assert watch.named([inside(0, 2.4, cpu=0.0), row(1, 2.5, F.IO_MOVING)]).busy
    assert watch.look([inside(0, 3.4), row(1, 3.5)], after=1.0) == [], "reading has its pauses"
    [said] = watch.look([inside(0, 6.4), row(1, 6.5)], after=3.0)
    assert isinstance(said, Suspected)
    assert (said.ranks, said.busy, said.cleared) == ([1], False, False)


def test_a_stack_inside_a_save_or_a_compilation_defers_the_end_as_moving_files_do() -> None:
    watch = Watch(ranks=2)
    said = watch.named([inside(0, 2.4), row(1, 2.5, F.AT_WORK)])
    assert said.busy
    assert "rank 1 saves or compiles, as its stack says" in said.because


def test_how_far_a_name_can_be_trusted_is_said() -> None:
    assert Watch(ranks=2).named([inside(0, 2.4), row(1, 2.5)]).confidence == "likely"
    assert Watch(ranks=2).named([inside(0, 0.4), stopped(1, 0.6, SECOND)]).confidence == "proved"
    bare = [replace(row(r, 2.5), flags=F.ALIVE, **BARE) for r in range(2)]
    assert Watch(ranks=2).named(bare).confidence == "unsure"


def test_a_slow_rank_is_taken_back_when_the_others_are_free_again() -> None:
    watch = Watch(ranks=2)
    watch.named([inside(0, 12.0), row(1, 0.3)])
    assert watch.look([inside(0, 13.0), row(1, 0.3)], after=1.0) == []
    [back] = watch.look([row(0, 0.2, step=42), row(1, 0.2, step=42)], after=1.0)
    assert isinstance(back, Suspected)
    assert back.cleared
    assert watch.judge.learned().pauses_s == ()


def test_a_slow_rank_that_then_stands_still_is_said_again() -> None:
    watch = Watch(ranks=2)
    watch.named([inside(0, 12.0), row(1, 0.3)])
    [said] = watch.look([inside(0, 15.0), row(1, 3.3, F.IO_MOVING)], after=3.0)
    assert isinstance(said, Suspected)
    assert (said.kind, said.busy) == ("not-arrived", True)


STUCK = Standing(7, 5, "all_reduce", 8, inside=True, blocking=True)


def crossed(blocking: bool) -> dict[int, list[Standing]]:
    """Ranks 0 and 1 wait for each other in two groups."""
    return {
        0: [Standing(8, 4, "all_reduce", 8, inside=False), replace(STUCK, blocking=blocking)],
        1: [Standing(7, 4, "all_reduce", 8, inside=False), replace(STUCK, group=8, blocking=blocking)],
    }


@pytest.mark.parametrize(("blocking", "cpu", "proved"), [(True, 0.0, True), (True, 0.9, False), (False, 0.0, False)])
def test_a_deadlock_is_proved_only_of_idle_ranks_that_can_do_nothing_else(
    blocking: bool, cpu: float, proved: bool
) -> None:
    watch = Watch(ranks=2)
    rows = {rank: inside(rank, 2.5, cpu=cpu) for rank in range(2)}
    watch.now += 0.25
    ages, nodes = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, "a")
    [said] = watch.judge.look(rows, watch.now, ages, nodes, 0, None, crossed(blocking))
    assert isinstance(said, Suspected)
    assert (said.kind, said.ranks, said.provable) == ("deadlock", [0, 1], proved)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_naming_does_not_depend_on_the_numbers_of_ranks(data: st.DataObject) -> None:
    """Any rows, with any standings: the same ranks are named when all of them are numbered anew."""
    count = data.draw(st.integers(1, 5))
    flags = st.sampled_from([F(0), F.IN_COLLECTIVE, F.GIL_HELD, F.IN_LOADER, F.IO_MOVING])
    rows = [
        row(rank, data.draw(st.sampled_from([0.2, 2.5, 12.0])), data.draw(flags),
            coll_seq=data.draw(st.integers(15, 17)), cpu=data.draw(st.sampled_from([0.0, 1.0])),
            state=data.draw(st.sampled_from("RSD")), coll_op=data.draw(st.sampled_from(["all_reduce", "send"])))
        for rank in range(count)
    ]  # fmt: skip
    one = st.builds(Standing, st.integers(1, 2), st.integers(1, 3), st.sampled_from(["all_reduce", "broadcast"]),
                    st.just(8), st.booleans(), st.booleans())  # fmt: skip
    at = {r.rank: data.draw(st.lists(one, max_size=2, unique_by=lambda s: s.group)) for r in rows}
    order = data.draw(st.permutations(range(count)))
    first, second = _named(rows, at), _named(
        [replace(r, rank=order[r.rank]) for r in rows], {order[rank]: here for rank, here in at.items()}
    )  # fmt: skip
    assert (first is None) is (second is None)
    if first is not None and second is not None:
        assert {order[rank] for rank in first.ranks} == set(second.ranks)
        assert (first.kind, first.provable, first.busy) == (second.kind, second.provable, second.busy)


def _named(rows: Sequence[RankRow], at: Mapping[int, Sequence[Standing]]) -> Suspected | None:
    watch = Watch(ranks=len(rows))
    by_rank = {r.rank: r for r in rows}
    said = watch.judge.look(
        by_rank, watch.now + 0.25, dict.fromkeys(by_rank, 0.0), dict.fromkeys(by_rank, "a"), 0, None, at
    )
    return said[0] if said and isinstance(said[0], Suspected) else None


def test_what_the_waiting_ranks_print_does_not_make_the_suspect_busy() -> None:
    watch = Watch(ranks=2)
    printing = RowFlag.IO_MOVING | RowFlag.IN_COLLECTIVE
    assert not watch.named([row(0, 2.4, printing, coll_seq=17), row(1, 2.5)]).busy


def test_a_suspicion_is_taken_back_when_the_suspect_moves() -> None:
    watch = Watch(ranks=2)
    watch.named([inside(0, 2.4), row(1, 2.5)])
    assert watch.judge.standing is not None
    [back] = watch.look([row(0, 0.1, step=42), row(1, 0.2, step=42)], after=3.0)
    assert isinstance(back, Suspected)
    assert back.cleared
    assert back.ranks == [1]
    assert 5.0 < back.blind_s < 7.0
    assert watch.judge.standing is None
    assert watch.named([inside(0, 2.4), row(1, 2.5)]).ranks == [1]


def test_a_suspicion_stands_while_nothing_is_heard() -> None:
    watch = Watch(ranks=2)
    hung = [inside(0, 2.4), row(1, 2.5)]
    watch.named(hung)
    assert watch.look(hung, stale=9.0) == []
    assert watch.judge.standing is not None


def test_old_rows_accuse_nobody() -> None:
    assert Watch(ranks=2).look([inside(0, 9.0), row(1, 9.0)], stale=3.0) == []


def test_proof_sharpens_a_suspicion() -> None:
    watch = Watch(ranks=2)
    assert not watch.named([inside(0, 2.4), row(1, 2.5)]).provable
    assert watch.named([inside(0, 3.4), stopped(1, 0.8, SECOND, age=3.5)]).provable


def test_a_continued_rank_has_its_time_anew() -> None:
    watch = Watch(ranks=2)
    watch.named([inside(0, 8.0), stopped(1, 8.0, SECOND)])
    [back] = watch.look([inside(0, 8.3), row(1, 8.3)])
    assert isinstance(back, Suspected)
    assert back.cleared
    assert watch.look([inside(0, 9.3), row(1, 9.3)], after=1.0) == []
    assert watch.look([row(0, 0.1, step=42), row(1, 0.1, step=42)], after=0.5) == []


def test_all_ranks_stopped_is_a_suspend_and_no_hang() -> None:
    watch = Watch(ranks=2)
    assert watch.look([stopped(0, 0.7), stopped(1, 0.7)]) == [Suspended(1, stopped=True)]
    assert watch.look([stopped(0, 600.0), stopped(1, 600.0)], after=600.0) == []
    straddling = [row(0, 601.0), stopped(1, 601.0, SECOND)]
    assert watch.look(straddling) == [Suspended(1, stopped=False)]
    assert watch.look(straddling) == []
    assert watch.look([inside(0, 602.0), row(1, 602.0)], after=1.0) == []
    assert watch.look([row(0, 0.1, step=42), row(1, 0.1, step=42)], after=1.0) == []


def test_one_that_stays_stopped_after_a_suspend_is_named() -> None:
    watch = Watch(ranks=2)
    watch.look([stopped(0, 0.7), stopped(1, 0.7)])
    watch.look([row(0, 9.0), stopped(1, 9.0, SECOND)])
    [said] = watch.look([inside(0, 11.0), stopped(1, 11.0, SECOND)], after=2.0)
    assert isinstance(said, Suspected)
    assert said.kind == "stopped"


def gone(rank: int) -> RankRow:
    return RankRow(
        rank, 0, 41, Phase.DONE, BATCH, 0.1, 0.1, 0.05, 16, 0.1, "all_reduce", 0.0, "?", F.FINISHED | F.RECORDER
    )


def test_an_early_exit_is_named_after_the_exit_window() -> None:
    watch = Watch(ranks=2)
    assert watch.look([inside(0, 0.2), gone(1)]) == []
    assert watch.look([inside(0, 4.2), gone(1)], after=4.0) == []
    said = watch.named([inside(0, 5.6), gone(1)], after=1.5)
    assert (said.kind, said.ranks, said.provable) == ("early-exit", [1], True)
    assert "rank 1 ended with code 0 before the others" in said.roll_call
    assert "1 of 2 ranks in all_reduce #17" in said.roll_call


def test_the_last_rank_may_take_its_time_outside_collectives() -> None:
    watch = Watch(ranks=2)
    for age in (0.2, 6.0, 20.0):
        assert watch.look([row(0, age, phase=Phase.EXIT, cpu=0.5), gone(1)], after=6.0) == []


def test_a_process_that_stays_after_its_script_is_no_hang() -> None:
    watch = Watch(ranks=2)
    for age in (1.0, 100.0, 300.0):
        assert watch.look([row(0, age, phase=Phase.DONE), gone(1)], after=100.0) == []


def test_leaving_together_is_not_early() -> None:
    watch = Watch(ranks=2)
    watch.look([inside(0, 0.2, phase=Phase.EXIT), gone(1)])
    assert watch.look([inside(0, 20.0, phase=Phase.EXIT), gone(1)], after=20.0) == []


def test_without_the_recorder_the_judge_says_so() -> None:
    bare = [replace(row(0, 2.4, step=42), flags=F.ALIVE), replace(row(1, 2.5), flags=F.ALIVE)]
    assert any("not recorded" in reason for reason in Watch(ranks=2).named(bare).because)


def test_the_limit_and_its_source_are_among_the_reasons() -> None:
    said = Watch(ranks=2).named([inside(0, 2.4), row(1, 2.5)])
    assert "the limit of this phase is 2 s (watchdog.min_step" in said.because[0]
    assert "rank 0 can only wait for it" in said.because


def test_a_hang_right_after_the_warm_up_is_seen() -> None:
    watch = Watch(ranks=2, warm=False)
    watch.look([row(r, 0.1, phase=Phase.FIRST_STEP, step=1, coll_seq=0) for r in range(2)])
    assert watch.named([inside(0, 2.4, step=5), row(1, 2.5, step=5)]).ranks == [1]


def test_a_slow_second_step_is_given_more_time() -> None:
    watch = Watch(ranks=2, warm=False)
    watch.look([row(r, 0.1, phase=Phase.FIRST_STEP, step=1, coll_seq=0) for r in range(2)])
    assert watch.look([inside(0, 25.0, step=2), row(1, 25.0, step=2)]) == []
    assert watch.look([inside(0, 31.0, step=2), row(1, 31.0, step=2)]) != []


def test_what_was_learned_reaches_the_next_attempt() -> None:
    watch = Watch(ranks=2)
    judge = HangJudge(Watchdog(), 2, watch.judge.learned())
    rows = {0: inside(0, 9.0, step=42), 1: row(1, 9.0, step=42)}
    [said] = judge.look(rows, 1.0, {0: 0.0, 1: 0.0}, {0: "a", 1: "a"}, 41)
    assert isinstance(said, Suspected)
    assert said.attempt == 2
    assert judge.learned() == Learned(step_s=watch.judge.learned().step_s, warm_s=watch.judge.learned().warm_s)


def test_pauses_that_repeat_are_learned() -> None:
    watch = Watch(ranks=2)
    for step in (50, 60):
        watch.named([inside(0, 2.4, step=step), row(1, 2.5, step=step)])
        watch.look([row(0, 0.1, step=step + 1), row(1, 0.1, step=step + 1)], after=10.0)
    assert watch.look([inside(0, 9.0, step=70), row(1, 9.0, step=70)]) == []


def test_many_absent_ranks_make_one_line() -> None:
    said = Watch(ranks=64).look(
        [inside(r, 2.5) if r % 2 else row(r, 2.5) for r in range(64)], nodes="a" * 64
    )  # fmt: skip
    assert isinstance(said[0], Suspected)
    assert "and 28 more" in said[0].roll_call
    assert len(said[0].roll_call) < 700


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_healthy_ranks_with_jitter_are_never_suspected(data: st.DataObject) -> None:
    """A seeded run: steps of 20 ms to 3 s, one report a second from each node, evals and saves in between."""
    random = data.draw(st.randoms(use_true_random=False))
    ranks = random.randint(1, 4)
    mean = random.choice([0.02, 0.05, 0.3, 1.0, 3.0])
    watch = Watch(warm=False)
    step, sequence, now = 0, 0, 0.0
    newest: Mapping[int, RankRow] = {}
    for tick in range(120):
        now += 0.25
        if tick % 4 == 0:
            before, step = step, step + max(1, int(1.0 / mean)) if tick else 1
            sequence += (step - before) * 3
            phase = Phase.FIRST_STEP if step == 1 else random.choice([Phase.STEP] * 8 + [Phase.EVAL, Phase.SAVE])
            slow = random.uniform(0, 1.4 * max(mean, 1.0)) if phase is Phase.STEP else random.uniform(0, 20)
            late = random.randrange(ranks)
            newest = {
                r: replace(
                    row(r, slow, step=step, phase=phase, step_s=mean * random.uniform(0.7, 1.6)),
                    coll_seq=sequence - (r == late), flags=USUAL | (F(0) if r == late else F.IN_COLLECTIVE),
                    cpu=random.choice([0.0, 0.5, 1.0]), state=random.choice("RSD"),
                )
                for r in range(ranks)
            }  # fmt: skip
        said = watch.judge.look(newest, now, dict.fromkeys(newest, 0.0), dict.fromkeys(newest, "a"), 0)
        assert said == []
