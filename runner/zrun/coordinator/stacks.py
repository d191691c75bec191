"""Reading evidence that agents put into a run's folder: stacks, grouped by equal stack.

Names come from listing the folders, never from a request; what is not a plain file is passed over.
"""

import re
from pathlib import Path
from typing import Any, Final

from zrun.core.runfolder import RunFolder

LARGEST_TEXT: Final = 256 << 10
_RANK: Final = re.compile(r"rank-(\d+)(\.[a-z-]+)*")
_TAKEN: Final = re.compile(r"\d{8}-\d{6}-\d{3}")
_ADDRESS: Final = re.compile(r"0x[0-9a-f]{4,}")


def folder_of(folder: RunFolder) -> Path:
    return folder.root / "stacks"


def newest(folder: RunFolder) -> dict[str, Any] | None:
    """The newest set that holds a file; None if there is none."""
    place = folder_of(folder)
    names = sorted((e.name for e in place.iterdir() if _TAKEN.fullmatch(e.name)), reverse=True) if _is(place) else []
    for name in names:
        by_rank = read(place / name / "stacks") or read(place / name)
        if by_rank:
            return {"taken": name, "ranks": by_rank, "groups": groups(by_rank)}
    return None


def evidence(incident: Path) -> dict[str, Any]:
    """The stacks of all ranks at the time of the incident."""
    by_rank = read(incident / "stacks")
    return {"stacks": by_rank, "stack_groups": groups(by_rank)}


def read(place: Path) -> dict[str, str]:
    """Rank -> text, for every `rank-R…` file, several of one rank one after the other."""
    found: dict[int, str] = {}
    if not _is(place):
        return {}
    for entry in sorted(place.iterdir()):
        match = _RANK.fullmatch(entry.name)
        text = text_of(entry) if match else None
        if match and text:
            rank = int(match[1])
            found[rank] = f"{found[rank]}\n{text}" if rank in found else text
    return {str(rank): found[rank] for rank in sorted(found)}


def groups(by_rank: dict[str, str]) -> list[dict[str, Any]]:
    """[{ranks, stack}], the largest group first; addresses and thread ids do not tell stacks apart."""
    same: dict[str, list[int]] = {}
    for rank, text in by_rank.items():
        same.setdefault(_ADDRESS.sub("0x…", text), []).append(int(rank))
    ordered = sorted(same.items(), key=lambda item: (-len(item[1]), item[1]))
    return [{"ranks": ranks, "stack": stack} for stack, ranks in ordered]


def _is(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def text_of(path: Path) -> str | None:
    """A plain file's text, None if there is none."""
    try:
        if path.is_symlink() or not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(LARGEST_TEXT).decode("utf-8", "replace")
    except OSError:
        return None  # it went away, or may not be read: shown as absent
