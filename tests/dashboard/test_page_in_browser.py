"""The page in a real browser, behind the coordinator's own gate, fed with status objects by a stand-in for the API."""

import asyncio
import contextlib
import json
import shutil
import socket
import threading
from collections.abc import AsyncIterable, Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.responses import Response

from zrun.coordinator.gate import Gate, Keys
from zrun.dashboard.pages import OPEN_PATHS, dashboard_router

TOKEN = "a-token-of-the-page-test"
EVIL = "<img src=x onerror=alert(1)><b>bold</b>"
SUSPECT = "1 of 2 ranks in all_reduce #17; rank 1 not there (phase step, step 41)"


def rank(number: int, step: int = 120, **more: Any) -> dict[str, Any]:
    return {"rank": number, "pid": 10 + number, "phase": "step", "step": step, "batch": f"e0-s{step:06d}-7f3a9c21",
            "age_s": 0.02, "state": "alive", "collective": None, "in_loader": False, "cpu": 1.0, "step_s": 0.05,
            **more}  # fmt: skip


def attempt(number: int, **more: Any) -> dict[str, Any]:
    return {"attempt": number, "outcome": None, "first_step": 1, "last_step": None, "resumed_from": None, "cause": None,
            "began_because": None, "skipped": [], "nodes": ["a"], "ordered_at_s": 1.0, "started_at_s": 3.0,
            "ended_at_s": None, "duration_s": 20.0, "at": "2026-01-31T12:00:00.000Z", "quarantined": [],
            **more}  # fmt: skip


def incident(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "class": "crash", "rank": 1, "node": "a", "exit_code": 7, "signal": None,
            "exception": "ValueError", "message": EVIL, "step": 61, "batch": "e0-s000061-7f3a9c21", "collective": None,
            "where": "train.py:10", "because": ["rank 1 raised ValueError; no other failure could be a cause"],
            "followed": [0], "detected_s": 0.02, "recovered_s": 0.4, "steps_lost": 3, "attempt": 1,
            "headline": f"rank 1: ValueError: {EVIL}", "suspicion": False, "open": False, "decision": "restart 1 of 5",
            "resolution": "recovered", "opened_at_s": 9.0, "closed_at_s": 10.0, "at": "2026-01-31T12:00:09.000Z",
            "last_lines": [], **more}  # fmt: skip


def status(**more: Any) -> dict[str, Any]:
    return {"job": "gpt2-7f3a91", "name": "gpt2", "state": "RUNNING", "reason": "attempt 2 began at step 59", "attempt": 2,
            "step": 120, "total_steps": 2000, "step_s": 0.051, "goodput": 0.97,
            "restarts": {"used": 1, "left": {"crash": 4}}, "nodes": [{"node": "a", "state": "ok", "heard_s": 0.1,
            "ranks": [rank(0), rank(1)]}], "attempts": [attempt(1, outcome="fault", last_step=61, ended_at_s=9.5,
            cause="incident 1"), attempt(2, first_step=59, ordered_at_s=9.6, started_at_s=10.0,
            resumed_from={"tier": "disk", "step": 58}, began_because="crash of rank 1")],
            "incidents": [incident(1)], "checkpoints": [{"step": 100, "tier": "disk", "state": "complete", "bytes": 4096,
            "seconds": 0.2, "batch": "e0-s000100-1", "attempt": 2, "name": "step-000100"}], "save_failures": [],
            "metrics": {"loss": 2.3125}, "warnings": [], "left_behind": [], "quarantined": [], "limits": {},
            "submitted": "2026-01-31T12:00:00.000Z", "submitted_at_s": 0.0, "ended_at_s": None, "now_s": 21.0,
            "run_dir": "/runs/gpt2-7f3a91", **more}  # fmt: skip


