"""Loaded into the coordinator of a job that is recorded (PYTHONPATH): writes down all that the hang judge is shown.

One JSON line for each look at which a report was new or the judge said something; core/rows.py packs the rows.
"""

import base64
import json
import os
import sys
from typing import Any

INTO = os.environ.get("E2E_RECORD_INTO", "")


def record() -> None:
    from zrun.core.rows import pack_rows
    from zrun.machine.hang import HangJudge

    plain = HangJudge.look
    newest: list[Any] = []

    def look(self: Any, rows: Any, now: float, ages: Any, nodes: Any, resumed: Any = None, names: Any = None,
             standings: Any = None) -> Any:  # fmt: skip
        learned = self.learned()
        said = plain(self, rows, now, ages, nodes, resumed, names, standings)
        packed = base64.b64encode(pack_rows(list(rows.values()))).decode()
        if said or newest[:1] != [packed]:
            newest[:] = [packed]
            line = {
                "now": round(now, 3), "rows": packed, "age": round(max(ages.values()), 3), "nodes": nodes,
                "resumed": resumed, "names": names or {}, "learned": [learned.step_s, learned.warm_s],
                "standings": {rank: [one.pack() for one in at] for rank, at in (standings or {}).items()},
                "said": [[type(one).__name__, getattr(one, "kind", ""), getattr(one, "ranks", [])] for one in said],
                "attempt": self._attempt,
            }  # fmt: skip
            with open(INTO, "a") as file:  # noqa: PTH123 - as little as possible is imported here
                file.write(json.dumps(line) + "\n")
        return said

    HangJudge.look = look  # type: ignore[method-assign, assignment]


if INTO and "coordinator" in sys.orig_argv:
    record()
