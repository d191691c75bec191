"""A program: builds a user's model on the meta device and tells its size, its wrap units and what a forward keeps.

The forward runs on fake tensors: they hold no bytes either, but ops choose their form as on a real device.

Runs in the job's own python, so it needs torch alone and imports nothing of zrun. `probe.py MODEL LOSS OUT`; LOSS may
be empty. The answer is one JSON value in the file OUT: whatever the user's code prints goes elsewhere.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode


def named(reference: str) -> Callable[..., Any]:
    """MODULE:CALLABLE -> the callable."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    made: Callable[..., Any] = found
    return made


def lists(model: nn.Module, *, outermost: bool) -> list[nn.ModuleList]:
    """The ModuleLists with nothing but their own kind outside (super-blocks), or none inside (layers)."""
    every = [
        part for part in model.modules() if isinstance(part, nn.ModuleList) and any(True for _ in part.parameters())
    ]
    inside = {
        id(part) for one in every for part in one.modules() if part is not one and isinstance(part, nn.ModuleList)
    }
    if outermost:
        return [one for one in every if id(one) not in inside]
    return [one for one in every if not any(id(part) in inside for part in one.modules() if part is not one)]


def units(model: nn.Module, *, outermost: bool) -> list[nn.Module]:
    """What is wrapped one by one, in the order of the model."""
    return [child for one in lists(model, outermost=outermost) for child in one.children()]


def sizes(parts: list[nn.Module]) -> list[list[int]]:
    """[parameters, learning ones] of each; a tied one counts where it stands first."""
    seen: set[int] = set()
    found = []
    for part in parts:
        fresh = [one for one in part.parameters() if id(one) not in seen]
        seen |= {id(one) for one in fresh}
        found.append([sum(one.numel() for one in fresh), sum(one.numel() for one in fresh if one.requires_grad)])
    return found


def kept(model: nn.Module, loss: Callable[..., Tensor], micro_batch: int) -> int:
    """Bytes a forward keeps for its backward, beside parameters and buffers; each storage once."""
    own = {storage(one) for one in tensors(model)}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        held.setdefault(storage(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(model, micro_batch)
    return sum(one.untyped_storage().nbytes() for address, one in held.items() if address not in own)


def storage(tensor: Tensor) -> int:
    """Tensors without bytes have no address; what torch itself tells their storages apart by is this."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the public id does not exist for them


def tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def probed(model_reference: str, loss_reference: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = made(model_reference)
    wraps = {"superblock": sizes(units(model, outermost=True)), "layer": sizes(units(model, outermost=False))}
    found: dict[str, Any] = {"whole": sizes([model])[0], "wraps": {name: one for name, one in wraps.items() if one}}
    if loss_reference:
        loss = named(loss_reference)
        with FakeTensorMode():
            model = made(model_reference)
            one, two = kept(model, loss, 1), kept(model, loss, 2)
        found["activations"] = {"per_sample": two - one, "fixed": max(0, 2 * one - two)}
    return found


def made(reference: str) -> nn.Module:
    model = named(reference)()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{reference} returned {type(model).__name__}, not a torch.nn.Module")
    return model


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    Path(sys.argv[3]).write_text(json.dumps(probed(sys.argv[1], sys.argv[2])))