class StandIn:
    """Serves the page, one log, one incident's evidence, and whatever `tell` is given."""

    def __init__(self) -> None:
        self.keys = Keys(TOKEN)
        self.asked_logs: list[str] = []
        self._jobs: dict[str, dict[str, Any]] = {}
        self._changed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        gated = Gate(self._app(), self.keys, "127.0.0.1", OPEN_PATHS)
        config = uvicorn.Config(gated, log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._listener]))
        self._thread.start()

    def tell(self, told: dict[str, Any]) -> None:
        self._jobs = {**self._jobs, told["job"]: told}

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(dashboard_router())

        @app.post("/login", status_code=204)
        async def login(body: dict[str, str]) -> Response:
            if not self.keys.is_token(body["token"]):
                return Response(status_code=401)
            answer = Response(status_code=204)
            answer.set_cookie(self.keys.cookie, self.keys.new_session(4e9), httponly=True, samesite="strict")
            return answer

        @app.get("/api/jobs")
        async def jobs() -> dict[str, Any]:
            return {"jobs": []}

        @app.get("/api/stream", response_class=EventSourceResponse)
        async def stream() -> AsyncIterable[ServerSentEvent]:
            sent: dict[str, str] = {}
            while not self._server.should_exit:
                for job, told in self._jobs.items():
                    text = json.dumps(told)
                    if sent.get(job) != text:
                        sent[job] = text
                        yield ServerSentEvent(event="job", data=told)
                await asyncio.sleep(0.05)

        @app.get("/api/jobs/{job}/logs")
        async def logs(job: str, rank: str = "", attempt: str = "") -> dict[str, Any]:
            self.asked_logs.append(f"{job}/{attempt}/{rank}")
            line = {"ts": "2026-01-31T12:00:00.000Z", "job": job, "attempt": 2, "node": "a", "rank": int(rank or 0),
                    "stream": "stdout", "step": 7, "batch": None, "level": "error",
                    "msg": f"\x1b[31m{EVIL}\x1b[0m"}  # fmt: skip
            return {"job": job, "attempt": 2, "ranks": [0, 1], "lines": [line]}

        @app.get("/api/jobs/{job}/incidents/{number}")
        async def one(job: str, number: int) -> dict[str, Any]:
            return {"job": job, "traceback": "Traceback …\nValueError: bad", "last_lines": "last words", "roll_call": None,
                    "stack_groups": [{"ranks": [0, 1], "stack": "train.py:10 in step"}]}  # fmt: skip

        return app


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with contextlib.closing(StandIn()) as serving:
        yield serving


