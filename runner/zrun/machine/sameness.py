"""When two failures are the same failure: equal but for numbers, addresses and process ids."""

import re
from typing import Final

from zrun.core.failure import Failure, FailureKind

OFTEN_SENT_BY_OTHERS: Final = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"}
"""Signals that come from outside: two such on different ranks are two accidents, not one bug."""
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+", re.IGNORECASE)


def blanked(text: str) -> str:
    return _VARYING.sub("#", text.partition("\n")[0][:1000])


def key_of(failure: Failure) -> str:
    if failure.exception:
        return f"{failure.exception}|{failure.where or ''}|{blanked(failure.message or '')}"
    if failure.kind is FailureKind.NODE:
        return f"node|{failure.node}"
    if failure.kind in {FailureKind.EARLY, FailureKind.OOM, FailureKind.SETUP, FailureKind.LAUNCH, FailureKind.HUNG}:
        return f"{failure.kind.value}|{failure.phase or ''}|{blanked(failure.message or '')}"
    what = f"signal {failure.signal}" if failure.signal else f"exit {failure.exit_code}"
    return f"{what}|{failure.phase or ''}"
