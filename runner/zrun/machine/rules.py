"""The user's own `restart.rules`: which one speaks of this verdict; decides nothing itself."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zrun.machine.blame import Verdict
from zrun.spec.job import Rule


@dataclass(frozen=True, slots=True)
class Match:
    """`what` is the rule in words."""

    do: Literal["fail", "restart"]
    what: str


def first_match(rules: Sequence[Rule], verdict: Verdict) -> Match | None:
    for rule in rules:
        what = _matches(rule, verdict)
        if what:
            return Match(rule.do, what)
    return None


def _matches(rule: Rule, verdict: Verdict) -> str:
    failure = verdict.failure
    if rule.fault is not None:
        return f"class {rule.fault}" if rule.fault == verdict.fault else ""
    if failure is None:
        return ""
    if rule.exit_code is not None:
        return f"exit code {rule.exit_code}" if failure.exit_code == rule.exit_code else ""
    if rule.signal is not None:
        return f"signal {rule.signal}" if _bare(rule.signal) == _bare(failure.signal or "") else ""
    if rule.regex is not None:
        text = "\n".join([failure.exception or "", failure.message or "", failure.traceback or "", *failure.last_lines])
        return f"regex {rule.regex}" if re.search(rule.regex, text) else ""
    return ""


def _bare(signal: str) -> str:
    return signal.upper().removeprefix("SIG")
