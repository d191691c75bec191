"""Scripts of the real frameworks, unedited, under `zrun launch`: steps, phases, a hang named and ended, their own resume.

Tiny models on gloo, two ranks. transformers, accelerate and lightning come with the extra `frameworks`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
SCRIPTS = Path(__file__).resolve().parent / "scripts"
HF = f"{SCRIPTS / 'hf.py'} out eval_strategy=steps eval_steps=10 save_strategy=steps save_steps=10"
QUICK = "watchdog: {patience: 2s, step: 4s}\n"
RUNS = {
    "transformers": (f"{HF} max_steps={{steps}}", 10),
    "lightning.pytorch": (f"{SCRIPTS / 'pl.py'} lightning.pytorch out {{steps}}", 10),
    "pytorch_lightning": (f"{SCRIPTS / 'pl.py'} pytorch_lightning out {{steps}}", 10),
    "accelerate": (f"{SCRIPTS / 'accel.py'} out {{steps}}", None),
}
"""Command, and the step its second attempt says that it resumed at (Accelerate numbers no steps)."""


def phases_of(job: Any) -> set[str]:
    """Phases that a rank was seen in while the job ran."""
    seen: set[str] = set()

    def over() -> bool:
        seen.update(rank["phase"] for rank in job.ranks().values())
        return job.launches[-1].poll() is not None

    job.until("the job ends", over, 200)
    return seen


@pytest.mark.parametrize("framework", RUNS)
def test_a_sleeping_rank_is_named_with_its_step_and_the_framework_goes_on_from_its_own_checkpoint(
    make_job: Callable[..., Any], framework: str
) -> None:
    run, resumed = RUNS[framework]
    job = make_job(run.format(steps=25), extra=QUICK, env={"HURT": "1:17:600"})
    assert job.run(timeout=250) == 0, job.story()
    verdict = job.verdict
    (incident,) = verdict["incidents"]
    assert (incident["class"], incident["rank"], incident["step"]) == ("hang", 1, 17), job.story()
    assert "rank 1 not there (phase step, step 17" in incident["headline"], job.story()
    assert len(verdict["attempts"]) == 2
    assert any("done at 25" in line["msg"] for line in job.log_lines(2, 0)), job.story()
    came_from = verdict["attempts"][1]["resumed_from"]
    assert (came_from["step"] if came_from else None) == resumed, job.story()
    if resumed:  # Accelerate's steps are those of its optimizers, from 1 in each attempt
        assert (verdict["step"], verdict["total_steps"]) == (25, 25), job.story()


SLOW = {"EVAL_PAUSE": "5", "SAVE_PAUSE": "10"}


@pytest.mark.parametrize(
    ("framework", "seen"),
    [("transformers", {"step", "eval", "save"}), ("lightning.pytorch", {"step", "eval", "save"}),
     ("accelerate", {"step", "eval", "save"})],
)  # fmt: skip
def test_a_slow_evaluation_and_a_slow_save_are_phases_and_alarm_nobody(
    make_job: Callable[..., Any], framework: str, seen: set[str]
) -> None:
    run, told = RUNS[framework]
    slow = {**SLOW, "EVAL_PAUSE": "1"} if framework == "transformers" else SLOW
    job = make_job(run.format(steps=20), extra=QUICK, env={**slow, "PREDICT": "1"})
    job.start()
    phases = phases_of(job)
    assert job.finish() == 0, job.story()
    assert phases >= seen, job.story()
    assert job.verdict["incidents"] == [], job.story()
    events = [json.loads(line) for line in (job.run_dir / "events.jsonl").read_text().splitlines()]
    assert not [event for event in events if event.get("event") == "Suspected"], job.story()
    if told:
        assert job.status()["total_steps"] == 20
