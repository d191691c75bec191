"""Writes down which installed modules a job has imported by its first step, for the standbys of its next attempt.

Never the user's own files: those are run by each attempt anew. The watcher thread calls it.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

from zrun.core import env
from zrun.worker.rank import ThisRank

_NOT_OURS_TO_LOAD: Final = frozenset({"zrun", "__main__", "sitecustomize", "usercustomize", "antigravity", "this"})


class ImportsTold:
    """A sweeper: once, after the first step of the node's first rank."""

    def __init__(self, rank: ThisRank, path: Path) -> None:
        self._rank = rank
        self._path = path
        self._told = env.get("LOCAL_RANK") != "0"

    def sweep(self, _moved_on: bool) -> None:
        deck = self._rank.deck
        if self._told or deck is None or deck.completed() == 0:
            return
        self._told = True
        try:
            unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(installed()))
            unfinished.chmod(0o600)
            unfinished.replace(self._path)
        except (OSError, RuntimeError):
            pass  # a full disk, or modules changing under the list: standbys then know torch alone


def installed() -> list[str]:
    """Names of the modules of python's own library and of installed packages, in the order they were imported."""
    paths = sysconfig.get_paths()
    places = tuple(str(Path(paths[name]).resolve()) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in _NOT_OURS_TO_LOAD or not isinstance(file, str):
            continue
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == name and os.path.realpath(file).startswith(places):
            found.append(name)
    return found
