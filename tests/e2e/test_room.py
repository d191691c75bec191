"""A disk that is too small for a single checkpoint is said before anything is trained for it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.conftest import SCRIPTS

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_a_run_that_could_never_save_is_refused_before_its_first_step(make_job: Callable[..., Any]) -> None:
    job = make_job(f"{SCRIPTS / 'huge.py'}")
    job.start()
    assert job.finish() == 100, job.story()
    verdict = job.verdict
    assert verdict["state"] == "FAILED", job.story()
    for incident in verdict["incidents"]:
        assert (incident["class"], incident["rank"]) == ("disk", 0), job.story()
        assert "disk full: 4000000000000" in incident["headline"], job.story()
        assert "bytes needed for a checkpoint in" in incident["headline"], job.story()
        assert "bytes free" in incident["headline"], job.story()
    assert len(verdict["attempts"]) == 2, "no restart loop: the same failure twice is enough"
    assert not any("trained" in line["msg"] for line in job.log_lines(1, 0)), job.story()
    assert not list((job.run_dir / "checkpoints").glob("step-*")), job.story()
