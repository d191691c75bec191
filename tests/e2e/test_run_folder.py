"""What lies in a run's folder when a job is over: no secret, and nothing that others may read."""

import base64
import hashlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
SECRET = 'pa"ss\\Wörd/73f1b0c9+x'
"""With what JSON, URLs and UTF-8 write in more than one way."""


@pytest.fixture(scope="module")
def careless(make_job_once: Callable[..., Any]) -> Any:
    """A job that FAILED after it had printed and raised its secret; with checkpoints and an incident."""
    job = make_job_once(
        str(SCRIPTS / "secretive.py"), extra="secrets: [API_KEY]\n", restart="policy: never", env={"API_KEY": SECRET}
    )
    assert job.run() == 100, job.story()
    assert job.verdict["incidents"][0]["exception"] == "RuntimeError", job.story()
    assert job.verdict["incidents"][0]["step"] == 13, job.story()
    return job


def every(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if not path.is_symlink())


def test_a_rank_has_the_secret_and_no_file_of_the_run_has(careless: Any) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert any(digest in line["msg"] for line in careless.log_lines(1, 1)), careless.story()
    assert any("the key is" in line["msg"] for line in careless.log_lines(1, 1)), careless.story()
    raw = SECRET.encode()
    forms = {raw, base64.b64encode(raw), base64.urlsafe_b64encode(raw), base64.b64encode(b"user:" + raw), b"73f1b0c9"}
    assert any("authorization: Basic" in line["msg"] for line in careless.log_lines(1, 1)), careless.story()
    found = {
        str(path.relative_to(careless.run_dir))
        for path in every(careless.run_dir)
        if path.is_file() and any(form in path.read_bytes() for form in forms)
    }
    assert sorted(found) == []
    assert "73f1b0c9" not in careless.output()


@pytest.mark.long
def test_resume_without_the_secret_is_refused(careless: Any) -> None:
    key = careless.env.pop("API_KEY")
    try:
        done = careless.zrun("resume")
    finally:
        careless.env["API_KEY"] = key
    assert done.returncode == 2, done.stdout + done.stderr
    assert "API_KEY" in done.stderr
    assert careless.verdict["state"] == "FAILED"


def test_nobody_else_may_read_anything_in_the_run_folder_but_what_the_script_made(careless: Any) -> None:
    run = careless.run_dir
    shards = [path for path in every(run / "checkpoints") if path.suffix == ".safetensors"]
    assert shards != []
    assert list((run / "incidents").iterdir()) != []
    open_to_others = {
        str(path.relative_to(run)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in [run, *every(run)]
        if "made" not in path.relative_to(run).parts
        and stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
    }
    assert open_to_others == {}
    assert stat.S_IMODE((run / "made" / "sample.txt").stat().st_mode) == 0o644, "a script's own modes are its own"
