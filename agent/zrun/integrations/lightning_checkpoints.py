"""Checkpoints as Lightning's Trainer writes them: where they are, which there are, what one that nobody sealed lacks,
and which of its DataLoaders cannot be put back to their place. Unpickles nothing.
"""

import re
import zipfile
from pathlib import Path
from typing import Any, Final

from torch.utils.data import IterableDataset

from zrun.core import seal
from zrun.core.errors import CheckpointError
from zrun.integrations.choice import Candidate

_STEP: Final = re.compile(r"step=(\d+)")
_VERSION: Final = re.compile(r"version_\d+")


def own_name(step: int) -> str:
    """Of one that zrun was asked for."""
    return f"zrun-step={step}.ckpt"


def places(trainer: Any) -> list[Path]:
    """The folders of its ModelCheckpoints; with Lightning's default names those of earlier versions, too."""
    there: list[Path] = []
    for callback in trainer.checkpoint_callbacks:
        given = getattr(callback, "dirpath", None)
        if given is None or "://" in str(given):
            continue
        folder = Path(given).absolute()
        there.append(folder)
        if _VERSION.fullmatch(folder.parent.name):
            there += sorted(folder.parent.parent.glob(f"version_*/{folder.name}"))
    return list(dict.fromkeys(there))


def found(folders: list[Path]) -> list[Candidate]:
    """Newest first, by step; links are found where they lead."""
    there = [single(entry) for folder in folders for entry in _in(folder)]
    return sorted(there, key=lambda candidate: (candidate.step, candidate.path.name), reverse=True)


def _in(folder: Path) -> list[Path]:
    try:
        return [entry for entry in sorted(folder.glob("*.ckpt")) if not entry.is_symlink()]
    except OSError:
        return []


def single(path: Path) -> Candidate:
    """The step stands in the seal, else in the name Lightning gives; -1 where it stands nowhere."""
    try:
        held = seal.read(path)
    except (OSError, CheckpointError):
        held = None
    match = _STEP.search(path.name)
    return Candidate(path, held.step if held is not None else int(match[1]) if match else -1)


def lacking(path: Path) -> str | None:
    """Of one without a seal."""
    if not path.exists():
        return "it is not there"
    if path.is_dir():
        whole = (path / ".metadata").exists() or (path / "meta.pt").exists()
        return None if whole else "its metadata is missing: a save that was cut short"
    return None if zipfile.is_zipfile(path) else "it is cut short"


def is_stateful(loader: Any) -> bool:
    """Lightning itself puts it back."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def begin_order(loaders: list[Any], epoch: int) -> None:
    """Samplers that shuffle by epoch."""
    for loader in loaders:
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)


def obstacles(loaders: list[Any], done: int) -> list[str]:
    """Why the data will not go on where it was, `done` batches into an epoch."""
    told: list[str] = []
    for loader in loaders:
        if is_stateful(loader) or not done:
            continue
        if not hasattr(loader, "_index_sampler"):
            told.append(
                f"{type(loader).__name__} begins its epoch anew, for it has no state_dict() and load_state_dict()"
            )
        elif isinstance(loader.dataset, IterableDataset):
            told.append("an iterable dataset begins its epoch anew: read it by a loader with state_dict()")
        elif len(loader) < done:
            told.append("a loader that came to its end within the epoch begins it anew: give all of them one length")
    return told
