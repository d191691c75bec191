"""The store of an attempt that was started without torchrun: hosted by its first rank until no other needs it.

torchrun's agent hosts it otherwise, and outlives the ranks; so this rank, once its script is over, stays until the
others' processes have ended. Knows nothing about what is kept in the store.
"""

import os
import time
from pathlib import Path
from typing import Any, Final

from zrun.core import env
from zrun.core.deck import deck_path
from zrun.core.deck_reader import DeckReader
from zrun.worker.rank import ThisRank

_LOOK_S: Final = 0.02
_store: list[Any] = []


def host(listener: int) -> None:
    """Listen at a socket that is bound already: no port can be taken meanwhile. Raises RuntimeError of torch's."""
    from torch._C._distributed_c10d import TCPStore

    address, port = env.get("MASTER_ADDR") or "127.0.0.1", int(env.get("MASTER_PORT") or 0)
    _store.append(TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener))


def stay(rank: ThisRank) -> None:
    """Return once the processes of all other ranks have ended; at once in a rank that hosts nothing."""
    folder = env.get(env.SHM_DIR)
    if not _store or not folder:
        return
    others = [deck_path(Path(folder), number) for number in range(rank.world_size) if number != rank.rank]
    while any(_lives(path) for path in others):
        rank.progressed()  # it waits for others, and is not stuck itself
        time.sleep(_LOOK_S)


def _lives(deck: Path) -> bool:
    try:
        reader = DeckReader(deck)
    except (OSError, ValueError):
        return False  # swept already
    try:
        state = reader.read()
    finally:
        reader.close()
    if not state.pid:
        return True  # has not begun yet
    try:
        text = Path(f"/proc/{state.pid}/stat").read_text()
    except OSError:
        return False
    fields = text[text.rfind(")") + 2 :].split()
    return fields[0] not in "ZX" and int(fields[19]) == state.pid_started and os.getpid() != state.pid
