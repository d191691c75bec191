"""The convolutional example: pictures follow from their index, and the network has the buffers it is there for."""

import torch
from convnet import CLASSES, Gratings, Net


def test_a_picture_follows_from_its_index() -> None:
    pictures = Gratings(64, train=False)
    first, label = pictures[5]
    again, same = pictures[5]
    assert torch.equal(first, again)
    assert label == same
    assert first.shape == (3, 16, 16)
    assert {pictures[index][1] for index in range(64)} == set(range(CLASSES))


def test_training_pictures_vary_with_the_seed_of_the_sample() -> None:
    pictures = Gratings(8)
    torch.manual_seed(0)
    first = pictures[3][0]
    torch.manual_seed(0)
    assert torch.equal(pictures[3][0], first)
    assert not torch.equal(pictures[3][0], first)


def test_a_forward_pass_moves_the_running_means() -> None:
    torch.manual_seed(0)
    net = Net(width=4, dropout=0.1)
    before = {name: value.clone() for name, value in net.named_buffers()}
    assert net(torch.randn(4, 3, 16, 16)).shape == (4, CLASSES)
    assert all(not torch.equal(value, before[name]) for name, value in net.named_buffers())


def test_every_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    net = Net(width=4, dropout=0.0)
    net(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in net.parameters())
