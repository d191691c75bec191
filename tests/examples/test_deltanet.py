"""The chunked delta rule is the recurrence: same outputs, same gradients, for any length and any gate."""

import pytest
import torch
from deltanet import GatedDeltaNet, chunked, recurrent, unit
from torch import Tensor


def inputs(tokens: int, *, dtype: torch.dtype = torch.double, seed: int = 0) -> list[Tensor]:
    own = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, tokens, 8, generator=own, dtype=dtype) for _ in range(3))
    log_alpha = -3 * torch.rand(2, 3, tokens, generator=own, dtype=dtype)
    beta = torch.rand(2, 3, tokens, generator=own, dtype=dtype)
    return [one.requires_grad_() for one in (q, k, v, log_alpha, beta)]


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 31, 40])
def test_chunked_equals_the_recurrence_forward_and_backward(tokens: int) -> None:
    q, k, v, log_alpha, beta = given = inputs(tokens)
    slow = recurrent(unit(q), unit(k), v, log_alpha, beta)
    fast = chunked(unit(q), unit(k), v, log_alpha, beta, chunk=8)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(slow)
    torch.testing.assert_close(
        torch.autograd.grad((fast * weight).sum(), given),
        torch.autograd.grad((slow * weight).sum(), given),
        rtol=1e-9,
        atol=1e-11,
    )


def test_a_token_changes_nothing_before_it() -> None:
    q, k, v, log_alpha, beta = inputs(24)
    before = chunked(q, unit(k), v, log_alpha, beta, chunk=8)
    changed = v.detach().clone()
    changed[:, :, 13] += 1
    after = chunked(q, unit(k), changed, log_alpha, beta, chunk=8)
    assert torch.equal(before[:, :, :13], after[:, :, :13])
    assert not torch.equal(before[:, :, 13:], after[:, :, 13:])


def test_total_forgetting_does_not_overflow() -> None:
    q, k, v, log_alpha, beta = inputs(40, dtype=torch.float)
    forgotten = torch.full_like(log_alpha, -90.0).requires_grad_()
    out = chunked(q, unit(k), v, forgotten, beta)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert out.isfinite().all()
    assert forgotten.grad is not None
    assert forgotten.grad.isfinite().all()


def test_equal_keys_and_full_correction_stay_accurate_in_single_precision() -> None:
    """The worst case for the triangular system: every entry below the diagonal is 1."""
    q, k, v, log_alpha, beta = (one.detach() for one in inputs(64))
    k = k[:, :, :1].expand_as(k)
    gates = torch.zeros_like(log_alpha), torch.ones_like(beta)
    exact = recurrent(unit(q), unit(k), v, *gates)
    single = chunked(unit(q).float(), unit(k).float(), v.float(), gates[0].float(), gates[1].float())
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-4)


def test_the_last_write_of_a_key_is_what_is_read() -> None:
    """With beta 1 and no forgetting the state is a dictionary: reading a key gives its newest value."""
    k = torch.eye(4)[None, None]
    keys = torch.cat([k, k[:, :, :1], k[:, :, 2:3]], dim=2)
    values = torch.arange(6.0)[None, None, :, None].expand(1, 1, 6, 2)
    ones = torch.ones(1, 1, 6)
    read = chunked(keys, keys, values, torch.zeros_like(ones), ones, chunk=4)
    torch.testing.assert_close(read, values.contiguous())
    last = chunked(k[:, :, :1].expand(1, 1, 6, 4), keys, values, torch.zeros_like(ones), ones, chunk=4)
    assert last[0, 0, :, 0].tolist() == pytest.approx([0, 0, 0, 0, 4, 4])


def test_the_layer_is_causal_and_every_parameter_learns() -> None:
    torch.manual_seed(0)
    layer = GatedDeltaNet(hidden=16, heads=2)
    x = torch.randn(2, 40, 16)
    out = layer(x)
    assert out.shape == x.shape
    out.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    later = x.clone()
    later[:, 20:] += 1
    torch.testing.assert_close(layer(later)[:, :20], out[:, :20])
