"""The manifest of one checkpoint and the rule that makes it valid; reads no tensor and needs no torch.

`checkpoint.dir` holds `step-000500/` folders, each with `manifest.json` and `*.safetensors` shards, and
`.zrun/claim-A` files. A folder without a manifest is not a checkpoint. Before step 1 of attempt A, rank 0 creates
claim-A with the step it resumed from; a checkpoint of attempt a at step s is valid only if no claim b > a resumed
from a step < s (it was overtaken: a late writer of a dead attempt made it). One that was seen to hold other bytes than
were written has a mark in `.zrun/damaged/`: nobody counts on it again. In an object store, where nothing is renamed,
the folders are called `step-000500.attempt-2`.
"""

import contextlib
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from zrun.core import storage
from zrun.core.durable import json_bytes
from zrun.core.errors import CheckpointError, StoreError
from zrun.core.place import ObjectPath, Place

MANIFEST: Final = "manifest.json"
CONTROL: Final = ".zrun"
FORMAT: Final = 2
_FOLDER: Final = re.compile(r"step-(\d{6,})")
_PREFIX: Final = re.compile(r"step-(\d{6,})\.attempt-(\d+)(?:\.\d+)?")
"""In an object store; a number at the end where the attempt had saved that step before."""
_DAMAGED: Final = re.compile(r"step-(\d{6,})\.json")
_CLAIM: Final = re.compile(r"claim-(\d+)")
_SEAL: Final = re.compile(r',"seal":"sha256:([0-9a-f]{64})"\}\s*\Z')


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of the checkpoint; `digest` is `algorithm:hex` over the bytes before its first tensor.

    Each tensor has a digest of its own, and nothing else lies in the file: so every byte is digested once.
    """

    path: str
    bytes: int
    digest: str
    rank: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One rank's block of a tensor: where it sits in the tensor and in which file, bytes [start, end)."""

    file: str
    start: int
    end: int
    offsets: list[int]
    shape: list[int]
    digest: str


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One logical tensor, whole: dtype as safetensors names it (F32, BF16, I64, …)."""

    dtype: str
    shape: list[int]
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a checkpoint but its bytes. `values` are the JSON-able leaves of the state."""

    job: str
    name: str
    attempt: int
    step: int
    batch: str | None
    world_size: int
    strategy: str
    saved_at: str
    """RFC 3339 UTC."""
    files: list[ShardFile]
    tensors: dict[str, TensorEntry]
    values: dict[str, Any]
    cursor: dict[str, Any] = field(default_factory=dict)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """What must be equal for a resume: parameter names and shapes digest, job seed, data fingerprint, …"""
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)

    def to_json(self) -> str:
        """The text of manifest.json; its last member, `seal`, is the digest of all text before it."""
        text = json.dumps(asdict(self), separators=(",", ":"))[:-1]
        return f'{text},"seal":"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}}\n'

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Raises CheckpointError for anything that is not a manifest of this format."""
        try:
            value = json.loads(text)
            if value["format"] != FORMAT:
                raise CheckpointError(f"manifest format {value['format']}; this version reads {FORMAT}")
            _check_seal(text)
            known = {f.name: value[f.name] for f in fields(cls) if f.name in value}
            known["files"] = [ShardFile(**f) for f in known["files"]]
            known["tensors"] = {
                name: TensorEntry(t["dtype"], t["shape"], [Chunk(**c) for c in t["chunks"]])
                for name, t in known["tensors"].items()
            }
            return cls(**known)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"not a manifest: {type(error).__name__}: {error}") from error


def _check_seal(text: str) -> None:
    """A learning rate lies in the manifest: a flipped bit there must not load silently either."""
    match = _SEAL.search(text)
    if match is None:
        raise CheckpointError("manifest without a seal: cut short or altered")
    if hashlib.sha256(text[: match.start()].encode()).hexdigest() != match[1]:
        raise CheckpointError("manifest digest mismatch: it is not as it was written")


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint folder as it lies on disk; `state` is complete, partial (no manifest), corrupt or overtaken."""

    path: Place
    step: int
    state: str
    reason: str = ""
    manifest: Manifest | None = None


def folder_name(step: int) -> str:
    """`step-000500`; sorts by step up to 999,999, and readers go by the manifest anyway."""
    return f"step-{step:06d}"


def prefix_of(name: str) -> tuple[int, int] | None:
    """(step, attempt) of a checkpoint's name in an object store, or of what is to become one."""
    match = _PREFIX.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def claims(directory: Place) -> dict[int, int]:
    """attempt -> step it resumed from, as claimed; an unreadable claim counts as from step 0.

    StoreError where the store does not answer: what is not known must not make anything invalid.
    """
    found: dict[int, int] = {}
    folder, store = directory / CONTROL, storage.of(directory)
    for name in store.files(folder):
        match = _CLAIM.fullmatch(name)
        if match:
            try:
                found[int(match[1])] = int(json.loads(store.read(folder / name))["resumed_from"])
            except StoreError:
                raise
            except (OSError, ValueError, KeyError, TypeError):
                found[int(match[1])] = 0
    return found


