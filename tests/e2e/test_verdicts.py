"""One true verdict: who failed, where and why, the same on the screen, in the files, in every command and on the page."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

SCRIPTS = Path(__file__).resolve().parent / "scripts"
NEVER = "policy: never"
SAME = ("id", "class", "rank", "ranks", "node", "exit_code", "signal", "exception", "message", "step", "batch", "where",
        "collective", "because", "followed", "headline", "frames", "decision")  # fmt: skip


def story(kind: str, steps: int = 12) -> str:
    return f"{SCRIPTS / 'stories.py'} {kind} {steps}"


def last_lines(job: Any, count: int = 30) -> list[str]:
    lines: list[str] = job.output().rstrip().splitlines()
    return lines[-count:]


def block(job: Any) -> list[str]:
    """The verdict, which has to be the last thing on the screen and within 30 lines."""
    lines = last_lines(job)
    begins = [n for n, line in enumerate(lines) if line.startswith(f"{job.verdict['job']} FAILED: ")]
    assert len(begins) == 1, job.output()
    found = lines[begins[0] :]
    assert all(line.startswith("  ") for line in found[1:]), job.output()
    return found


def incident_of(job: Any) -> dict[str, Any]:
    """Of the run's only incident, after a comparison of every place that tells it."""
    status, described = (json.loads(job.zrun(name, "--json").stdout) for name in ("status", "describe"))
    listed = json.loads(job.zrun("incidents", "--json").stdout)
    alone = json.loads(job.zrun("incidents", "1", "--json").stdout)
    on_disk = json.loads((job.run_dir / "incidents" / "0001" / "incident.json").read_text())
    verdict = job.verdict
    first: dict[str, Any] = verdict["incidents"][0]
    for told in (status["incidents"][0], described["incidents"][0], listed[0], alone, on_disk):
        assert {key: told[key] for key in SAME} == {key: first[key] for key in SAME}
    for told in (status, described):
        assert [told[key] for key in ("state", "reason", "exit_code", "attempts")] == [
            verdict[key] for key in ("state", "reason", "exit_code", "attempts")
        ]
    return first


def ends_of(job: Any, attempt: int = 1) -> dict[int, dict[str, Any]]:
    ends: list[dict[str, Any]] = job.verdict["attempts"][attempt - 1]["ends"]
    return {end["rank"]: end for end in ends}


@pytest.mark.long
def test_a_ranks_exit_code_is_told_everywhere_and_is_not_zruns(make_job: Callable[..., Any]) -> None:
    job = make_job(story("sys_exit_7"), restart=NEVER)
    assert job.run() == 100, job.story()
    incident = incident_of(job)
    assert (incident["rank"], incident["exit_code"], incident["class"]) == (1, 7, "crash")
    ends = ends_of(job)
    assert (ends[1]["exit_code"], ends[1]["signal"], ends[1]["cause"]) == (7, None, True)
    assert ends[0]["exit_code"] != 7
    assert not ends[0]["cause"]
    assert ends[0]["reason"]
    said = "\n".join(block(job))
    assert "crash of rank 1 on node" in said
    assert "code 7" in said
    assert "rank-1.jsonl" in said


@pytest.mark.long
def test_a_killed_rank_is_no_success_and_its_signal_is_named(make_job: Callable[..., Any]) -> None:
    job = make_job(story("kill"), restart=NEVER)
    assert job.run() == 100, job.story()
    incident = incident_of(job)
    assert (incident["signal"], incident["exit_code"], incident["class"]) == ("SIGKILL", None, "crash")
    assert ends_of(job)[1]["signal"] == "SIGKILL"
    assert "killed by SIGKILL" in "\n".join(block(job))


@pytest.mark.long
def test_a_failing_import_ends_the_screen_with_one_short_verdict(make_job: Callable[..., Any]) -> None:
    job = make_job(story("at_import"), nproc=4)
    assert job.run() == 100, job.story()
    said = block(job)
    text = "\n".join(said)
    assert "ModuleNotFoundError" in said[0]
    assert "ModuleNotFoundError: No module named 'a_module_nobody_has'" in text
    assert "stories.py:" in text
    assert "import a_module_nobody_has" in text
    incident = incident_of(job)
    assert sorted([*incident["ranks"], *incident["followed"]]) == [0, 1, 2, 3], "who was slower was ended"
    assert f"rank-{incident['rank']}.jsonl" in text


