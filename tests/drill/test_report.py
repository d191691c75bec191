"""What a person reads in about ten lines, and what a program reads."""

import json
from pathlib import Path

from tests.drill.telling import incident, ran, traced

from zrun.drill import report
from zrun.drill.compare import compare
from zrun.drill.faults import parse, placed
from zrun.drill.outcome import outcomes, problems
from zrun.drill.report import Report
from zrun.drill.runs import Ran

CALM = ran(traced((1, 10)), name="undisturbed")
FROM_5 = [{"attempt": 1, "resumed_from": None}, {"attempt": 2, "resumed_from": {"tier": "memory", "step": 5}}]


def span(seconds: float | None) -> str:
    return f"{seconds:.0f}s"


def reported(run: Ran) -> Report:
    found = outcomes(placed([parse("kill:rank=1,step=6")], 2, 10), run)
    compared = compare(CALM.traced, run.traced)
    return Report(Path("drills/toy"), CALM, run, found, compared, problems(CALM, run, found, compared), (), None)


def text(found: Report) -> str:
    cells = [" | ".join(row) for row in report.rows(found)]
    return "\n".join([*report.heading(found, span), *cells, *report.below(found)])


def test_a_passed_drill_is_told_in_a_few_lines_with_what_each_fault_cost() -> None:
    came = {0: {"at": 5.2, "attempt": 1, "step": 6, "rank": 1}}
    found = reported(ran(traced((1, 5), (6, 10)), incidents=[incident()], attempts=FROM_5, came=came))
    assert text(found).splitlines() == [
        "10 steps on 2 ranks, undisturbed 12s, disturbed 12s; drills/toy",
        "kill rank=1 step=6 | 0.03s | 0.80s | 0 | memory, step 5 | rank 1: killed by SIGKILL (step 5)",
        "losses equal · samples equal · weights equal  (10 steps)",
        "PASSED: every fault was survived",
    ]


def test_a_failed_drill_says_why_and_where_to_look() -> None:
    found = reported(ran(traced((1, 10), loss_at={(0, 3): "7.0"})))
    said = text(found)
    assert "NOT SURVIVED: it never came" in said
    assert "first difference: losses loss at step 3, rank 0" in said
    assert "before the first fault" in said
    assert "disturbed.log" in said


def test_the_json_has_every_time_and_the_first_difference() -> None:
    came = {0: {"at": 5.2, "attempt": 1, "step": 6, "rank": 1}}
    run = ran(traced((1, 5), (6, 10), loss_at={(1, 9): "7.0"}), incidents=[incident()], attempts=FROM_5, came=came)
    value = json.loads(json.dumps(report.as_json(reported(run))))
    assert value["passed"] is False
    assert value["faults"][0]["recovered_s"] == 0.8
    assert value["faults"][0]["survived"] is True
    assert value["equal"]["losses"] == "different"
    assert value["equal"]["first_difference"]["disturbed"] == "7.0"
    assert value["runs"]["undisturbed"]["steps"] == 10
