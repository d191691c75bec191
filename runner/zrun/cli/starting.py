"""Start a run's supervisor, detached from this terminal, and wait until the coordinator answers.

Says in words what failed instead of waiting for ever. Knows nothing about job files.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from zrun.cli.children import open_log
from zrun.cli.lookup import Target, address_in, read_json, supervised
from zrun.cli.supervisor import facts_path, log_path, resume_path
from zrun.core import durable
from zrun.core.errors import NotAllowedError, NotFoundError, UnreachableError, ZrunError
from zrun.core.own_log import readable
from zrun.core.runfolder import RunFolder

STARTS_WITHIN_S: Final = 90.0
ENDS_WITHIN_S: Final = 40.0


def ask_resume(folder: RunFolder, options: dict[str, object]) -> None:
    """Leave word for the coordinator, and take back what verdict.json says: the job is no longer over."""
    verdict = read_json(folder.verdict)
    if verdict:
        durable.write_json(
            folder.verdict, {**verdict, "state": "PENDING", "reason": "about to be resumed", "exit_code": None}
        )
    durable.write_json(resume_path(folder), options)


def start_supervisor(folder: RunFolder) -> "subprocess.Popen[bytes]":
    """In a session of its own: neither Ctrl-C nor the end of the terminal reaches it."""
    old = address_in(folder)
    port = urlsplit(old).port or 0 if old else 0
    folder.coordinator.unlink(missing_ok=True)
    with open_log(folder.supervisor_log) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "zrun.cli.supervisor", str(folder.root), str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder.root, start_new_session=True,
        )  # fmt: skip


def wait_for_answer(
    target: Target, supervisor: "subprocess.Popen[bytes]", pause: Callable[[float], None] = time.sleep
) -> None:
    """Until the coordinator knows the job. Raises ZrunError with the last lines of the log if it cannot start."""
    folder = target.folder
    assert folder is not None
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        if supervisor.poll() is not None:
            raise ZrunError(why_it_failed(folder), f"more is in {folder.root}/*.log")
        if address_in(folder):
            try:
                with target.client(timeout_s=2.0) as client:
                    client.status(target.job)
            except (UnreachableError, NotFoundError, NotAllowedError):
                pass  # not serving yet, or another program still has the address
            else:
                return
        pause(0.05)
    raise ZrunError(f"the coordinator did not answer within {STARTS_WITHIN_S:.0f} s", why_it_failed(folder))


def wait_for_end(folder: RunFolder, pause: Callable[[float], None] = time.sleep) -> bool:
    """Until the supervisor of a job that is over has gone; False if it stays."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    while supervised(folder):
        if time.monotonic() >= deadline:
            return False
        pause(0.05)
    return True


def why_it_failed(folder: RunFolder) -> str:
    """What the supervisor said of its end, and the last lines of the program that would not live."""
    failed = str(read_json(facts_path(folder)).get("failed") or "")
    program = "agent" if failed.startswith("the agent") else "coordinator"
    lines = last_lines(log_path(folder, program), 8)
    if not failed and not lines:
        program, lines = "supervisor", last_lines(folder.supervisor_log, 8)
    text = failed or "the supervisor ended before the coordinator answered"
    shown = "\n".join(f"    {readable(line)}" for line in lines)
    return text + (f"; the end of {program}.log:\n{shown}" if lines else "")


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a text file, reading at most 64 KiB of it; [] if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []
