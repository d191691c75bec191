"""What people type after --fault, and where a fault comes of which little was said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.errors import UsageError
from zrun.drill.faults import (
    DEFAULT,
    KINDS,
    Fault,
    Placed,
    appointments,
    check_ranks,
    overrides,
    parse,
    parse_all,
    placed,
    renumbered,
)

SERVED = sorted(set(KINDS) - {"cut-off"})
OF_A_RANK = [name for name in SERVED if KINDS[name].of_a_rank]


@given(st.sampled_from(OF_A_RANK), st.none() | st.integers(0, 10**8), st.none() | st.integers(1, 10**8), st.booleans())
def test_every_kind_is_read_with_rank_and_step_in_any_order_or_neither(
    kind: str, rank: int | None, step: int | None, turned: bool
) -> None:
    parts = [f"{name}={value}" for name, value in (("rank", rank), ("step", step)) if value is not None]
    text = kind + (":" + ",".join(parts[::-1] if turned else parts) if parts else "")
    assert parse(text) == Fault(KINDS[kind], rank, step)


@given(st.text(max_size=40))
def test_whatever_is_typed_is_either_understood_or_refused_with_a_way_out(text: str) -> None:
    refused: UsageError | None = None
    try:
        assert parse(text).kind.name in text
    except UsageError as error:
        refused = error
    assert refused is None or (str(refused).startswith(f"--fault {text}: ") and refused.hint)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("kil:rank=1", "there is no fault 'kil'", "did you mean kill?"),
        ("", "there is no fault ''", "there are kill, exit"),
        ("kill:", "'' is not understood", "kill:rank=1,step=20"),
        ("kill:rank", "'rank' is not understood", "kill:rank=1,step=20"),
        ("kill:rank=-1", "'rank=-1' is not understood", "kill:rank=1,step=20"),
        ("kill:rank=1,rank=2", "'rank=2' is not understood", "kill:rank=1,step=20"),
        ("kill:step=0", "steps count from 1", "kill:rank=1,step=20"),
        ("preempt:rank=1", "preempt befalls no single rank", "preempt:step=20"),
        ("cut-off:step=3", "needs several machines", "node-loss"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(text: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert said in str(refused.value)
    assert hint in refused.value.hint


def test_without_a_fault_there_is_a_kill_and_a_raise_and_with_none_there_is_nothing() -> None:
    assert [one.kind.name for one in parse_all([])] == ["kill", "raise"]
    assert parse_all(["none"]) == []
    with pytest.raises(UsageError):
        parse_all(["none", "kill"])


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_what_is_not_said_falls_on_the_last_rank_and_evenly_over_the_steps(ranks: int, steps: int) -> None:
    kill, thrown = placed(DEFAULT, ranks, steps)
    assert (kill.rank, thrown.rank) == (ranks - 1, ranks - 1)
    assert 1 <= kill.step <= thrown.step <= steps
    assert steps < 3 or kill.step == steps // 3


def test_a_rank_or_step_that_the_job_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(UsageError, match="no rank 2") as rank:
        check_ranks([parse("kill:rank=2")], 2)
    assert rank.value.hint == "the job has ranks 0 to 1"
    with pytest.raises(UsageError, match="no step 31") as step:
        placed([parse("kill:step=31")], 2, 30)
    assert "30 steps" in step.value.hint


def test_only_faults_from_within_are_handed_to_ranks_and_in_the_order_of_their_steps() -> None:
    found = renumbered(placed([parse("hang:rank=0,step=9"), parse("preempt:step=5"), parse("kill:step=2")], 2, 10))
    assert [str(one) for one in found] == ["kill rank=1 step=2", "preempt step=5", "hang rank=0 step=9"]
    assert [(one.number, one.kind) for one in appointments(found)] == [(0, "kill"), (2, "hang")]


def test_a_checkpoint_is_read_only_where_memory_does_not_hold_the_state() -> None:
    assert overrides([Placed(0, KINDS["corrupt-checkpoint"], 1, 5)]) == ["checkpoint.memory_every=off"]
    assert overrides([Placed(0, KINDS["kill"], 1, 5)]) == []
