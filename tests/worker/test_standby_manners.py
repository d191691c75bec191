"""A standby takes what training leaves of the processors, and gives its manners up when it becomes a rank."""

import json
import subprocess
import sys

LOOKS = """
import json, os
from pathlib import Path
from zrun.worker.standby import Manners

def look():
    group = Path("/proc/self/autogroup")
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "batch": os.sched_getscheduler(0) == os.SCHED_BATCH,
        "group": int(group.read_text().split()[-1]) if group.exists() else None,
    }

before = look()
manners = Manners()
waiting = look()
manners.back()
print(json.dumps([before, waiting, look(), os.geteuid() == 0]))
"""


def test_a_waiting_standby_is_the_last_in_line_also_among_sessions_and_a_rank_is_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True, start_new_session=True
    )
    before, waiting, after, may_raise_again = json.loads(done.stdout)
    assert after == before
    if may_raise_again:
        assert waiting["nice"] == 19
        assert waiting["group"] in {19, None}
    else:
        assert waiting["batch"]
