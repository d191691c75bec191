"""Fails in every attempt but the last, each time another way; for ranks without torch (tests/agent/stand_ins).

Waits at the attempts named in GATES for a file, so that somebody can look at the programs around it meanwhile.
"""

import os
import signal
import subprocess
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

this: Any = globals()["this"]
step: Any = globals()["step"]
attempt, rank = int(os.environ["ZRUN_ATTEMPT"]), int(os.environ["RANK"])
folder, last = Path(os.environ["E2E_FOLDER"]), int(os.environ["LAST"])
this.session()
subprocess.Popen(["setsid", "sleep", "300"])
kept = shared_memory.SharedMemory(f"{folder.parent.name[:40]}-{rank}", create=True, size=4096)
print("attempt", attempt, "x" * 2000)
for number in range(1, attempt + 3):
    step(number, 0.001)
if str(attempt) in os.environ["GATES"].split(","):
    while not (folder / f"go-{attempt}").exists():
        time.sleep(0.01)
if attempt < last and rank == attempt % 2:
    match attempt % 4:
        case 0:
            os.kill(os.getpid(), signal.SIGKILL)
        case 1:
            raise ValueError(f"attempt {attempt} fails")
        case 2:
            os._exit(7)
        case _:
            os.abort()
if attempt < last:
    time.sleep(300)
kept.close()
kept.unlink()
