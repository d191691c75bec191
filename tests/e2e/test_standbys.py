"""A restart from standbys: the ranks come back from processes that were waiting, and find the same world."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import SCRIPTS, Job

MakeJob = Callable[..., Job]
SCRIPT = f"{SCRIPTS / 'shown_steps.py'} 5 one 'two  words'"
OF_THE_ATTEMPT = {
    "ZRUN_ATTEMPT", "ZRUN_RESTART_CAUSE", "ZRUN_SHM_DIR", "ZRUN_ATTEMPT_DIR", "ZRUN_MARK", "ZRUN_SETTINGS", "ZRUN_DECK",
    "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}  # fmt: skip
"""They are there in both, with another value."""


def agent_log(job: Job) -> str:
    found = [path.read_text() for path in (job.folder / "runs").glob("*/agent.log")]
    return found[0] if found else ""


def wait_for_standbys(job: Job, ranks: list[int]) -> None:
    job.until("standbys", lambda: f'"ready": {ranks}' in agent_log(job))


def shown(job: Job, into: Path, script: str = SCRIPT, **more: Any) -> Job:
    into.mkdir()
    job.env |= {"E2E_INTO": str(into)}
    job.env.pop("OMP_NUM_THREADS", None)
    return job


def facts(into: Path, attempt: int, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((into / f"attempt-{attempt}-rank-{rank}.json").read_text())
    return found


def test_a_killed_rank_comes_back_from_a_standby_in_the_very_world_that_torchrun_gives(
    make_job: MakeJob, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    job = shown(make_job(SCRIPT, standby=True), into)
    job.start()
    wait_for_standbys(job, [0, 1])
    os.kill(job.ranks()[1]["pid"], signal.SIGKILL)
    assert job.finish() == 0, job.story()
    assert "ranks start from standbys" in agent_log(job)
    assert len(job.verdict["attempts"]) == 2, job.story()
    for rank in (0, 1):
        cold, warm = facts(into, 1, rank), facts(into, 2, rank)
        assert cold["env"].keys() == warm["env"].keys()
        differ = {name for name in cold["env"] if cold["env"][name] != warm["env"][name]}
        assert differ <= OF_THE_ATTEMPT
        assert {k: v for k, v in cold.items() if k != "env"} == {k: v for k, v in warm.items() if k != "env"}
        assert any(line["msg"] == f"the end of rank {rank}" for line in job.log_lines(2, rank))


@pytest.mark.long
def test_ranks_from_standbys_are_told_like_any_other_when_they_fail(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPTS / 'plain_ddp.py'} 100000 0.02", standby=True)
    job.start()
    for attempt in (1, 2, 3):
        job.until(
            f"standbys of attempt {attempt}",
            lambda attempt=attempt: agent_log(job).count('"ready": [0, 1]') >= attempt,  # type: ignore[misc]
        )
        job.wait_for_step(1, attempt)
        if attempt < 3:
            os.kill(job.ranks()[attempt - 1]["pid"], signal.SIGKILL)
    assert agent_log(job).count("ranks start from standbys") == 2
    job.zrun("stop", "--now")
    job.finish()
    first, second = job.verdict["incidents"]
    assert [(one["rank"], one["signal"]) for one in (first, second)] == [(0, "SIGKILL"), (1, "SIGKILL")]


@pytest.mark.long
@pytest.mark.parametrize(
    "extra", ["launcher: torchrun\n", "standby: {enabled: false}\n", "standby: {max_memory: 1MiB}\n"]
)
def test_without_standbys_a_restart_goes_through_torchrun(make_job: MakeJob, extra: str) -> None:
    job = make_job(f"{SCRIPTS / 'plain_ddp.py'} 60 0.05", extra=extra, standby=True)
    job.start()
    job.wait_for_step(20)
    os.kill(job.ranks()[1]["pid"], signal.SIGKILL)
    assert job.finish() == 0, job.story()
    assert "ranks start from standbys" not in agent_log(job)
    assert ("more than standby.max_memory" in job.output()) == ("max_memory" in extra)
