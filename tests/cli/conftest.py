"""For tests of the command line: runs in a registry of their own, a coordinator that says what a test tells it."""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from zrun.cli import registry
from zrun.core.runfolder import RunFolder


@pytest.fixture
def write_log() -> Callable[..., None]:
    """Append lines to a rank's log; times grow from call to call."""
    seconds = itertools.count()

    def write(folder: RunFolder, attempt: int, rank: int, texts: list[str], **more: Any) -> None:
        path = folder.rank_log(attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for text in texts:
                at = next(seconds)
                line = {"ts": f"2026-01-01T00:{at // 60:02d}:{at % 60:02d}.000Z", "job": folder.job,
                        "attempt": attempt, "node": f"n{rank}", "rank": rank, "local_rank": rank, "stream": "stdout",
                        "step": at, "batch": None, "level": "info", "msg": text, **more}  # fmt: skip
                file.write(json.dumps(line) + "\n")

    return write


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """`make_run("gpt2-0000aa", state="FAILED")`: a run's folder, known to the registry."""

    def make(job: str, *, state: str = "", name: str | None = None, spec: dict[str, Any] | None = None,
             **verdict: Any) -> RunFolder:  # fmt: skip
        folder = RunFolder(tmp_path / "runs" / job)
        folder.root.mkdir(parents=True, mode=0o700)
        name = name or job.rpartition("-")[0]
        folder.spec_json.write_text(json.dumps({"name": name, "run": ["train.py"], **(spec or {})}))
        folder.token.write_text("secret\n")
        if state:
            value = {"job": job, "name": name, "state": state, "reason": "because", "attempts": [], "incidents": [],
                     **verdict}  # fmt: skip
            folder.verdict.write_text(json.dumps(value))
        registry.remember(job, name, folder.root)
        return folder

    return make


@dataclass
class FakeCoordinator:
    """Answers GET /api/jobs/JOB with `status` and keeps what was POSTed."""

    folder: RunFolder
    status: dict[str, Any]
    token: str = "secret"
    told: list[tuple[str, Any]] = field(default_factory=list)
    on_told: Callable[[str], None] = lambda _: None
    answers: dict[str, Any] = field(default_factory=dict)
    asked: threading.Event = field(default_factory=threading.Event)
    """Somebody has asked something."""
    _server: ThreadingHTTPServer | None = None
    _port: int = 0

    def start(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _send(self, code: int, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _allowed(self) -> bool:
                if self.headers.get("authorization") == f"Bearer {fake.token}":
                    return True
                self._send(401, {"error": "a token is needed", "hint": ""})
                return False

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                fake.asked.set()
                if path == "/healthz":
                    self._send(200, {"status": "ok"})
                elif not self._allowed():
                    return
                elif path == "/api/jobs":
                    self._send(200, {"jobs": [fake.status], "total": 1})
                elif path == f"/api/jobs/{fake.status['job']}":
                    self._send(200, fake.status)
                elif path in fake.answers:
                    self._send(200, fake.answers[path])
                else:
                    self._send(404, {"error": f"nothing at {path}", "hint": "look elsewhere"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                if self._allowed():
                    what = self.path.rpartition("/")[2]
                    fake.told.append((what, body))
                    fake.on_told(what)
                    self._send(202, fake.answers.get(f"POST {what}", {"job": fake.status["job"]}))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.folder.coordinator.write_text(json.dumps({"address": self.address, "pid": os.getpid()}))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def finish(self, state: str, **more: Any) -> None:
        verdict = {**self.status, "state": state, "reason": "all done", **more}
        self.folder.verdict.write_text(json.dumps(verdict))
        self.status = verdict


@pytest.fixture
def coordinator() -> Iterator[Callable[..., FakeCoordinator]]:
    running: list[FakeCoordinator] = []

    def make(folder: RunFolder, **status: Any) -> FakeCoordinator:
        name = folder.job.rpartition("-")[0]
        full = {"job": folder.job, "name": name, "state": "RUNNING", "reason": "2 ranks", "attempt": 1, "step": 5,
                "total_steps": 10, "step_s": 0.05, "nodes": [], "attempts": [], "incidents": [], "checkpoints": [],
                "run_dir": str(folder.root)} | status  # fmt: skip
        fake = FakeCoordinator(folder, full)
        fake.start()
        running.append(fake)
        return fake

    yield make
    for fake in running:
        fake.stop()
