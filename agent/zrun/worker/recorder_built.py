"""recorder.cpp as a library: where it is kept, how it is built (`python -m zrun.worker.recorder_built`), how a rank
takes it in.

One library for each torch, machine and source, in `$XDG_CACHE_HOME/zrun/recorder/`. A rank only ever loads; building
takes a compiler and some fifteen seconds, and is the agent's to start, in the background.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch

from zrun.core import deck, env
from zrun.core.private import make_folder
from zrun.core.standing import BACKGROUND, POINT_TO_POINT
from zrun.worker.operators import OPERATORS
from zrun.worker.rank import ThisRank

_PAIRED: Final = 0x80
"""On an operator's code: it does not count on its group."""
_ABANDONED_S: Final = 3600.0
SOURCE: Final = Path(__file__).with_name("recorder.cpp")
_LAYOUT: Final = (
    deck.SIZE, deck.STEP, deck.WAIT_S, deck.COLL_SEQ, deck.COLL_DONE, deck.COLL_ENTERED_AT, deck.COLL_LEFT_AT,
    deck.COLL_BYTES, deck.COLL_GROUP, deck.COLL_GROUP_SEQ, deck.COLL_OP, deck.RING_AT, deck.RING_SLOTS, deck.SLOT_SIZE,
)  # fmt: skip
"""As `struct Layout` in recorder.cpp."""


def library_path() -> Path:
    """Where the library for this very torch, machine and source is or would be."""
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or tempfile.gettempdir()) / ".cache")
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(_LAYOUT).encode()).hexdigest()[:12]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)  # noqa: SLF001 - the only place where torch tells it
    return Path(cache) / "zrun" / "recorder" / f"{torch.__version__}-{platform.machine()}-abi{abi}-{digest}.so"


def attach(rank: ThisRank) -> bool:
    """Load the library and let it record into the rank's deck. False: there is none, or nothing to record into.

    Raises OSError if it cannot be loaded or map the deck, PermissionError if others could have written it.
    """
    path, where = library_path(), env.get(env.DECK)
    if rank.deck is None or not where or not path.exists():
        return False
    _check_owner(path)
    library = ctypes.CDLL(str(path))
    names = (ctypes.c_char_p * len(OPERATORS))(*(name.encode() for name in OPERATORS))
    codes = (ctypes.c_uint8 * len(OPERATORS))(*map(_code, OPERATORS.values()))
    layout = (ctypes.c_uint64 * len(_LAYOUT))(*_LAYOUT)
    taken = library.zrun_attach(os.fsencode(where), layout, names, codes, len(OPERATORS), BACKGROUND.encode())
    if taken <= 0:
        raise OSError(f"{path.name} took {taken} operators: the deck cannot be mapped, or torch has none of them")
    rank.sweepers.append(lambda moved_on: library.zrun_sweep(int(moved_on)))
    return True


def _code(shown: str) -> int:
    return deck.OP_CODE[shown] | (_PAIRED if shown in POINT_TO_POINT else 0)


def _check_owner(path: Path) -> None:
    """What we load runs as us: nobody else may be able to put it there."""
    for place in (path, path.parent):
        found = place.stat()
        if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
            raise PermissionError(f"{place} may be written by others; remove it and it is made anew")


def build() -> str:
    """Compile the library for this torch; gives back why not, or "". Never raises for a missing compiler."""
    path = library_path()
    compiler = env.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler (g++, c++, clang++) was found"
    home = Path(torch.__file__).parent
    make_folder(path.parent)
    _sweep(path.parent)
    made = path.with_name(f".{os.getpid()}-{path.name}")
    command = [
        compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",  # noqa: SLF001
        f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}", str(SOURCE), "-o", str(made),
        f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home / 'lib'}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
            return f"{compiler} ended with {done.returncode}: {first}"
        made.chmod(0o700)
        made.rename(path)
    except OSError as error:
        return f"{compiler}: {error}"
    finally:
        made.unlink(missing_ok=True)
    return ""


def _sweep(folder: Path) -> None:
    """What builds left that were ended in the middle."""
    for begun in folder.glob(".*.so"):
        if time.time() - begun.stat().st_mtime > _ABANDONED_S:
            begun.unlink(missing_ok=True)


def main() -> int:
    """0: the library is there. Prints its path, or why it is not there."""
    path = library_path()
    why = "" if path.exists() else build()
    print(why or path, file=sys.stderr if why else sys.stdout)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
