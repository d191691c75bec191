"""Where everything of one run lies; makes no folder and reads no file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.core.ids import JobId

LEARNED_MODULES: Final = "modules.json"
"""In a node's folder: what the job had imported by its first step, written by a rank, read by standbys."""
LEFT_OUT_MODULES: Final = "modules-left-out.json"
"""Beside it: packages that a standby must not import, written by the agent."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`runs/<job-id>/` beside the job file, or --run-dir. Folders are 0700, files 0600."""

    root: Path

    @property
    def job(self) -> JobId:
        return JobId(self.root.name)

    @property
    def job_yaml(self) -> Path:
        """The job as it was understood: defaults filled in, secrets left out."""
        return self.root / "job.yaml"

    @property
    def spec_json(self) -> Path:
        """The same as JSON, for programs."""
        return self.root / "spec.json"

    @property
    def verdict(self) -> Path:
        return self.root / "verdict.json"

    @property
    def data(self) -> Path:
        """What the batches of this run follow from (core/batches.py), as its rank 0 wrote it."""
        return self.root / "data.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def coordinator(self) -> Path:
        """{address, pid}: where the embedded coordinator listens, rewritten at each of its starts."""
        return self.root / "coordinator.json"

    @property
    def supervisor_lock(self) -> Path:
        """Held by flock while a supervisor is alive; holds its pid."""
        return self.root / "supervisor.lock"

    @property
    def supervisor_log(self) -> Path:
        return self.root / "supervisor.log"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def rank_path(self) -> Path:
        """The one folder appended to a rank's sys.path; holds `zrun/` with links to the rooms inside a rank."""
        return self.root / "rank-path"

    def attempt_logs(self, attempt: int) -> Path:
        return self.root / "logs" / f"attempt-{attempt}"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.attempt_logs(attempt) / f"rank-{rank}.jsonl"

    def incident(self, number: int) -> Path:
        return self.root / "incidents" / f"{number:04d}"

    def node_lock(self, node: str) -> Path:
        return self.root / f"node-{node}.lock"

    def node(self, node: str) -> Path:
        """What the agent of one node keeps for itself about this run."""
        return self.root / f"node-{node}"

    def notice(self, node: str) -> Path:
        """Written by somebody outside: why it takes ranks away from this node."""
        return self.node(node) / "notice"

    def node_attempt(self, node: str, attempt: int) -> Path:
        """Spool files rank-R.out and rank-R.err, notes rank-R.notes, error files, torchrun.log of one attempt."""
        return self.node(node) / f"attempt-{attempt}"
