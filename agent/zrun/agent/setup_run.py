"""One run of a job's set-up commands on this node, and how its end reads. Starts and signals nothing itself."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from zrun.core.failure import Failure, FailureKind


class SetupRun:
    """`log`: where the commands write."""

    def __init__(self, own_dir: Path) -> None:
        self.log = own_dir / "setup.log"
        self.text = ""
        self.late = ""
        """Why they are being ended, if they take too long."""

    def begin(self, text: str) -> list[str]:
        """The command line to start."""
        self.text, self.late = text, ""
        with contextlib.suppress(OSError):
            self.log.unlink(missing_ok=True)
        return ["bash", "-c", text]

    def ended(self, end: dict[str, Any] | None, failure: Callable[[FailureKind, str], Failure]) -> Failure | None:
        """None if they succeeded. `end`: as the keeper tells it, None if nobody saw it. What zrun did to commands
        that took too long is no cause.
        """
        late, self.late = self.late, ""
        if late or end is None:
            return failure(FailureKind.SETUP, f"the set-up commands {late}")
        code, signal = end["exit_code"], end["signal"]
        if code == 0:
            return None
        how = f"the set-up commands failed: {f'killed by {signal}' if signal else f'code {code}'}"
        return replace(failure(FailureKind.SETUP, how), exit_code=code, signal=signal)
