"""Python values as JSON that comes back exactly, and never a pickle; tensors inside are set apart by name.

Floats keep their bits (JSON's shortest form round-trips; NaN and infinities are spelled out). Tuples, sets, deques,
Counters and dicts with other keys than strings are tagged; anything else is refused with the name of its key.
"""

import collections
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from zrun.core.errors import CheckpointError

_TAG: Final = "~"
"""A one-key dict whose key starts with this is a tagged value; such a dict of the user's is tagged itself."""


def encode(value: Any, where: str, tensors: dict[str, torch.Tensor] | None = None) -> Any:
    """`value` as plain JSON. Tensors go into `tensors` under `where/...`; without it they are refused."""
    kind = type(value)
    if value is None or kind in {bool, int, str}:
        return value
    if isinstance(value, float) and (kind is float or kind.__module__ == "numpy"):
        number = float(value)
        return number if math.isfinite(number) else {"~float": repr(number)}
    if kind is list:
        return _encode_all(value, where, tensors)
    if isinstance(value, dict):
        return _encode_mapping(value, where, tensors)
    if isinstance(value, torch.Tensor):
        if tensors is None:
            raise CheckpointError(f"{where} is a tensor, which cannot be saved in this place")
        tensors[where] = value
        return {"~tensor": where}
    tagged = _encode_other(value, where, tensors)
    if tagged is None:
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold without pickle",
            hint="keep numbers, strings, lists, dicts or tensors in the state, or give the object a state_dict()",
        )
    return tagged


def _encode_all(values: Iterable[Any], where: str, tensors: dict[str, torch.Tensor] | None) -> list[Any]:
    return [encode(item, f"{where}/{index}", tensors) for index, item in enumerate(values)]


def _encode_mapping(value: dict[Any, Any], where: str, tensors: dict[str, torch.Tensor] | None) -> Any:
    kind = type(value)
    name = {dict: "dict", collections.OrderedDict: "ordered", collections.Counter: "counter"}.get(kind)
    if name is None and kind is not collections.defaultdict:
        raise CheckpointError(f"{where} is a {kind.__module__}.{kind.__qualname__}; only plain dicts can be saved")
    if name == "dict" and all(type(key) is str for key in value) and not _looks_tagged(value):
        return {key: encode(item, f"{where}/{key}", tensors) for key, item in value.items()}
    pairs = [[encode(key, f"{where} (a key)"), encode(item, f"{where}/{key}", tensors)] for key, item in value.items()]
    return {f"~{name or 'dict'}": pairs}


def _looks_tagged(value: Mapping[Any, Any]) -> bool:
    return len(value) == 1 and str(next(iter(value))).startswith(_TAG)


def _encode_other(value: Any, where: str, tensors: dict[str, torch.Tensor] | None) -> Any:
    if type(value) is tuple:
        return {"~tuple": _encode_all(value, where, tensors)}
    if isinstance(value, torch.Size):
        return {"~size": list(value)}
    if isinstance(value, (set, frozenset)):
        items = _encode_all(value, where, None)
        return {"~set" if isinstance(value, set) else "~frozenset": sorted(items, key=repr)}
    if type(value) is collections.deque:
        return {"~deque": [value.maxlen, _encode_all(value, where, tensors)]}
    if type(value) is bytes:
        return {"~bytes": value.hex()}
    if type(value) is complex:
        return {"~complex": [encode(value.real, where), encode(value.imag, where)]}
    if isinstance(value, torch.dtype):
        return {"~dtype": str(value).removeprefix("torch.")}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return encode(value.item(), where, tensors)
    return None


def decode(value: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    """The value that `encode` was given; `tensor(name)` yields the tensors that were set apart."""
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if not _looks_tagged(value):
        return {key: decode(item, tensor) for key, item in value.items()}
    ((tag, held),) = value.items()
    if tag == "~tensor":
        return tensor(held)
    try:
        return _DECODERS[tag](held, tensor)
    except KeyError:
        raise CheckpointError(f"a value of kind {tag!r} was written by a newer version") from None


def _pairs(held: Any, tensor: Callable[[str], torch.Tensor]) -> list[tuple[Any, Any]]:
    return [(decode(key, tensor), decode(item, tensor)) for key, item in held]


_DECODERS: Final[dict[str, Callable[[Any, Callable[[str], torch.Tensor]], Any]]] = {
    "~float": lambda held, _: float(held),
    "~tuple": lambda held, tensor: tuple(decode(item, tensor) for item in held),
    "~size": lambda held, _: torch.Size(held),
    "~set": lambda held, tensor: {decode(item, tensor) for item in held},
    "~frozenset": lambda held, tensor: frozenset(decode(item, tensor) for item in held),
    "~deque": lambda held, tensor: collections.deque(decode(held[1], tensor), held[0]),
    "~bytes": lambda held, _: bytes.fromhex(held),
    "~complex": lambda held, tensor: complex(decode(held[0], tensor), decode(held[1], tensor)),
    "~dtype": lambda held, _: getattr(torch, held),
    "~dict": lambda held, tensor: dict(_pairs(held, tensor)),
    "~ordered": lambda held, tensor: collections.OrderedDict(_pairs(held, tensor)),
    "~counter": lambda held, tensor: collections.Counter(dict(_pairs(held, tensor))),
}
