"""Why ranks are taken away from this node, in the words of whoever takes them.

A scheduler's or cluster's hook writes one line (`evicted`) to `<run>/node-NODE/notice`, or to the file that the agent
was told of (`--notice-file`, ZRUN_NOTICE_FILE), before or just after it kills. A notice counts for the attempt that
runs when it is written, and only for ranks that were killed by somebody else's signal; it ends nothing by itself.
"""

import time
from pathlib import Path
from typing import Final

from zrun.agent import node_events as e
from zrun.agent.job import JobOnNode
from zrun.core.runfolder import RunFolder

LATE_S: Final = 2.0
"""A notice may come this long after the kill."""
SLACK_S: Final = 1.0
"""File times are coarser than the clock."""
LONGEST: Final = 200


class Notices:
    """`node_file`: for all jobs of the node; the one in a run's folder is for that job alone."""

    def __init__(self, node: str, node_file: Path | None) -> None:
        self._node, self._node_file = node, node_file
        self._began: dict[str, tuple[int, float]] = {}

    def look(self, job: JobOnNode) -> None:
        """At each turn of the agent's loop; files are read only when a rank was just killed from outside."""
        record, name = job.machine.state.record, job.brief.job
        if self._began.get(name, (0, 0.0))[0] != record.attempt:
            self._began[name] = (record.attempt, time.time())
        killed = [s.ended_unix for s in record.stories.values() if s.signal and s.signalled_unix is None]
        if record.notice or not killed or time.time() > max(killed) + LATE_S:
            return
        text = self._read(Path(job.brief.run_dir), since=self._began[name][1] - SLACK_S)
        if text:
            job.feed(e.NoticeRead(text))

    def _read(self, run_dir: Path, since: float) -> str:
        files = [RunFolder(run_dir).notice(self._node), *([self._node_file] if self._node_file else [])]
        for file in files:
            try:
                if file.stat().st_mtime < since:
                    continue
                with file.open(errors="replace") as lines:
                    words = " ".join(lines.readline(LONGEST).split())
            except OSError:
                continue
            if words:
                return words
        return ""
