"""The stop-step protocol under every interleaving: all ranks stand at one step, whatever they saw when."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from zrun.agent.stop_step import Place, StopAsk, follow, propose
from zrun.core.deck import StopKind


@dataclass
class FakeRank:
    """A rank's half, as Session does it, in moves as small as its reads and writes."""

    page: list[StopAsk]
    step: int = 0
    acknowledged: int = 0
    stopped: int | None = None
    waiting: bool = False
    seen: StopAsk | None = None
    at_top: bool = field(default=False)

    def move(self) -> None:
        if self.stopped is not None:
            return
        ask = self.page[0] if self.page else None
        if not self.at_top:
            if self.step and ask is not None and ask.step == self.step:
                if ask.confirmed:
                    self.stopped = self.step
                else:
                    self.acknowledged = ask.sequence
                return
            self.step += 1
            self.at_top = True
            return
        if ask is not None and self.step <= ask.step:
            self.acknowledged = ask.sequence
        self.at_top = False


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 5), min_size=10, max_size=200), st.integers(0, 30))
def test_all_ranks_stop_after_the_same_step(count: int, moves: list[int], begin_at: int) -> None:
    pages: list[list[StopAsk]] = [[] for _ in range(count)]
    ranks = [FakeRank(page) for page in pages]
    ask: StopAsk | None = None
    stale: list[Place] = []

    def agent(ask: StopAsk | None) -> StopAsk:
        """Works on a look at the decks that may be some moves old by the time its answer is written."""
        new = propose(stale, StopKind.STOP, 1) if ask is None else follow(ask, stale)
        assert ask is None or not ask.confirmed or new == ask
        for page in pages:
            page[:] = [new]
        return new

    for number, move in enumerate([*moves, *([0, 1, 2, 3, 4, 5] * 400)]):
        if move < count:
            ranks[move].move()
        elif number >= begin_at and move == 4:
            stale = [Place(rank.step, rank.acknowledged) for rank in ranks if rank.stopped is None]
        elif number >= begin_at and move == 5 and stale:
            ask = agent(ask)
            stale = []
        if all(rank.stopped is not None for rank in ranks):
            break
    assert ask is not None
    assert ask.confirmed
    assert {rank.stopped for rank in ranks} == {ask.step}


def test_a_step_that_was_passed_unacknowledged_is_raised_with_a_growing_margin() -> None:
    ask = propose([Place(4, 0), Place(5, 0)], StopKind.SAVE, 7)
    assert (ask.step, ask.sequence) == (6, 7)
    ask = follow(ask, [Place(6, 7), Place(8, 0)])
    assert (ask.step, ask.sequence) == (9, 8)
    ask = follow(ask, [Place(9, 8), Place(12, 0)])
    assert (ask.step, ask.sequence) == (14, 9)
    assert not ask.confirmed
    assert follow(ask, [Place(13, 9), Place(14, 9)]).confirmed


def test_before_the_first_step_the_first_is_asked_for() -> None:
    assert propose([Place(0, 0)], StopKind.STOP, 1).step == 1
