"""What the probe reads off a module: tied parameters once, frozen ones apart, layers and super-blocks in order."""

import torch
from torch import Tensor, nn

from zrun.plan.probe import kept, sizes, units
from zrun.plan.trial import by_size, candidates


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.Linear(width, width, bias=False)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width), Layer(width)])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block(4), Block(4), Block(4)])
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.empty = nn.ModuleList()


def test_tied_parameters_count_once_and_frozen_ones_do_not_learn() -> None:
    net = Net()
    net.embedding.weight.requires_grad_(False)
    assert sizes([net]) == [[40 + 6 * 16, 6 * 16]]
    assert sizes([net.embedding, net.head]) == [[40, 0], [0, 0]]


def test_layers_are_in_the_innermost_lists_and_super_blocks_in_the_outermost() -> None:
    net = Net()
    assert units(net, outermost=True) == list(net.blocks)
    assert units(net, outermost=False) == [
        layer for block in net.blocks for layer in block.get_submodule("layers").children()
    ]
    assert units(nn.Linear(2, 2), outermost=False) == []


def test_auto_wraps_what_is_a_sixteenth_of_the_model_and_equal_ways_are_tried_once() -> None:
    net = Net()
    assert by_size(net)[:3] == ["embedding", "blocks.0.layers.0.experts", "blocks.0.layers.1.experts"]
    assert list(candidates(net)) == ["layer", "superblock", "auto"]
    plain = nn.Module()
    plain.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    assert candidates(plain) == {"layer": ["layers.0", "layers.1"]}


def test_what_a_forward_keeps_is_counted_once_and_without_parameters() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def loss(module: nn.Module, count: int) -> Tensor:
        made: Tensor = module(torch.zeros(count, 8, requires_grad=True)).sum()
        return made

    assert kept(net, loss, 3) == 2 * 3 * 8 * 4  # the inputs of both layers
