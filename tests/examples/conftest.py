"""The examples are programs, not a package: their folders join the path, as python does for the folder of a script."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

for folder in ("hybrid", "convnet"):
    sys.path.append(str(EXAMPLES / folder))
