"""What a node does once for a job, before its first attempt there: look whether it is large enough, run set-up.

Small files beside the attempts say what was done, so that a later agent does not do it again. A job's own checkpoints
fill its disk: looking again before a later attempt would end a job that could go on. Starts nothing.
"""

import contextlib
import hashlib
from pathlib import Path

from zrun.agent import preflight
from zrun.core.durable import write_bytes
from zrun.spec.job import JobSpec, Resources
from zrun.wire.report import Vitals


class Once:
    """One job on one node; `own_dir` is the node's folder in the run."""

    def __init__(self, own_dir: Path) -> None:
        self._own_dir = own_dir
        self._setup_done = own_dir / "setup.done"
        self._resources_done = own_dir / "resources.done"

    def setup_wanted(self, spec: JobSpec) -> bool:
        """There are set-up commands, and these very ones have not succeeded here."""
        if spec.setup is None:
            return False
        try:
            return self._setup_done.read_bytes() != _digest(spec.setup)
        except OSError:
            return True

    def setup_succeeded(self, text: str) -> None:
        """On a full disk they run again for a later agent."""
        with contextlib.suppress(OSError):
            write_bytes(self._setup_done, _digest(text))

    def check_resources(self, wanted: Resources, vitals: Vitals, run_dir: Path, shm: Path) -> None:
        """Raises LaunchError that names everything that is short."""
        if wanted == Resources() or self._resources_done.exists():
            return
        preflight.check_resources(wanted, vitals, run_dir, shm)
        with contextlib.suppress(OSError):  # a full disk: it is looked at again
            write_bytes(self._resources_done, b"")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest().encode()
