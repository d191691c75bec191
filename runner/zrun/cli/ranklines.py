"""What a viewer shows of the ranks' output: rank 0's lines as they come, and the last ones of a rank that failed."""

from collections.abc import Iterator
from typing import Any, Final

from zrun.core import log_files
from zrun.core.log_files import Line
from zrun.core.log_follow import Growing
from zrun.core.runfolder import RunFolder

_OF_A_FAILED_RANK: Final = 30


class RankLines:
    """Reads the run's folder; each line is given once, attempt after attempt."""

    def __init__(self, folder: RunFolder, *, first_attempt: int = 1) -> None:
        self._folder = folder
        self._attempt = first_attempt
        self._rank0 = Growing(folder.rank_log(first_attempt, 0))
        self._shown_failures: set[tuple[int, int]] = set()

    def skip_what_is_there(self) -> None:
        """Begin at the end of the newest attempt: earlier launches have shown the rest."""
        self._attempt = max(log_files.attempts(self._folder), default=self._attempt)
        self._rank0 = Growing(self._folder.rank_log(self._attempt, 0), at_end=True)

    def new(self) -> Iterator[Line]:
        """Rank 0's new lines; a newer attempt is begun only when the older one's lines are all given."""
        while True:
            yield from self._rank0.read()
            later = [a for a in log_files.attempts(self._folder) if a > self._attempt]
            if not later:
                return
            yield from self._rank0.read()
            self._attempt = later[0]
            self._rank0 = Growing(self._folder.rank_log(self._attempt, 0))

    def of_failed(self, incidents: list[dict[str, Any]]) -> Iterator[Line]:
        """The last lines of each rank that an incident names, once; rank 0's have been shown already."""
        for incident in incidents:
            rank, attempt = incident.get("rank"), incident.get("attempt") or self._attempt
            if not rank or incident.get("suspicion") or (attempt, rank) in self._shown_failures:
                continue
            self._shown_failures.add((attempt, rank))
            yield from log_files.tail(self._folder.rank_log(attempt, rank), _OF_A_FAILED_RANK, lambda _: True)
