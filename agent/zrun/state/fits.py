"""Does a checkpoint fit this job? Compares names, shapes, kinds and the fingerprint; says each difference by key.

Pure: knows manifests and layouts, no tensors and no files.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zrun.core.manifest import Manifest

_NOT_PARTS: Final = ("progress",)
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """What a script handed over. `tensors`: name -> [dtype, *shape] of parameters and buffers; `stateful`: name ->
    class of schedulers, scalers and extras.
    """

    models: list[str]
    stateful: dict[str, str]
    tensors: dict[str, list[Any]]
    optimizers: dict[str, str]
    groups: dict[str, list[list[str]]]


@dataclass(frozen=True, slots=True)
class Difference:
    """`key` is what --allow-changed takes; `skip` names the parts and tensors not loaded if it is allowed."""

    key: str
    text: str
    skip: frozenset[str] = frozenset()


def differences(
    layout: Layout, fingerprint: Mapping[str, Any], manifest: Manifest, allowed: Collection[str] = ()
) -> list[Difference]:
    """Everything in which the checkpoint is of another model or job; the world size and strategy are not."""
    found = _parts(layout, manifest)
    found += _tensors(layout, manifest)
    found += _kinds(layout.stateful, manifest)
    for name, kind in layout.optimizers.items():
        found += _optimizer(name, kind, layout.groups[name], manifest, names_too="parameters" not in allowed)
    found += _fingerprint(fingerprint, manifest.fingerprint)
    return found


def _saved_parts(manifest: Manifest) -> set[str]:
    return {key for key in manifest.values if "/" not in key and "#" not in key and key not in _NOT_PARTS}


def _parts(layout: Layout, manifest: Manifest) -> list[Difference]:
    here = {*layout.models, *layout.stateful, *layout.optimizers}
    saved = _saved_parts(manifest)
    gone = [
        Difference(name, f"{name} state missing: the checkpoint holds none", frozenset({name}))
        for name in sorted(here - saved)
    ]
    new = [
        Difference(name, f"{name} was saved, but nothing of that name was handed to Session")
        for name in sorted(saved - here)
    ]
    return gone + new


def _tensors(layout: Layout, manifest: Manifest) -> list[Difference]:
    shared = [name for name in layout.models if name in _saved_parts(manifest)]
    saved = {
        name: [entry.dtype, *entry.shape]
        for name, entry in manifest.tensors.items()
        if name.partition("/")[0] in shared and "#" not in name and "._extra_state" not in name
    }
    here = {name: shape for name, shape in layout.tensors.items() if name.partition("/")[0] in shared}
    missing = sorted(here.keys() - saved.keys())
    surplus = sorted(saved.keys() - here.keys())
    changed = sorted(name for name in here.keys() & saved.keys() if here[name] != saved[name])
    if not (missing or surplus or changed):
        return []
    lines = [f"{_bare(name)}: saved {_shape(saved[name])}, now {_shape(here[name])}" for name in changed[:_SHOWN]]
    lines += [f"{_bare(name)}: not in the checkpoint" for name in missing[:_SHOWN]]
    lines += [f"{_bare(name)}: only in the checkpoint" for name in surplus[:_SHOWN]]
    total = len(missing) + len(surplus) + len(changed)
    if total > len(lines):
        lines.append(f"and {total - len(lines)} more")
    return [Difference("parameters", "parameters: " + "; ".join(lines), frozenset(missing + changed))]


def _kinds(stateful: Mapping[str, str], manifest: Manifest) -> list[Difference]:
    """A scheduler takes any other scheduler's state without a word, and then follows neither."""
    saved = {name: manifest.values.get(f"kind/{name}", kind) for name, kind in stateful.items()}
    return [
        Difference(name, f"{name}: saved {saved[name]}, now {kind}", frozenset({name}))
        for name, kind in stateful.items()
        if name in manifest.values and saved[name] != kind
    ]


def _bare(name: str) -> str:
    return name.removeprefix("model/")


def _shape(value: list[Any]) -> str:
    return f"{value[0]}{value[1:]}"


def _optimizer(
    name: str, kind: str, groups: list[list[str]], manifest: Manifest, *, names_too: bool
) -> list[Difference]:
    saved = manifest.values.get(name)
    if saved is None:
        return []
    if saved["kind"] != kind:
        return [Difference(name, f"{name}: saved {saved['kind']}, now {kind}", frozenset({name}))]
    old = [group["names"] for group in saved["groups"]]
    if len(old) != len(groups):
        return [Difference(name, f"{name}: saved {len(old)} parameter groups, now {len(groups)}", frozenset({name}))]
    for index, (before, now) in enumerate(zip(old, groups, strict=True)):
        if names_too and before != now:
            text = f"{name}: parameter group {index} holds other parameters or another order of them"
            return [Difference(name, text, frozenset({name}))]
    return []


def _fingerprint(here: Mapping[str, Any], saved: Mapping[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    for key in sorted(here.keys() & saved.keys()):
        before, now = saved[key], here[key]
        if before == now or (key.startswith("total") and (before is None or now is None)):
            continue
        found.append(Difference(key, f"{key}: saved {before!r}, now {now!r}"))
    return found
