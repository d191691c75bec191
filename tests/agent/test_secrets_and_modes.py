"""No secret value is left in a run's folder, and nobody but the owner can read there."""

import asyncio
import base64
import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from zrun.agent.main import Hush, json_log
from zrun.core.rows import unpack_rows
from zrun.wire.order import Brief, End, JobOrder
from zrun.wire.report import Doing

SECRET = "s3cr3t-value/9"
LEAKS = """
import base64, json, os, sys, time
value = os.environ["KEY"]
print("plain", value)
print(json.dumps({"level": "error", "msg": value, "deep": {"key": [value]}}))
print(base64.b64encode(("user:" + value).encode()).decode())
sys.stdout.write("half " + value[:8]); sys.stdout.flush()
this.session()
deck.put_metrics({"note": value})
step(1)
if rank == 1:
    raise ValueError(value)
time.sleep(60)
"""


def holding(folder: Path, value: str) -> list[str]:
    forms = (value, base64.b64encode(value.encode()).decode()[4:-4], value[:8])
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(form.encode() in path.read_bytes() for form in forms)
    ]


def open_to_others(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    return [f"{path.relative_to(folder)} {stat.S_IMODE(path.stat().st_mode):o}" for path in found]


def test_secrets_are_in_no_file_and_no_report_and_files_are_the_owners_alone(place: Any) -> None:
    async def story() -> None:
        brief = place.brief(LEAKS, setup='echo "setup has $KEY"', secrets=["KEY"])
        brief = msgspec.structs.replace(brief, secrets={"KEY": SECRET})
        async with place.coordinator(brief) as fake, place.agent(fake):
            await fake.run(1)
            failed = await fake.until_doing(Doing.FAILED, 1)
            assert failed.failures[0]["message"] == "[secret]"
            assert SECRET not in json.dumps([failed.failures, failed.metrics, failed.warnings])
            await fake.end(1, End.KILL, collect=1)
            await fake.until_doing(Doing.IDLE, 1)
            await fake.order(JobOrder(attempt=1, release=True))
            await fake.until_gone()

    made = {path.name for path in place.run_dir.iterdir()} | {"coordinator.json"}
    asyncio.run(story())
    assert holding(place.run_dir, SECRET) == []
    lines = (place.run_dir / "logs" / "attempt-1" / "rank-1.jsonl").read_text()
    assert lines.count("[secret]") >= 5
    assert (place.run_dir / "node-a" / "setup.log").read_text() == "setup has [secret]\n"
    assert [line for line in open_to_others(place.run_dir) if line.split()[0] not in made] == []
    attempt = {path.name for path in (place.run_dir / "node-a" / "attempt-1").iterdir()}
    assert attempt == {"torchrun.log"}


def test_a_brief_without_secrets_takes_none_away_and_a_new_spec_is_taken(place: Any) -> None:
    script = 'import os\nthis.session()\nstep(1)\nprint(os.environ["KEY"] == "s3cr3t-value/9", os.environ["MORE"])'

    async def story() -> None:
        first = place.brief(script, env={"MORE": "one"}, setup="echo one >> setups", secrets=["KEY"])
        first = msgspec.structs.replace(first, secrets={"KEY": SECRET})
        async with place.coordinator(first) as fake, place.agent(fake):
            await fake.run(1)
            await fake.until_doing(Doing.FINISHED, 1)
            for attempt, setup in ((2, "echo one >> setups"), (3, "echo two >> setups")):
                await fake.end(attempt - 1)
                await fake.until_doing(Doing.IDLE, attempt - 1)
                changed = place.brief(script, env={"MORE": str(attempt)}, setup=setup, secrets=["KEY"])
                await fake.say(Brief([changed]))
                await fake.run(attempt)
                await fake.until_doing(Doing.FINISHED, attempt)

    asyncio.run(story())
    said = {
        attempt: json.loads((place.run_dir / "logs" / f"attempt-{attempt}" / "rank-0.jsonl").read_text())["msg"]
        for attempt in (1, 2, 3)
    }
    assert said == {1: "True one", 2: "True 2", 3: "True 3"}
    assert (place.work / "setups").read_text() == "one\ntwo\n"


def test_the_agents_own_log_hides_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    hush = Hush()
    log = json_log(hush)
    hush.hide([SECRET])
    said_text = f"with {SECRET}"
    try:
        json.loads(SECRET)
    except ValueError as error:
        error.add_note(SECRET)
        log.exception(said_text, error=error, why=OSError(SECRET), deep={"a": [SECRET]})
    said = json.loads(capsys.readouterr().err)
    assert SECRET not in json.dumps(said)
    assert (said["msg"], said["deep"]) == ("with [secret]", {"a": ["[secret]"]})


def test_an_agent_that_never_met_a_coordinator_does_not_say_that_training_goes_on() -> None:
    from zrun.agent.link import Link

    said: list[str] = []

    async def story() -> None:
        heard = asyncio.Event()

        def note(_log: Any, _level: str, fields: Any) -> Any:
            said.append(fields["event"])
            heard.set()
            raise structlog.DropEvent

        log = structlog.wrap_logger(structlog.PrintLogger(), processors=[note])
        link = Link(lambda: "http://127.0.0.1:9", lambda: "x", lambda: None, list, lambda _: None, log)  # type: ignore[arg-type, return-value]
        task = asyncio.create_task(link.run())
        await asyncio.wait_for(heard.wait(), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
    assert said == ["no coordinator at http://127.0.0.1:9, trying again"]


def test_a_phase_of_the_scripts_own_is_told_by_name(place: Any) -> None:
    script = """
import time
from zrun.core.deck import Phase
this.session()
if rank == 1:
    deck.enter_phase(Phase.OWN, "tokenize")
time.sleep(60)
"""

    async def story() -> None:
        async with place.coordinator(place.brief(script)) as fake, place.agent(fake):
            await fake.run(1)
            report = await fake.until(lambda r: bool(r.phase_names))
            assert report.phase_names == {"1": "tokenize"}
            assert unpack_rows(report.rows)[1].phase.label == "own"
            await fake.end(1)
            await fake.until_doing(Doing.IDLE, 1)

    asyncio.run(story())
