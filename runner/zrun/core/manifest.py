"""The manifest of one checkpoint and the rule that makes it valid; reads no tensor and needs no torch.

`checkpoint.dir` holds `step-000500/` folders, each with `manifest.json` and `*.safetensors` shards, and
`.zrun/claim-A` files. A folder without a manifest is not a checkpoint. Before step 1 of attempt A, rank 0 creates
claim-A with the step it resumed from; a checkpoint of attempt a at step s is valid only if no claim b > a resumed
from a step < s (it was overtaken: a late writer of a dead attempt made it). One that was seen to hold other bytes than
were written has a mark in `.zrun/damaged/`: nobody counts on it again.
"""

import contextlib
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from zrun.core.durable import write_json
from zrun.core.errors import CheckpointError
from zrun.core.private import make_folder

MANIFEST: Final = "manifest.json"
CONTROL: Final = ".zrun"
FORMAT: Final = 2
_FOLDER: Final = re.compile(r"step-(\d{6,})")
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

    path: Path
    step: int
    state: str
    reason: str = ""
    manifest: Manifest | None = None


def folder_name(step: int) -> str:
    """`step-000500`; sorts by step up to 999,999, and readers go by the manifest anyway."""
    return f"step-{step:06d}"


def claims(directory: Path) -> dict[int, int]:
    """attempt -> step it resumed from, as claimed; an unreadable claim counts as from step 0."""
    found: dict[int, int] = {}
    folder = directory / CONTROL
    if not folder.is_dir():
        return found
    for entry in folder.iterdir():
        match = _CLAIM.fullmatch(entry.name)
        if match:
            try:
                found[int(match[1])] = int(json.loads(entry.read_text())["resumed_from"])
            except (OSError, ValueError, KeyError, TypeError):
                found[int(match[1])] = 0
    return found


def overtaken_by(attempt: int, step: int, claimed: dict[int, int]) -> int | None:
    """The attempt that made (attempt, step) invalid, if any."""
    late = [b for b, resumed in claimed.items() if b > attempt and resumed < step]
    return min(late) if late else None


def mark_damaged(folder: Path, manifest: Manifest, reason: str) -> None:
    """Its bytes are not the ones that were written: from now on `scan` calls it corrupt. Raises OSError."""
    place = folder.parent / CONTROL / "damaged"
    make_folder(place)
    made = {"attempt": manifest.attempt, "saved_at": manifest.saved_at}
    write_json(place / f"{folder_name(manifest.step)}.json", {**made, "reason": reason})


def unmark_damaged(folder: Path, step: int) -> None:
    """It was read again and is whole after all. Raises OSError."""
    (folder.parent / CONTROL / "damaged" / f"{folder_name(step)}.json").unlink(missing_ok=True)


def _damaged(directory: Path) -> dict[int, dict[str, Any]]:
    """step -> the mark. One of a checkpoint that was saved again since does not fit the new one."""
    place = directory / CONTROL / "damaged"
    found: dict[int, dict[str, Any]] = {}
    for entry in place.iterdir() if place.is_dir() else ():
        if match := _DAMAGED.fullmatch(entry.name):
            with contextlib.suppress(OSError, ValueError):
                found[int(match[1])] = dict(json.loads(entry.read_text()))
    return found


def scan(directory: Path) -> list[Found]:
    """All checkpoint folders, newest step first; looks at manifests and sizes, reads no tensor bytes."""
    if not directory.is_dir():
        return []
    claimed, marks = claims(directory), _damaged(directory)
    found: list[Found] = []
    for entry in directory.iterdir():
        match = _FOLDER.fullmatch(entry.name)
        if match and entry.is_dir():
            found.append(_inspect(entry, int(match[1]), claimed, marks))
    return sorted(found, key=lambda f: (f.step, f.manifest.attempt if f.manifest else 0), reverse=True)


def newest_step(place: Path, job: str | None = None) -> int | None:
    """Of the newest complete checkpoint in `place` (or of `place` itself), only of `job` if given. None: there is none.

    Never raises: what cannot be read is not there.
    """
    try:
        match = _FOLDER.fullmatch(place.name)
        found = [_inspect(place, int(match[1]), {}, _damaged(place.parent))] if match else scan(place)
    except OSError:
        return None
    steps = [f.step for f in found if f.state == "complete" and f.manifest and job in (None, f.manifest.job)]
    return max(steps, default=None)


def _inspect(folder: Path, step: int, claimed: dict[int, int], marks: dict[int, dict[str, Any]]) -> Found:
    try:
        manifest = Manifest.from_json((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return Found(folder, step, "partial", "; ".join(["no manifest", *_empty_files(folder)]))
    except (OSError, CheckpointError, UnicodeDecodeError) as error:
        return Found(folder, step, "corrupt", str(error))
    for shard in manifest.files:
        try:
            size = (folder / shard.path).stat().st_size
        except OSError:
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


def _empty_files(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"{f.name} is empty" for f in sorted(folder.iterdir()) if f.is_file() and not f.stat().st_size]
    return []
