"""A stage for each test: folders and decks as the agent makes them, swept at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.stage import Stage


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(ranks: int = 1, **options: Any) -> Stage:
        made.append(Stage(tmp_path, ranks, **options))
        return made[-1]

    yield make
    for stage in made:
        stage.end()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage()


@pytest.fixture
def bare(make_stage: Callable[..., Stage]) -> Stage:
    """For what has nothing to do with torch."""
    return make_stage(torch=False)