def overtaken_by(attempt: int, step: int, claimed: dict[int, int]) -> int | None:
    """The attempt that made (attempt, step) invalid, if any."""
    late = [b for b, resumed in claimed.items() if b > attempt and resumed < step]
    return min(late) if late else None


def mark_damaged(folder: Place, manifest: Manifest, reason: str) -> None:
    """Its bytes are not the ones that were written: from now on `scan` calls it corrupt. Raises OSError."""
    made = {"attempt": manifest.attempt, "saved_at": manifest.saved_at}
    storage.of(folder).write(_mark_of(folder, manifest.step), json_bytes({**made, "reason": reason}))


def unmark_damaged(folder: Place, step: int) -> None:
    """It was read again and is whole after all. Raises OSError."""
    storage.of(folder).remove(_mark_of(folder, step))


def _mark_of(folder: Place, step: int) -> Place:
    return folder.parent / CONTROL / "damaged" / f"{folder_name(step)}.json"


def _damaged(directory: Place) -> dict[int, dict[str, Any]]:
    """step -> the mark. One of a checkpoint that was saved again since does not fit the new one."""
    place, store = directory / CONTROL / "damaged", storage.of(directory)
    found: dict[int, dict[str, Any]] = {}
    for name in store.files(place):
        if match := _DAMAGED.fullmatch(name):
            with contextlib.suppress(OSError, ValueError):
                found[int(match[1])] = dict(json.loads(store.read(place / name)))
    return found


def scan(directory: Place) -> list[Found]:
    """All checkpoint folders, newest step first; looks at manifests and sizes, reads no tensor bytes. Raises OSError.

    In an object store one without a manifest is not there at all: see `pruning.unfinished`.
    """
    folders = [(name, _step_in(directory, name)) for name in storage.of(directory).folders(directory)]
    if not folders:
        return []
    claimed, marks = claims(directory), _damaged(directory)
    found = [_inspect(directory / name, step, claimed, marks) for name, step in folders if step is not None]
    if isinstance(directory, ObjectPath):
        found = [one for one in found if one.state != "partial"]
    return sorted(found, key=lambda f: (f.step, f.manifest.attempt if f.manifest else 0), reverse=True)


def _step_in(directory: Place, name: str) -> int | None:
    """The step that the name of a checkpoint's folder tells."""
    match = (_PREFIX if isinstance(directory, ObjectPath) else _FOLDER).fullmatch(name)
    return int(match[1]) if match else None


def newest_step(place: Place, job: str | None = None) -> int | None:
    """As `newest_complete`, but never raises: what cannot be read is not there."""
    try:
        return newest_complete(place, job)
    except OSError:
        return None


def newest_complete(place: Place, job: str | None = None) -> int | None:
    """The step of the newest complete checkpoint in `place` (or of `place` itself), only of `job` if given.

    None: there is none. Raises OSError.
    """
    own = _step_in(place.parent, place.name)
    found = [_inspect(place, own, {}, _damaged(place.parent))] if own is not None else scan(place)
    steps = [f.step for f in found if f.state == "complete" and f.manifest and job in (None, f.manifest.job)]
    return max(steps, default=None)


def read(folder: Place) -> Manifest:
    """Raises OSError (FileNotFoundError: no checkpoint), CheckpointError, UnicodeDecodeError."""
    return Manifest.from_json(storage.of(folder).read(folder / MANIFEST).decode())


def _inspect(folder: Place, step: int, claimed: dict[int, int], marks: dict[int, dict[str, Any]]) -> Found:
    try:
        manifest = read(folder)
    except FileNotFoundError:
        return Found(folder, step, "partial", "; ".join(["no manifest", *_empty_files(folder)]))
    except StoreError:
        raise
    except (OSError, CheckpointError, UnicodeDecodeError) as error:
        return Found(folder, step, "corrupt", str(error))
    sizes = storage.of(folder).files(folder)
    for shard in manifest.files:
        size = sizes.get(shard.path)
        if size is None:
            return Found(folder, step, "corrupt", f"{shard.path} is missing", manifest)
        if size != shard.bytes:
            return Found(folder, step, "corrupt", f"{shard.path} has {size} bytes, not {shard.bytes}", manifest)
    mark = marks.get(manifest.step, {})
    if (mark.get("attempt"), mark.get("saved_at")) == (manifest.attempt, manifest.saved_at):
        return Found(folder, step, "corrupt", str(mark.get("reason")), manifest)
    late = overtaken_by(manifest.attempt, manifest.step, claimed)
    if late is not None:
        return Found(folder, step, "overtaken", f"attempt {late} began from an older step", manifest)
    return Found(folder, manifest.step, "complete", "", manifest)


def _empty_files(folder: Place) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"{name} is empty" for name, size in sorted(storage.of(folder).files(folder).items()) if not size]
    return []