@pytest.mark.long
@pytest.mark.parametrize(("kind", "who", "ranks"), [
    ("all_the_same", "ranks 0-3", [0, 1, 2, 3]), ("most_the_same", "ranks 0-1, 3", [0, 1, 3]),
])  # fmt: skip
def test_equal_errors_are_told_once_with_all_their_ranks(
    make_job: Callable[..., Any], kind: str, who: str, ranks: list[int]
) -> None:
    job = make_job(story(kind), nproc=4, restart=NEVER)
    assert job.run() == 100, job.story()
    text = "\n".join(block(job))
    assert f"crash of {who} on node" in text
    assert text.count("stories.py:") <= 6
    assert text.count("raise ValueError") == 1
    incident = incident_of(job)
    assert incident["ranks"] == ranks
    assert incident["followed"] == [rank for rank in range(4) if rank not in ranks]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "name", "function"), [("abort", "SIGABRT", "abort"), ("segfault", "SIGSEGV", "segfault")]
)
def test_a_native_crash_has_its_signal_its_python_stack_and_its_last_lines(
    make_job: Callable[..., Any], kind: str, name: str, function: str
) -> None:
    job = make_job(story(kind), restart=NEVER)
    assert job.run() == 100, job.story()
    incident = incident_of(job)
    assert incident["signal"] == name
    assert "stories.py:" in incident["where"]
    assert incident["frames"][-1].endswith(f" in {function}")
    text = "\n".join(block(job))
    assert f"killed by {name}" in text
    assert f"in {function}" in text
    assert f"story: {kind}" in text
    folder = job.run_dir / "incidents" / "0001"
    assert "Fatal Python error" in (folder / "last-words.txt").read_text()
    assert f"story: {kind}" in (folder / "last-lines.txt").read_text()


@pytest.mark.long
def test_a_program_reads_from_the_verdict_what_it_needs_to_decide(make_job: Callable[..., Any]) -> None:
    job = make_job(story("chained"), restart=NEVER)
    assert job.run("--json") == 100, job.story()
    incident = incident_of(job)
    assert (incident["exception"], incident["message"]) == ("KeyError", "'missing'")
    assert incident["attempt"] == 1
    assert incident["node"]
    assert incident["frames"][-1].startswith(incident["where"].split(":")[0])
    last_words = (job.run_dir / "incidents" / "0001" / "last-words.txt").read_text()
    assert "KeyError: 'missing'" in last_words
    assert "RuntimeError: the batch could not be made" in last_words


@pytest.mark.long
def test_each_attempt_keeps_how_its_ranks_ended(make_job: Callable[..., Any]) -> None:
    job = make_job(story("kill"))
    assert job.run() == 0, job.story()
    assert [a["outcome"] for a in job.verdict["attempts"]] == ["fault", "finished"]
    assert ends_of(job, 1)[1]["signal"] == "SIGKILL"
    assert {end["exit_code"] for end in ends_of(job, 2).values()} == {0}
    assert sorted(ends_of(job, 2)) == [0, 1]


@pytest.mark.long
def test_a_coordinator_that_is_killed_during_the_cleanup_changes_no_reason(make_job: Callable[..., Any]) -> None:
    job = make_job(story("slow_finally"), restart=NEVER)
    job.start()
    job.until("the incident", lambda: job.status().get("incidents"))
    os.kill(job.pid_of("coordinator"), signal.SIGKILL)
    assert job.finish() == 100, job.story()
    incident = incident_of(job)
    assert (incident["rank"], incident["exception"], incident["followed"]) == (1, "IndexError", [0])


def test_the_page_shows_the_cause_and_the_last_lines_of_each_rank_that_failed(make_job: Callable[..., Any]) -> None:
    job = make_job(story("two_raise", 600))
    job.start("-d")
    assert job.finish() == 0, job.story()
    address = job.until("the coordinator", lambda: json.loads((job.run_dir / "coordinator.json").read_text()))[
        "address"
    ]
    token = (job.run_dir / "token").read_text().strip()
    job.until("attempt 2", lambda: job.status().get("attempt") == 2)
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page()
        page.goto(f"{address}/login#token={token}")
        page.wait_for_url(f"{address}/")
        summary = page.locator("summary", has_text="ValueError: sample 17 is broken")
        expect(summary).to_contain_text("rank 1")
        summary.click()
        expect(page.locator(".frames")).to_contain_text("raise ValueError")
        expect(page.get_by_role("heading", name="Last lines of rank 0")).to_be_visible()
        expect(page.get_by_role("heading", name="Last lines of rank 1")).to_be_visible()
        expect(page.get_by_role("heading", name="Traceback of rank 1")).to_be_visible()
        expect(page.locator("pre", has_text="the loss is not finite").first).to_be_visible()
        expect(page.locator(".ends")).to_contain_text(["", "rank 1: code 1"])
        browser.close()
    job.zrun("stop", "--now")
    job.until("the end", lambda: not job.processes(), 60)
