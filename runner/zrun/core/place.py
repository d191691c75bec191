"""Where checkpoints lie: a folder of a file system, or a prefix of an object store. A name, no more: reads nothing.

`Path` and `ObjectPath` have what both can have in common (`/`, name, parent, text), so that most code need not know
which one it holds. What can be done there: zrun.core.storage.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NO_STORES: Final = {
    "memory": "processes share nothing there",
    "http": "nothing can be written there", "https": "nothing can be written there",
    "local": "that is a path: leave the scheme out", "dir": "that is a path: leave the scheme out",
}  # fmt: skip
_KNOWN: Final = "for example s3://bucket/runs/a, gs://bucket/runs/a, or a path of a file system that all nodes share"


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """`s3://bucket/a/b`: scheme `s3`, key `bucket/a/b`. Objects have no folders; a `parent` is the prefix."""

    scheme: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __truediv__(self, part: str) -> "ObjectPath":
        return ObjectPath(self.scheme, f"{self.key}/{part}")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        return ObjectPath(self.scheme, self.key.rpartition("/")[0] or self.key)

    @property
    def bucket(self) -> str:
        return self.key.partition("/")[0]


Place = Path | ObjectPath


def is_url(text: str) -> bool:
    """An object store's; `file://` is a path written in another way."""
    found = _URL.match(text)
    return found is not None and found[1] != "file"


def place_of(text: str, under: Path | None = None) -> Place:
    """A URL, or a path (below `under` unless absolute). ValueError as `wrong_url` has it."""
    found = _URL.match(text)
    if found is not None and found[1] != "file":
        if reason := wrong_url(text):
            raise ValueError(f"{text}: {reason}")
        return ObjectPath(found[1], re.sub("/+", "/", found[2]).rstrip("/"))
    path = Path(unquote("/" + found[2].lstrip("/"))) if found is not None else Path(text)
    return under / path if under is not None else path


def within(place: Place, directory: Place) -> str:
    """The path of `place` below `directory`, with slashes; ValueError if it is not there."""
    if isinstance(place, Path) and isinstance(directory, Path):
        return str(place.relative_to(directory))
    inside = str(place).removeprefix(f"{directory}/")
    if inside == str(place):
        raise ValueError(f"{place} is not in {directory}")
    return inside


def wrong_url(text: str) -> str:
    """Why no checkpoints can lie there, as far as the text alone tells; nothing for a path."""
    found = _URL.match(text)
    if found is None:
        return ""
    scheme, rest = found[1], found[2]
    if scheme == "file":
        return "" if rest.startswith("/") else f"file:///{rest.lstrip('/')} has three slashes"
    if scheme in _NO_STORES:
        return f"{_NO_STORES[scheme]}; {_KNOWN}"
    bucket = rest.partition("/")[0]
    if "@" in bucket and ":" in bucket:
        return "a URL is no place for credentials: it is kept and shown; take an environment variable or `secrets`"
    if not _BUCKET.fullmatch(bucket.rpartition("@")[2]):
        return f"there is no bucket in it; {_KNOWN}"
    if any(letter in rest for letter in "*?[]\n#"):
        return "a prefix has no wildcards, `?` or `#`"
    if any(part in {".", ".."} for part in rest.split("/")):
        return "object stores know no `.` and `..`"
    return ""
