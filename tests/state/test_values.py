"""State that is not a tensor comes back exactly, or is refused by the name of its key."""

import collections
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.errors import CheckpointError
from zrun.state.values import decode, encode


def no_tensor(name: str) -> torch.Tensor:
    raise AssertionError(name)


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "x"), allow_nan=False)), no_tensor)


def same(a: Any, b: Any) -> bool:
    """Equal in value, type and, for floats, in every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers() | st.booleans()
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=20,
)


@given(value=nested)
def test_every_value_comes_back_with_its_type_and_bits(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        collections.deque([1, 2.5], maxlen=4),
        collections.Counter({3: 2, 7: 1}),
        {1, 2, 3},
        frozenset({"a"}),
        torch.Size([2, 3]),
        torch.bfloat16,
        {"~tuple": [1]},
        3 - 2j,
    ],
    ids=repr,
)
def test_the_odd_kinds_that_schedulers_hold_come_back(value: Any) -> None:
    back = through_json(value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, collections.deque):
        assert back.maxlen == value.maxlen


def test_tensors_are_set_apart_by_name() -> None:
    held: dict[str, torch.Tensor] = {}
    text = encode({"a": [torch.ones(2), {"b": torch.zeros(1)}], "n": 1}, "part", held)
    assert sorted(held) == ["part/a/0", "part/a/1/b"]
    back = decode(json.loads(json.dumps(text)), held.__getitem__)
    assert back["a"][0] is held["part/a/0"]
    assert back["n"] == 1


@pytest.mark.parametrize("value", [object(), lambda: 0, open, type("Mine", (dict,), {})(a=1)])
def test_what_would_need_pickle_is_refused_with_its_key(value: Any) -> None:
    with pytest.raises(CheckpointError, match="scheduler/inner/1"):
        encode({"inner": [0, value]}, "scheduler")


def test_a_tag_of_a_newer_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match="newer version"):
        decode({"~matrix": []}, no_tensor)
