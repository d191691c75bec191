"""The language model of the example: shapes, causality, gradients, tied weights; and the text it learns from."""

import math
from itertools import pairwise

import pytest
import torch
from data import END, Packed, Windows, reference, unigram_entropy
from deltanet import GatedDeltaNet
from model import GatedAttention, HybridLM, Layer, Shape, loss_of, rotated

TINY = Shape(layers=4, hidden=32, heads=2, dropout=0.0)


def made(shape: Shape = TINY) -> HybridLM:
    torch.manual_seed(0)
    return HybridLM(shape)


def test_super_blocks_hold_three_delta_layers_and_one_of_attention() -> None:
    model = made(Shape(layers=8, hidden=32, heads=2))
    kinds = [type(part.mixer) for part in model.modules() if isinstance(part, Layer)]
    assert kinds == [GatedDeltaNet, GatedDeltaNet, GatedDeltaNet, GatedAttention] * 2


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(3, 32, 2), (0, 32, 2), (4, 30, 4), (4, 6, 2)])
def test_an_impossible_shape_is_refused_in_words(layers: int, hidden: int, heads: int) -> None:
    with pytest.raises(SystemExit, match="--"):
        Shape(layers, hidden, heads)


def test_logits_have_the_shape_of_the_tokens() -> None:
    assert made()(torch.zeros(3, 17, dtype=torch.long)).shape == (3, 17, 256)


def test_a_byte_changes_no_logit_before_it() -> None:
    model = made().eval()
    text = torch.randint(256, (2, 48), generator=torch.Generator().manual_seed(1))
    changed = text.clone()
    changed[:, 30] = (changed[:, 30] + 1) % 256
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[:, :30], after[:, :30])
    assert (before[:, 30:] - after[:, 30:]).abs().amax() > 1e-4


def test_every_parameter_gets_a_gradient() -> None:
    model = made()
    loss_of(model, torch.randint(256, (2, 41))).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_the_embedding_is_the_output_layer() -> None:
    model = made()
    assert [name for name in model.state_dict() if "embedding" in name or "head" in name] == ["embedding.weight"]


def test_a_new_model_knows_nothing_and_soon_more() -> None:
    model = made()
    text = torch.tensor(list(b"to be, or not to be: that is the question " * 4))[None, :129]
    first = loss_of(model, text).item()
    assert first == pytest.approx(math.log(256), rel=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(25):
        optimizer.zero_grad()
        loss_of(model, text).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss_of(model, text).item() < first / 2


def test_dropout_draws_from_torch_and_only_in_training() -> None:
    model = made(Shape(layers=4, hidden=32, heads=2, dropout=0.5))
    text = torch.zeros(1, 9, dtype=torch.long)
    torch.manual_seed(3)
    first = model(text)
    torch.manual_seed(3)
    assert torch.equal(model(text), first)
    assert not torch.equal(model(text), first)
    model.eval()
    assert torch.equal(model(text), model(text))


def test_rotary_scores_depend_on_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 12, 8)
    scores = rotated(q)[0, 0] @ rotated(k)[0, 0].T
    for distance in range(5):
        line = scores.diagonal(-distance)
        torch.testing.assert_close(line, line[:1].expand_as(line), rtol=1e-4, atol=1e-5)


def test_training_and_held_out_text_are_apart_and_real() -> None:
    documents, held_out = reference()
    train = b"".join(documents)
    assert len(train) > 200_000
    assert len(held_out) > 20_000
    assert b"The" in train
    assert 2.5 < unigram_entropy(train, held_out) < 4.0


def test_windows_tile_the_text_and_name_it() -> None:
    windows = Windows(b"abcdefghij", 3)
    assert len(windows) == 3
    assert [bytes(windows[index].tolist()) for index in range(3)] == [b"abcd", b"defg", b"ghij"]


@pytest.mark.parametrize("lanes", [1, 4])
def test_packed_documents_come_once_an_epoch_and_are_found_again_at_any_place(lanes: int) -> None:
    documents = [bytes([65 + number]) * (number * 7 % 40 + 1) for number in range(20)]
    packed = Packed(documents, 8, lanes)
    for epoch in range(3):
        whole = [bytes(sequence.tolist()) for sequence in packed.stream(epoch, 0)]
        in_order = [sequence for lane in range(lanes) for sequence in whole[lane::lanes]]
        assert all(one[-1:] == following[:1] for one, following in pairwise(in_order))
        together = b"".join(sequence[:8] for sequence in in_order) + in_order[-1][8:]
        assert sum(map(len, packed.documents)) - len(together) in range(8 * lanes)
        begun = together.split(END)[:-1]
        assert all(text in documents for text in begun)
        assert len(set(begun)) == len(begun) >= 16
        for start in range(len(whole) + 2):
            assert [bytes(sequence.tolist()) for sequence in packed.stream(epoch, start)] == whole[start:]
    assert len({bytes(next(packed.stream(epoch, 0)).tolist()) for epoch in range(3)}) > 1


def test_a_stream_of_documents_names_them() -> None:
    assert Packed([b"abc", b"de"], 3).fingerprint() == Packed([b"abc", b"de"], 3).fingerprint()
    assert Packed([b"abc", b"de"], 3).fingerprint() != Packed([b"abc", b"dX"], 3).fingerprint()
    assert Packed([b"abc", b"de"], 3).fingerprint() != Packed([b"abc", b"de"], 2).fingerprint()
