"""Steps of scripts without Session, counted by their optimizers; real ones, on a real deck."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from zrun.core.deck import Phase, create_deck, deck_path
from zrun.core.deck_reader import DeckReader
from zrun.core.deck_writer import DeckWriter
from zrun.core.settings import RankSettings
from zrun.worker import step_count
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import AFTER_TRAINING, StepCount


class Rank:
    """A rank whose hooks are in place, and its deck as the agent reads it."""

    def __init__(self, folder: Path) -> None:
        create_deck(deck_path(folder, 0), 0, 1, 0.0)
        self.rank = ThisRank(0, 1, 1, RankSettings(), deck=DeckWriter(deck_path(folder, 0)))
        self.rank.enter_phase(Phase.SETUP)
        self._reader = DeckReader(deck_path(folder, 0))
        self.count: StepCount = step_count.install(self.rank)

    def read(self) -> Any:
        return self._reader.read()

    @property
    def done(self) -> int:
        return int(self.read().completed)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    hooks: tuple[Any, ...] = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    before = [dict(found) for found in hooks]
    yield Rank(tmp_path)
    for found, kept in zip(hooks, before, strict=True):
        found.clear()
        found.update(kept)


def sgd(**options: Any) -> Any:
    layer = nn.Linear(4, 1)
    layer(torch.rand(2, 4)).sum().backward()
    return torch.optim.SGD(layer.parameters(), lr=0.1, **options)


def test_an_optimizers_steps_are_the_steps_and_the_first_one_ends_the_set_up(rank: Rank) -> None:
    one = sgd()
    assert rank.read().phase is Phase.SETUP
    for done in range(1, 4):
        one.step()
        assert (rank.done, rank.read().step, rank.read().phase) == (done, done + 1, Phase.STEP)


def test_of_two_optimizers_the_one_that_steps_more_often_counts(rank: Rank) -> None:
    critic, generator = sgd(), sgd()
    for _ in range(4):
        for _ in range(5):
            critic.step()
        generator.step()
    assert rank.done == 20


def test_two_optimizers_a_step_are_one_step(rank: Rank) -> None:
    one, two = sgd(), sgd()
    for _ in range(6):
        one.step()
        two.step()
    assert rank.done == 6


def test_a_hundred_optimizers_of_one_parameter_each_are_one_step(rank: Rank) -> None:
    many = [sgd() for _ in range(100)]
    for _ in range(3):
        for one in many:
            one.step()
    assert rank.done == 3


def test_an_optimizer_made_anew_goes_on_counting_where_the_old_one_was(rank: Rank) -> None:
    for _ in range(3):
        one = sgd()
        one.step()
        one.step()
        del one
    assert rank.done == 6


def test_an_optimizer_within_an_optimizer_is_one_step(rank: Rank) -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self) -> None:
            self.inner = sgd()
            super().__init__(self.inner.param_groups[0]["params"], {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()
            self.inner.step()

    outer = Outer()
    for _ in range(4):
        outer.step()
    assert rank.done == 4


def test_a_step_that_raised_is_none_and_the_next_one_counts(rank: Rank) -> None:
    class Fussy(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if self.fails:
                raise RuntimeError("out of memory")

    fussy = Fussy(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="out of memory"):
        fussy.step()
    assert rank.done == 0
    fussy.fails = False
    fussy.step()
    assert rank.done == 1
    fussy.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        fussy.step()
    del fussy
    sgd().step()
    assert rank.done == 2, "the one that never ended is gone"


def test_lbfgs_evaluates_its_closure_many_times_in_one_step(rank: Rank) -> None:
    layer, data = nn.Linear(4, 1), torch.rand(8, 4)
    lbfgs = torch.optim.LBFGS(layer.parameters(), max_iter=5)

    def closure() -> float:
        lbfgs.zero_grad()
        loss = layer(data).square().mean()
        loss.backward()
        return float(loss.detach())

    for _ in range(2):
        lbfgs.step(closure)  # type: ignore[no-untyped-call]
    assert rank.done == 2


def test_an_optimizer_that_cannot_be_remembered_costs_a_warning_and_no_step_of_the_script(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd(torch.optim.SGD):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    odd = Odd(nn.Linear(1, 1).parameters(), lr=0.1)
    for _ in range(3):
        odd.step()
    assert capsys.readouterr().err.count("steps of Odd are not seen") == 1


def test_what_a_framework_tells_is_the_step_also_after_a_resume_and_optimizers_only_show_progress(rank: Rank) -> None:
    rank.count.training(10, 30)
    assert (rank.read().phase, rank.read().total_steps) == (Phase.FIRST_STEP, 30)
    rank.count.begun(11)
    assert rank.read().step == 11
    before = rank.read().progress
    one = sgd()
    for _ in range(4):
        one.step()  # four updates within one step of the framework
    assert (rank.done, rank.read().progress - before) == (0, 4)
    rank.count.completed(11)
    assert (rank.done, rank.read().phase) == (11, Phase.STEP)
    rank.count.trained()
    assert (rank.read().phase, rank.read().phase_name) == (Phase.OWN, AFTER_TRAINING)


def test_a_second_training_in_one_script_goes_on_counting(rank: Rank) -> None:
    for _ in range(2):
        rank.count.training(0, 5)
        for step in range(1, 6):
            rank.count.begun(step)
            rank.count.completed(step)
        rank.count.trained()
    assert (rank.done, rank.read().total_steps) == (10, 10)
    sgd().step()
    assert (rank.done, rank.read().phase) == (11, Phase.STEP), "then a loop of the script's own"


def test_nothing_is_counted_where_a_session_counts(rank: Rank) -> None:
    rank.rank.session = True
    sgd().step()
    rank.count.training(0, 5)
    rank.count.begun(1)
    rank.count.completed(1)
    assert (rank.done, rank.read().step, rank.read().phase) == (0, 0, Phase.SETUP)
