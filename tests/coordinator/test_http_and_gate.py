"""HTTP: the token on every route, no answer that a strange request breaks, and what the routes tell."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from zrun.coordinator.app import create_app
from zrun.coordinator.clock import MachineClock, SilenceClock
from zrun.coordinator.commands import Commands, enter
from zrun.coordinator.fleet import Fleet
from zrun.coordinator.gate import OPEN_PATHS, Keys, is_loopback
from zrun.coordinator.journal import Entry
from zrun.coordinator.main import CoordinatorConfig, bind, read_token, run_coordinator
from zrun.coordinator.scribe import Scribe
from zrun.coordinator.stream import EVERY_S, Changes
from zrun.core.batches import Batches, DataFacts
from zrun.core.errors import LaunchError, UsageError, ZrunError
from zrun.core.redact import MASK, Redactor
from zrun.machine.events import Event, Submitted
from zrun.spec.job import JobSpec, spec_to_dict

TOKEN = "0123456789abcdef0123456789abcdef"
HERE = "http://127.0.0.1:7777"


class Log:
    def __getattr__(self, _level: str) -> Any:
        return lambda *_args, **_more: None


class AtOnce:
    """A journal that is on the disk as soon as it is told."""

    def __init__(self) -> None:
        self.n = 0
        self.fleet: Any = None

    def append(self, job: str | None, at: float, event: Event) -> Entry:
        self.n += 1
        n = self.n
        try:
            asyncio.get_running_loop().call_soon(lambda: self.fleet.committed(n))
        except RuntimeError:
            pass  # before the server runs: the test commits by hand
        return Entry(n, job, at, "2026-01-01T00:00:00.000Z", event)


class Site:
    """The application in this process, with one job and its log on disk."""

    def __init__(self, folder: Path) -> None:
        self.journal = AtOnce()
        self.scribe = Scribe(Log())
        self.fleet = Fleet(self.journal, self.scribe, MachineClock(), SilenceClock(), Log())
        self.journal.fleet = self.fleet
        self.folder = folder / "toy-0001"
        self.folder.mkdir()
        spec = spec_to_dict(JobSpec(name="toy", run=["x.py"]))
        enter(self.fleet, Submitted("toy-0001", spec, str(self.folder)))
        self.fleet.committed(1)
        self.changes = Changes(lambda job: self.fleet.jobs[job].views.status())
        self.fleet.changed = self.changes.touch
        self.keys = Keys(TOKEN)
        self.app, self.gated = create_app(
            self.fleet, Commands(self.fleet, embedded=False), self.changes, self.keys, "127.0.0.1", (), {"/login.js"}
        )
        self.client = TestClient(self.gated, base_url=HERE, raise_server_exceptions=False)
        self.bearer = {"Authorization": f"Bearer {TOKEN}"}

    def get(self, path: str, **params: Any) -> Any:
        return self.client.get(path, params=params, headers=self.bearer)

    def write_log(self, rank: int, lines: list[dict[str, Any]]) -> None:
        place = self.folder / "logs" / "attempt-1"
        place.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (place / f"rank-{rank}.jsonl").write_text(text)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    one = Site(tmp_path)
    with one.client:
        yield one
    one.scribe.close()


def line(n: int, **more: Any) -> dict[str, Any]:
    return {"ts": f"2026-01-01T00:00:{n:02d}.000Z", "rank": 0, "stream": "stdout", "level": "info", "msg": f"line {n}",
            **more}  # fmt: skip


def routes(site: Site) -> list[tuple[str, str]]:
    """(method, path) of every HTTP route, with something harmless in place of its parameters."""
    found = []
    for path, operations in site.app.openapi()["paths"].items():
        found += [(method.upper(), path.format(job="toy", number=1)) for method in operations]
    hidden = [(m, str(getattr(r, "path", ""))) for r in site.app.routes for m in getattr(r, "methods", None) or ()]
    return found + [(m, p.replace("{rest:path}", "x")) for m, p in hidden]


def test_every_route_answers_401_without_a_token(site: Site) -> None:
    walked = routes(site)
    assert len(walked) > 18
    for method, path in walked:
        if path in OPEN_PATHS:
            continue
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic Og=="}, {"Cookie": "zrun=x"}):
            answer = site.client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path, answer.status_code)
    assert site.client.get("/healthz").json() == {"status": "ok"}
    with pytest.raises(WebSocketDisconnect), site.client.websocket_connect("/api/agents"):
        pass


def test_only_named_files_of_the_page_are_open_and_a_browser_is_led_to_the_login(site: Site) -> None:
    assert site.client.get("/login.js").status_code == 404
    assert site.client.get("/other.js").status_code == 401
    assert site.client.get("/login/../api/jobs").status_code == 401
    page = site.client.get("/", headers={"Accept": "text/html"})
    assert page.status_code == 401
    assert "/login" in page.text


def test_every_answer_carries_the_security_headers(site: Site) -> None:
    for path in ("/healthz", "/login", "/api/jobs", "/nothing"):
        answer = site.client.get(path)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_foreign_host_name_is_refused_before_anything_else(site: Site) -> None:
    for host in ("evil.example", "evil.example:7777", "127.0.0.1.evil.example", ""):
        assert site.client.get("/healthz", headers={"Host": host}).status_code == 421, host
    for host in ("localhost:7777", "127.0.0.1", "[::1]:7777"):
        assert site.client.get("/healthz", headers={"Host": host}).status_code == 200, host


def test_the_cookie_reads_and_writes_only_from_our_own_page(site: Site) -> None:
    assert site.client.post("/login", json={"token": "wrong"}).status_code == 401
    for nonsense in (b"", b"[]", b"\xff", b'{"token": 3}'):
        assert site.client.post("/login", content=nonsense).status_code == 401
    given = site.client.post("/login", json={"token": TOKEN})
    assert given.status_code == 204
    cookie = given.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert site.client.get("/api/jobs").status_code == 200
    assert site.client.post("/api/jobs/toy/save").status_code == 403
    assert site.client.post("/api/jobs/toy/save", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert site.client.post("/api/jobs/toy/save", headers={"Origin": "http://evil.example"}).status_code == 403
    assert site.client.post("/api/jobs/toy/save", headers={"Origin": HERE}).status_code == 202
    assert site.client.post("/api/jobs/toy/save", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 202
    with pytest.raises(WebSocketDisconnect), site.client.websocket_connect("/api/agents"):
        pass  # a page is no agent


def test_a_session_ends_after_its_time_and_with_the_token() -> None:
    keys = Keys(TOKEN)
    session = keys.new_session(1000.0)
    assert keys.is_session(session, 2000.0)
    assert not keys.is_session(session, 1000.0 + 13 * 3600)
    assert not keys.is_session("9" + session, 2000.0)
    assert not keys.is_session("\udcff.x.y", 2000.0)
    keys.replace("another-token-of-enough-length")
    assert not keys.is_session(session, 2000.0)


def test_a_job_is_found_by_id_name_and_prefix(site: Site) -> None:
    for name in ("toy-0001", "toy", "toy-0"):
        assert site.get(f"/api/jobs/{name}").json()["job"] == "toy-0001"
    missing = site.get("/api/jobs/other")
    assert missing.status_code == 404
    assert set(missing.json()) == {"error", "hint"}


def test_strange_input_is_refused_and_never_breaks_anything(site: Site) -> None:
    site.write_log(0, [line(1)])
    for path in (
        "/api/jobs/%00", "/api/jobs/..%2f..%2fetc", "/api/jobs/" + "x" * 3000, "/api/jobs/toy/incidents/0",
        "/api/jobs/toy/incidents/x", "/api/jobs/toy/incidents/99999999999999999999", "/api/jobs/toy/logs?rank=x",
        "/api/jobs/toy/logs?rank=../0", "/api/jobs/toy/logs?attempt=%00", "/api/jobs/toy/logs?stream=/etc/passwd",
        "/api/jobs/toy/logs?grep=(", "/api/jobs/toy/logs?since=never", "/api/jobs/toy/logs?since=1e400",
        "/api/jobs/toy/logs?since=nan", "/api/jobs/toy/logs?tail=-1", "/api/jobs/toy/logs?attempt=77",
        "/api/jobs/toy/logs?rank=77", "/api/jobs/toy/logs?level=loud", "/api/jobs/toy/batches", "/api/nothing",
        "/api/jobs?limit=0", "/api/jobs/toy/events?after=99999999999999999999999",
    ):  # fmt: skip
        answer = site.client.get(path, headers=site.bearer)
        assert answer.status_code in {404, 422}, (path, answer.status_code, answer.text)
        assert answer.json()["error"]
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"spec": 1}', b'{"spec": {}, "run_dir": "/x", "more": 1}'):
        sent = site.client.post("/api/jobs", content=body, headers={**site.bearer, "content-type": "application/json"})
        assert sent.status_code == 422, body
    assert site.client.post("/api/jobs/toy/stop", json={"now": "maybe"}, headers=site.bearer).status_code == 422
    large = site.client.post("/api/jobs", content=b"x" * (2 << 20), headers=site.bearer)
    assert large.status_code == 413


def test_a_refused_submission_says_why_and_repeats_no_secret(site: Site, tmp_path: Path) -> None:
    good = {"spec": spec_to_dict(JobSpec(name="b", run=["x"])), "run_dir": str(tmp_path / "b-0002")}
    wrong: list[dict[str, Any]] = [
        {**good, "run_dir": "relative/b-0002"}, {**good, "run_dir": "/x\0/b-0002"}, {**good, "run_dir": "/x/../b-0002"},
        {**good, "run_dir": str(tmp_path / "no id")}, {**good, "run_dir": str(tmp_path / "toy-0001")},
        {**good, "spec": {"name": "b"}}, {**good, "env": {"A=B": "x"}}, {**good, "env": {"A": "x\0y"}},
        {**good, "spec": spec_to_dict(JobSpec(name="b", run=["x"], secrets=["KEY"]))},
        {**good, "run_dir": "/proc/nowhere/b-0002"}, {**good, "secrets": {"KEY": ["hunter22-secret"]}},
    ]  # fmt: skip
    for body in wrong:
        answer = site.client.post("/api/jobs", json=body, headers=site.bearer)
        assert answer.status_code in {409, 422}, (body, answer.text)
        assert "hunter22" not in answer.text
    assert list(site.fleet.jobs) == ["toy-0001"]
    assert site.client.post("/api/jobs", json=good, headers=site.bearer).status_code == 201


def test_logs_come_from_the_end_filtered_and_merged(site: Site) -> None:
    site.write_log(0, [line(n) for n in range(0, 60, 2)])
    site.write_log(1, [line(n, rank=1, stream="stderr", level="error" if n == 31 else "info") for n in range(1, 60, 2)])
    assert [x["msg"] for x in site.get("/api/jobs/toy/logs", tail=3).json()["lines"]] == [
        "line 57",
        "line 58",
        "line 59",
    ]
    assert [x["msg"] for x in site.get("/api/jobs/toy/logs", rank=0, tail=1).json()["lines"]] == ["line 58"]
    assert [x["msg"] for x in site.get("/api/jobs/toy/logs", level="warning").json()["lines"]] == ["line 31"]
    assert [x["msg"] for x in site.get("/api/jobs/toy/logs", grep="line 1?1$").json()["lines"]] == ["line 1", "line 11"]
    assert len(site.get("/api/jobs/toy/logs", stream="stderr").json()["lines"]) == 30
    assert len(site.get("/api/jobs/toy/logs", since="2026-01-01T00:00:50Z").json()["lines"]) == 10
    first = site.get("/api/jobs/toy/logs", first_error=True, tail=2).json()["lines"]
    assert [x["msg"] for x in first] == ["line 31", "line 33"]


def test_the_end_of_a_large_log_costs_little(site: Site) -> None:
    site.write_log(0, [line(1, msg="x" * 1000, i=i) for i in range(15_000)])
    started = time.monotonic()
    found = site.get("/api/jobs/toy/logs", tail=2).json()["lines"]
    assert [x["i"] for x in found] == [14_998, 14_999]
    assert time.monotonic() - started < 0.5


def test_checkpoints_incidents_events_and_the_rest_answer(site: Site) -> None:
    (site.folder / "checkpoints" / "step-000002").mkdir(parents=True)
    kept = site.get("/api/jobs/toy/checkpoints").json()["checkpoints"]
    assert [(c["step"], c["state"]) for c in kept] == [(2, "partial")]
    assert site.get("/api/jobs/toy/incidents").json() == {"job": "toy-0001", "incidents": []}
    assert site.get("/api/jobs/toy/incidents/1").status_code == 404
    assert site.client.post("/api/jobs/toy/save", headers=site.bearer).json()["event"] == 2
    site.scribe.drain(5)
    events = site.get("/api/jobs/toy/events").json()["events"]
    assert [e["event"] for e in events if "event" in e] == ["Submitted", "Command"]
    assert site.get("/api/jobs/toy/events", after=1).json()["events"][0]["n"] == 2
    assert site.get("/api/jobs/toy/describe").json()["spec"]["run"] == ["x.py"]
    assert 'zrun_jobs{state="PENDING"} 1.0' in site.get("/metrics").text
    assert site.get("/api/openapi.json").json()["info"]["title"] == "zrun coordinator"
    assert site.client.post("/api/jobs/toy/resume", headers=site.bearer).status_code == 409
    assert site.client.post("/api/jobs/toy/stacks", headers=site.bearer).status_code == 409


def test_stacks_are_grouped_by_equal_stack(site: Site) -> None:
    place = site.folder / "stacks" / "20260101-000000-000" / "stacks"
    assert site.get("/api/jobs/toy/stacks").status_code == 404
    place.mkdir(parents=True)
    for rank in range(3):
        where = "all_reduce" if rank != 1 else "loader"
        (place / f"rank-{rank}.txt").write_text(f"Thread 0x00007f0{rank}aaaa1234\n  File x in {where}\n")
    (place / "grouped-n1.txt").write_text("not a rank")
    (place / "rank-9.txt").symlink_to("/etc/hostname")
    found = site.get("/api/jobs/toy/stacks").json()
    assert [g["ranks"] for g in found["groups"]] == [[0, 2], [1]]


def test_the_stream_gives_the_newest_status_at_most_twice_a_second() -> None:
    async def scene() -> tuple[list[tuple[int, str]], float]:
        steps = {"a-0001": 0, "b-0002": 0}
        changes = Changes(lambda job: {"job": job, "step": steps[job]})
        for job in steps:
            changes.touch(job)
        found: list[tuple[int, str]] = []
        started = time.monotonic()
        async for update in changes.follow():
            found.append((update.version, f"{update.job}:{update.status['step']}"))
            if len(found) == 2:
                for n in range(1, 100):
                    steps["b-0002"] = n
                    changes.touch("b-0002")
                changes.touch("a-0001")
            if len(found) == 4:
                changes.close()
        return found, time.monotonic() - started

    found, took = asyncio.run(scene())
    assert [text for _, text in found] == ["a-0001:0", "b-0002:0", "b-0002:99", "a-0001:0"]
    assert [version for version, _ in found] == sorted(version for version, _ in found)
    assert took >= EVERY_S


def test_secret_values_are_replaced_wherever_they_stand() -> None:
    redactor = Redactor(["hunter22", 'quo"ted\n', "abc"])
    value = {"a": ["x hunter22 y", {"hunter22": 1}], "b": 3, "c": "abc", "d": json.dumps('quo"ted\n')}
    assert redactor.value(value) == {"a": [f"x {MASK} y", {MASK: 1}], "b": 3, "c": "abc", "d": f'"{MASK}"'}


def test_binding_beyond_this_machine_needs_a_word(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        run_coordinator(CoordinatorConfig(dir=tmp_path, host="0.0.0.0"))
    assert "--allow-plain-http" in refused.value.hint
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("example.org")


def test_a_port_in_use_a_bad_journal_and_a_bad_token_are_errors_for_people(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(LaunchError, match="cannot listen on"):
        run_coordinator(CoordinatorConfig(dir=tmp_path, port=taken.getsockname()[1]))
    (tmp_path / "journal.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(ZrunError) as damaged:
        run_coordinator(CoordinatorConfig(dir=tmp_path))
    assert "mv " in damaged.value.hint
    assert capfd.readouterr().err == "", "the command line says it, in words and once"
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ZrunError, match="may be read by others"):
        read_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "token").write_text("short")
    with pytest.raises(ZrunError, match="holds no token"):
        read_token(tmp_path / "token")


def test_the_batch_of_a_step_is_told_as_the_command_tells_it(site: Site) -> None:
    facts = DataFacts("samples", "numbers:12", 0, 4, drop_last=True, samples=12)
    assert site.get("/api/jobs/toy/batches").status_code == 404
    (site.folder / "data.json").write_text(json.dumps(facts.to_dict()))
    told = site.get("/api/jobs/toy/batches", step=2).json()
    assert told | {"data": 0} == {
        "job": "toy-0001", "batch": str(Batches(facts).name(2)), "epoch": 0, "ordinal": 2, "skipped": False, "step": 2,
        "samples": [4, 5, 6, 7], "samples_are": "indices of the dataset", "known_end": True, "data": 0,
    }  # fmt: skip
    assert site.get("/api/jobs/toy/batches", batch=told["batch"]).json() == told
    assert site.get("/api/jobs/toy/batches").json()["step"] == 1
    for asked in ({"step": 0}, {"batch": "e0-s000002-00000000"}, {"step": 1, "batch": told["batch"]}):
        assert site.get("/api/jobs/toy/batches", **asked).status_code == 422
