"""Before a launch: does the object store of a job answer, may the job write there, and whose checkpoints lie there?

Asked in a process with the job's variables, which say where the store is and who asks. Starts nothing else.
"""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from zrun.core import env
from zrun.core.errors import UsageError
from zrun.core.place import ObjectPath
from zrun.core.store_look import answer_in

_WITHIN_S: Final = 120.0


def lying_in(place: ObjectPath, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """{job, name, saved_at} of each checkpoint. UsageError with what the store says and the way out."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "zrun.core.store_look", "scan", str(place)],
            env={**env.snapshot(), **variables}, capture_output=True, text=True, timeout=_WITHIN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"checkpoint.dir {place} did not answer within {_WITHIN_S:.0f} s", "check the network and its address"
        ) from None
    answer = answer_in(done.stdout, done.stderr)
    if "error" in answer:
        raise UsageError(f"checkpoint.dir {place}: {answer['error']}", str(answer["hint"]))
    return list(answer["made"])
