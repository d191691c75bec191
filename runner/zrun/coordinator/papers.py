"""A job's papers in its run folder: events.jsonl, verdict.json and the incidents, written as the machine decides.

Knows what goes where; the scribe writes. Lines carry the number of the event that caused them, so after a restart the
replay adds exactly those that were not written any more.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from zrun.coordinator.journal import Entry, wall_now
from zrun.coordinator.logs import backwards
from zrun.coordinator.scribe import Scribe
from zrun.core.redact import Redactor
from zrun.core.runfolder import RunFolder
from zrun.machine.actions import (
    Action,
    CloseIncident,
    Finish,
    Give,
    Note,
    OpenIncident,
    Record,
    UpdateIncident,
)
from zrun.machine.events import Command, RankEnded, Submitted
from zrun.machine.state import Incident
from zrun.spec.job import JobSpec, spec_to_dict

_BULKY: Final = {Submitted: ("spec",), RankEnded: ("failures",), Command: ("options",)}
"""Fields that stand elsewhere: spec.json, incidents. Of options only the names are told."""


class Papers:
    """`incident_view(number)` and `verdict_view()` give what the files are to hold now."""

    def __init__(
        self,
        folder: RunFolder,
        scribe: Scribe,
        redactor: Redactor,
        incident_view: Callable[[int], dict[str, Any]],
        verdict_view: Callable[[], dict[str, Any]],
    ) -> None:
        self.folder = folder
        self._scribe = scribe
        self._redactor = redactor
        self._incident_view = incident_view
        self._verdict_view = verdict_view
        self._last, self._lines_of_last = _where_it_ended(folder.events)
        self._verdict_written: dict[str, Any] | None = None
        self._newest: dict[Path, Any] = {}
        self._lost: dict[Path, Any] = {}
        """What could not be written; filled by the scribe's thread."""
        self.roll_calls: dict[int, str] = {}
        """By incident: every rank as it was known when the incident was opened."""

    def write(self, entry: Entry, actions: list[Action], incidents: dict[int, Incident]) -> None:
        """One line for the event and one for each decision; incident files of those that changed."""
        lines = [event_line(entry), *(decision_line(entry, action) for action in actions)]
        skip = 0 if entry.n > self._last else len(lines) if entry.n < self._last else self._lines_of_last
        for line in lines[skip:]:
            text = json.dumps(self._redactor.value(line), ensure_ascii=False, default=str)
            self._scribe.append_line(self.folder.root, self.folder.events, text)
        if skip >= len(lines):
            return
        for action in actions:
            if isinstance(action, OpenIncident | UpdateIncident | CloseIncident):
                self._write_incident(incidents[action.number])

    def write_verdict(self) -> None:
        """Nothing is written if nothing in it changed."""
        verdict = self._redactor.value(self._verdict_view())
        if verdict != self._verdict_written:
            self._verdict_written = verdict
            self._keep(self.folder.verdict, verdict)

    def write_lost(self) -> bool:
        """Write again what could not be written (the disk was full); True if there was something."""
        lost = [self._lost.popitem() for _ in range(len(self._lost))]
        for path, value in lost:
            self._keep(path, value)
        return bool(lost)

    def read_verdict(self) -> dict[str, Any]:
        """As an earlier life of this process wrote it; {} if it did not."""
        try:
            value = json.loads(self.folder.verdict.read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def write_job(self, spec: JobSpec) -> None:
        """The job as it is understood from now on."""
        from zrun.spec.write import to_yaml

        self._scribe.put_json(self.folder.root, self.folder.spec_json, spec_to_dict(spec))
        self._scribe.put_text(self.folder.root, self.folder.job_yaml, to_yaml(spec))

    def _write_incident(self, incident: Incident) -> None:
        place = self.folder.incident(incident.number)
        self._put(place / "incident.json", self._incident_view(incident.number))
        for name, text in evidence_texts(incident, self.roll_calls.get(incident.number, "")).items():
            if text:
                self._put(place / f"{name.replace('_', '-')}.txt", text)

    def _put(self, path: Path, value: Any) -> None:
        self._keep(path, self._redactor.value(value))

    def _keep(self, path: Path, value: Any) -> None:
        self._newest[path] = value

        def lost() -> None:
            if self._newest.get(path) is value:  # else a newer one is on its way
                self._lost[path] = value

        put = self._scribe.put_text if isinstance(value, str) else self._scribe.put_json
        put(self.folder.root, path, value, lost)


def event_line(entry: Entry) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(entry.event)
    for name in _BULKY.get(type(entry.event), ()):
        fields.pop(name, None)
    if isinstance(entry.event, RankEnded):
        fields["ranks"] = [f.get("rank") for f in entry.event.failures]
    if isinstance(entry.event, Command) and entry.event.options:
        fields["options"] = sorted(entry.event.options)
    name = fields.pop("e")
    return {"ts": entry.wall, "at": round(entry.at, 3), "n": entry.n, "event": name, **fields}


def decision_line(entry: Entry, action: Action) -> dict[str, Any]:
    line = {"ts": entry.wall, "at": round(entry.at, 3), "because": action.because}
    match action:
        case Give():
            order: dict[str, Any] = msgspec.to_builtins(action.order)
            return {**line, "decision": "order", "node": action.node, "boot": action.boot, "order": order}
        case Note():
            return {**line, "decision": "state", "state": action.state, "reason": action.reason}
        case OpenIncident():
            return {**line, "decision": "incident-opened", "incident": action.number, "attempt": action.attempt,
                    "class": action.fault, "headline": action.headline, "suspicion": action.suspicion}  # fmt: skip
        case UpdateIncident():
            return {**line, "decision": "incident-updated", "incident": action.number}
        case CloseIncident():
            return {**line, "decision": "incident-closed", "incident": action.number, "resolution": action.resolution}
        case Finish():
            return {**line, "decision": "finished", "state": action.state, "reason": action.reason}
        case Record():
            return {**line, "decision": action.what, **{k: v for k, v in action.fields.items() if k not in line}}


def remark(papers: Papers, scribe: Scribe, because: int, what: str, **fields: Any) -> None:
    """A line about the coordinator itself, for example that the disk was full."""
    line = {"ts": wall_now(), "because": because, "remark": what, **fields}
    scribe.append_line(papers.folder.root, papers.folder.events, json.dumps(line, ensure_ascii=False, default=str))


def _where_it_ended(path: Path) -> tuple[int, int]:
    """(number of the last event with lines here, how many lines it has); (0, 0) for a new file."""
    last = count = 0
    for line in backwards(path):
        number = line.get("n", line.get("because"))
        if "remark" in line or not isinstance(number, int):
            continue
        if last and number != last:
            break
        last, count = number, count + 1
    return last, count


def evidence_texts(incident: Incident, all_ranks: str = "") -> dict[str, str]:
    """roll_call, last_words and last_lines as people read them; empty where there is none.

    `all_ranks`: a line for every rank, from when the incident was opened.
    """
    ended = incident.failures
    words = [_last_words(f.headline(), f.traceback) for f in ended if f.exception or f.traceback]
    lines = [f"--- rank {f.rank}\n" + "\n".join(f.last_lines) + "\n" for f in ended if f.last_lines]
    roll_call = incident.suspected.roll_call + "\n" if incident.suspected is not None else ""
    if all_ranks and not roll_call:
        roll_call = f"{incident.headline}\n"
    roll_call += all_ranks
    return {"roll_call": roll_call, "last_words": "\n".join(words), "last_lines": "\n".join(lines)}


def _last_words(headline: str, traceback: str | None) -> str:
    return f"{headline}\n{traceback or ''}".rstrip() + "\n"
