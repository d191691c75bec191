"""What a forward keeps: the published count, and how it grows with tokens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.plan.activations import Shape, attention_layer, deltanet_layer, estimated
from zrun.plan.batch import global_batch
from zrun.plan.compute import Speed, compute_s, step_flops

GPT = Shape(layers=96, hidden=12288, heads=96, sequence=2048, item_bytes=2.0, gated=False, dropout=True, flash=False)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8192))
def test_a_gpt_layer_keeps_34_sbh_and_5_as2b_bytes(heads: int, width: int, sequence: int) -> None:
    shape = replace(GPT, heads=heads, hidden=heads * width, sequence=sequence)
    assert attention_layer(shape) == 34 * shape.hidden + 5 * heads * sequence


@given(st.integers(1, 16))
def test_flash_attention_and_deltanet_grow_with_tokens_and_quadratic_with_their_square(times: int) -> None:
    hybrid = Shape(layers=64, hidden=5120, heads=40, sequence=4096, item_bytes=2.0, deltanet_layers=48)
    longer = replace(hybrid, sequence=4096 * times)
    assert estimated(longer, "none").per_sample == times * estimated(hybrid, "none").per_sample
    assert deltanet_layer(longer) == deltanet_layer(hybrid)
    square = replace(hybrid, flash=False)
    more = replace(square, sequence=4096 * times)
    assert estimated(more, "none").per_sample - estimated(longer, "none").per_sample == pytest.approx(
        times**2 * (estimated(square, "none").per_sample - estimated(hybrid, "none").per_sample), rel=0.01 * times
    )


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer() -> None:
    full = estimated(GPT, "full").per_sample
    assert full == 2048 * (96 * 2 * 12288 + attention_layer(GPT) + 2 * 2 * 12288)
    assert full < estimated(GPT, "none").per_sample / 10


def test_logits_count_in_16_bit_and_twice_in_fp32() -> None:
    with_logits = replace(GPT, vocabulary=50_000)
    assert estimated(with_logits, "none").per_sample - estimated(GPT, "none").per_sample == 2048 * 50_000 * 10


def test_fewer_key_heads_keep_less() -> None:
    assert attention_layer(replace(GPT, kv_heads=8)) == attention_layer(GPT) - 2 * 2 * 88 * 128


def test_a_step_is_six_operations_a_parameter_and_token_and_eight_when_recomputed() -> None:
    assert step_flops(27 * 10**9, 4096, None, "none") == 6 * 27e9 * 4096
    assert step_flops(27 * 10**9, 4096, None, "full") == pytest.approx(8 * 27e9 * 4096)
    assert step_flops(10, 1, GPT, "none") == 60 + 12 * 96 * 96 * 128 * 2048
    assert compute_s(4e14, Speed(1e15, 0.4)) == 1.0
    assert compute_s(1.0, Speed()) is None


def test_the_global_batch_is_ranks_x_micro_batch_x_parts_x_tokens_and_grows_with_workers() -> None:
    found = global_batch(64, 2, 4, 4096)
    assert (found["samples"], found["tokens"]) == (512, 2_097_152)
    others = {one["ranks"]: one for one in found["other_worlds"]}
    assert others[128]["grows_to_samples"] == 1024
    assert others[128]["same_batch_accumulate"] == 2
    assert others[32]["same_batch_accumulate"] == 8
    assert global_batch(64, 2, 1, None)["tokens"] is None


def test_a_batch_that_more_workers_cannot_keep_says_so() -> None:
    others = {one["ranks"]: one for one in global_batch(64, 1, 1, None)["other_worlds"]}
    assert others[128]["same_batch_accumulate"] is None
