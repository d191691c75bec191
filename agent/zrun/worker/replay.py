"""One batch again, alone: the script runs in one process up to its loop, gets that global batch whole, and ends.

Asked for by ZRUN_REPLAY, which only `zrun batches --replay` sets. Nothing is restored and nothing is saved. It knows
nothing about how a batch is read.
"""

import json
import pdb  # noqa: T100 - handing a batch over to a debugger is what this file is for
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from zrun.core import env, user_code
from zrun.core.batch import BatchId
from zrun.core.batches import skipped_before
from zrun.core.errors import UsageError
from zrun.core.user_code import UserCode
from zrun.data.loader import Loader


@dataclass(frozen=True, slots=True)
class Replay:
    """`ended`: of a stream, the epochs that were over when the batch was read; `debug`: stop in the script's loop."""

    batch: BatchId
    ended: list[list[int]]
    debug: bool

    def seek(self, loader: Loader | None, quarantined: Collection[str]) -> int:
        """Put the loader before that batch; gives the steps done before it. Raises UsageError if it is another one."""
        if loader is None:
            raise UsageError("there is no batch to replay: this Session has no Loader")
        ordinal = self.batch.ordinal
        left_out = {*quarantined} - {str(self.batch)}
        loader.seek(ordinal - 1, left_out, self.ended)
        found = loader.batch_id(ordinal)
        if found != self.batch:
            raise UsageError(
                f"batch {ordinal} is {found} now and not {self.batch}",
                "the data, its order, the seed or the global batch has changed since",
            )
        return ordinal - 1 - skipped_before(ordinal, left_out)

    def hand_over(self, frame: FrameType | None, step: int, samples: int) -> None:
        """Say what comes; with `debug` the debugger stops at the next line of the script's loop. Called last of all."""
        print(f"zrun: step {step}, batch {self.batch}, {samples} samples, in one process", file=sys.stderr, flush=True)
        if self.debug:
            pdb.Pdb().set_trace(_users(frame))


def asked() -> Replay | None:
    """None in an ordinary run."""
    text = env.get(env.REPLAY)
    if not text:
        return None
    value = json.loads(text)
    return Replay(BatchId.parse(value["batch"]), value["ended"], value["debug"])


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own: a progress bar may stand between the loop and us."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    users = UserCode((user_code.folder(Path(script).parent),) if script else ())
    found = frame
    while found is not None and not users.has(found.f_code.co_filename):
        found = found.f_back
    return found or frame
