"""One run of a job's set-up commands on this node, and how its end reads. Starts and signals nothing itself."""

import contextlib
from pathlib import Path
from typing import Any


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

    def succeeded(self, end: dict[str, Any]) -> bool:
        """`end`: as the keeper tells it."""
        return end["exit_code"] == 0 and not self.late

    def failed(self, end: dict[str, Any] | None) -> tuple[str, int | None, str | None]:
        """(in words, exit code, signal); what zrun itself did to commands that took too long is no cause."""
        late, self.late = self.late, ""
        if late or end is None:
            return f"the set-up commands {late}", None, None
        code, signal = end["exit_code"], end["signal"]
        return f"the set-up commands failed: {f'killed by {signal}' if signal else f'code {code}'}", code, signal
