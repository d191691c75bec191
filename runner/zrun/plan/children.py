"""Starting the programs of this room that need torch, in a python of their own, and reading what they wrote.

Knows nothing about models or links.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from zrun.core.errors import UsageError, ZrunError

HERE: Final = Path(__file__).parent
WITHIN_S: Final = 900.0
_SHOWN_LINES: Final = 8


def run(command: Sequence[str], workdir: str, env: Mapping[str, str], what: str, hint: str) -> Any:
    """The JSON that `command` + [OUT] wrote to OUT; its own output is shown only where it fails.

    Raises UsageError with its last lines where it ends badly, ZrunError where it does not end.
    """
    with tempfile.TemporaryDirectory(prefix="zrun-plan-") as folder:
        out = Path(folder, "out.json")
        said = Path(folder, "said")
        with said.open("wb") as file:
            child = subprocess.Popen(
                [*command, str(out)], cwd=workdir, env=dict(env), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            code = child.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            raise ZrunError(f"{what} was not done within {WITHIN_S / 60:.0f} minutes", hint) from None
        finally:
            _end(child)
        if code:
            lines = said.read_text(errors="replace").rstrip().splitlines()[-_SHOWN_LINES:]
            raise UsageError(
                "\n".join([f"{what} failed (exit code {code}):", *(f"    {line}" for line in lines)]), hint
            )
        return json.loads(out.read_text())


def torchrun(python: str, ranks: int, program: str, *arguments: str) -> list[str]:
    """The command that starts `program` of this room as `ranks` local ranks, on a port of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        python, "-P", "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks), "--master-addr",
        "127.0.0.1", "--master-port", str(port), "--max-restarts", "0", str(HERE / program), *arguments,
    ]  # fmt: skip


QUIET: Final = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
"""For ranks: their own folder is not on the path, and they share the cores."""


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)  # its session holds nobody but it and its children
    except (ProcessLookupError, PermissionError):
        pass  # all have ended
    child.wait()