@pytest.fixture
def page(browser: Browser, stand_in: StandIn) -> Iterator[Page]:
    """Logged in; anything the policy blocks or a script throws fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda m: complaints.append(m.text) if m.type in {"error", "warning"} else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(f"{stand_in.address}/login#token={TOKEN}")
    opened.wait_for_url(f"{stand_in.address}/")
    yield opened
    context.close()
    assert complaints == []


def test_the_token_in_the_address_logs_in_and_leaves_the_address(page: Page, stand_in: StandIn) -> None:
    assert TOKEN not in page.url
    page.go_back()
    assert TOKEN not in page.url
    assert stand_in.keys.cookie in {cookie.get("name") for cookie in page.context.cookies()}


def test_a_wrong_token_is_refused_in_words(browser: Browser, stand_in: StandIn) -> None:
    page = browser.new_page()
    page.goto(f"{stand_in.address}/login")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{stand_in.address}/")
    page.close()


def test_without_a_session_the_page_leads_to_the_login(browser: Browser, stand_in: StandIn) -> None:
    page = browser.new_page()
    page.goto(stand_in.address)
    page.wait_for_url(f"{stand_in.address}/login")
    page.close()


def test_a_job_is_shown_and_follows_the_stream(page: Page, stand_in: StandIn) -> None:
    stand_in.tell(status())
    expect(page.get_by_role("heading", level=1)).to_have_text("gpt2")
    expect(page.locator("p.reason")).to_have_text("attempt 2 began at step 59")
    expect(page.get_by_text("120 of 2,000")).to_be_visible()
    expect(page.get_by_text("97.0 %")).to_be_visible()
    expect(page.get_by_role("row", name="0 a alive step 120")).to_be_visible()
    expect(page.locator("#link")).to_have_text("live")
    nodes = [{"node": "a", "state": "ok", "heard_s": 0.1, "ranks": [rank(0, 121), rank(1, 121, phase="eval")]}]
    stand_in.tell(status(step=121, nodes=nodes))
    expect(page.get_by_role("row", name="1 a alive eval 121")).to_be_visible()
    expect(page).to_have_title("RUNNING gpt2 - zrun")


def test_an_incident_tells_its_cause_and_fetches_its_evidence(page: Page, stand_in: StandIn) -> None:
    stand_in.tell(status())
    headline = page.locator("summary", has_text="ValueError")
    expect(headline).to_contain_text(EVIL)  # as text
    headline.click()
    expect(page.get_by_text("no other failure could be a cause")).to_be_visible()
    expect(page.get_by_text("train.py:10", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Stack of ranks 0-1")).to_be_visible()
    expect(page.get_by_text("ValueError: bad")).to_be_visible()
    assert page.locator("main img, main b").count() == 0


def test_a_suspect_is_marked_while_nothing_is_ended(page: Page, stand_in: StandIn) -> None:
    stand_in.tell(status(incidents=[incident(2, headline=SUSPECT, suspicion=True, open=True, **{"class": "hang"},
                                             attempt=2, opened_at_s=20.0)]))  # fmt: skip
    expect(page.get_by_text("hang?")).to_be_visible()
    expect(page.locator(".headline")).to_have_text(SUSPECT)
    expect(page.locator("tr.bad")).to_have_count(1)
    expect(page.locator("polygon.mark.open")).to_have_count(1)


def test_the_log_of_a_rank_is_one_click_away_and_is_plain_text(page: Page, stand_in: StandIn) -> None:
    stand_in.tell(status())
    expect(page.locator(".lines .msg").first).to_have_text(EVIL)
    page.get_by_role("button", name="1", exact=True).click()
    expect(page.get_by_label("rank", exact=True)).to_have_value("1")
    expect(page.locator(".lines .from").first).to_contain_text("1 · 7")
    assert stand_in.asked_logs[-1] == "gpt2-7f3a91//1"


def test_several_jobs_are_listed_and_chosen(page: Page, stand_in: StandIn) -> None:
    stand_in.tell(status())
    stand_in.tell(status(job="bert-1a2b3c", name="bert", state="FAILED", submitted="2026-01-31T11:00:00.000Z"))
    entry = page.get_by_role("link", name="bert-1a2b3c")
    expect(entry).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("gpt2")
    entry.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("bert")
    expect(page.get_by_role("link", name="bert-1a2b3c")).to_have_attribute("aria-current", "page")


def test_an_open_incident_stays_open_while_the_status_changes(page: Page, stand_in: StandIn) -> None:
    stand_in.tell(status())
    page.locator("summary").click()
    expect(page.locator("details[open]")).to_have_count(1)
    stand_in.tell(status(step=200))
    expect(page.get_by_text("200 of 2,000")).to_be_visible()
    expect(page.locator("details[open]")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_on_a_phone(page: Page, stand_in: StandIn, scheme: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    long = "a very long reason " * 20
    stand_in.tell(status(reason=long, warnings=["w" * 300], incidents=[incident(1, headline="x" * 300)]))
    expect(page.locator("p.reason")).to_contain_text(long.strip())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_many_ranks_stay_usable(page: Page, stand_in: StandIn) -> None:
    ranks = [rank(n, state="failed" if n == 700 else "alive") for n in range(1000)]
    stand_in.tell(status(nodes=[{"node": "a", "state": "ok", "heard_s": 0.1, "ranks": ranks}]))
    expect(page.get_by_text("744 more ranks")).to_be_visible()
    expect(page.locator("tr.bad th")).to_have_text("700")
