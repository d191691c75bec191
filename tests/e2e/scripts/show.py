"""Writes down what a rank was given, under torchrun or zrun alike: environment, arguments, place; into E2E_INTO."""

import json
import os
import sys
from pathlib import Path

facts = {
    "env": {name.decode("latin-1"): value.decode("latin-1") for name, value in os.environb.items()},
    "argv": sys.argv, "name": __name__, "file": __file__, "cwd": str(Path.cwd()), "path0": sys.path[0],
    "cpus": sorted(os.sched_getaffinity(0)),
}  # fmt: skip
Path(os.environ["E2E_INTO"], f"rank-{os.environ['RANK']}.json").write_text(json.dumps(facts))
