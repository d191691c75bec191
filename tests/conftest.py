"""What every test gets: a registry of its own, no launcher's variables, and no way to be skipped in silence."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.s3_server import S3Server, served

ALLOWED_TO_SKIP: frozenset[str] = frozenset()
"""Test ids that may be skipped, each with its reason beside it."""

skipped: list[str] = []

settings.register_profile("shared machines", deadline=None)
settings.load_profile("shared machines")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a script, which ignores Ctrl-C: the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # begun under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    for name in [n for n in os.environ if n.startswith("ZRUN_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with served(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store with one empty bucket; this process and its children find it."""
    from zrun.core import object_store

    s3_process.reset()
    for name, value in s3_process.env.items():
        monkeypatch.setenv(name, value)
    object_store.forget_clients()
    yield s3_process
    object_store.forget_clients()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid not in ALLOWED_TO_SKIP and not hasattr(report, "wasxfail"):
        skipped.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if skipped and session.exitstatus == 0:
        print(f"\na skipped test is a failed one: {', '.join(skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
