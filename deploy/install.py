"""Make `.venv` beside the clone and install zrun into it: the tried set of packages, said step by step.

Standard library only. Ends with a clear sentence and a non-zero code instead of a half-made environment; running it
again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"
NEEDED_BYTES = 3 << 30


def say(text: str) -> None:
    print(f"zrun install: {text}", file=sys.stderr, flush=True)


def stop(text: str, way_out: str) -> None:
    say(f"{text}\n  -> {way_out}")
    raise SystemExit(1)


def check_machine() -> None:
    """Everything that would fail halfway, asked for first."""
    if sys.version_info < (3, 11):
        stop(f"python {sys.version.split()[0]} is too old", "use python 3.11 or newer (ZRUN_PYTHON=/path/to/it)")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        stop("this python has no venv module", "install it (Debian: apt install python3-venv) and run this again")
    if not os.access(ROOT, os.W_OK):
        stop(f"{ROOT} is not writable, and .venv belongs there", "clone into a folder of your own")
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES and not (VENV / "bin" / "python").exists():
        stop(
            f"{free >> 20} MiB free in {ROOT}; about {NEEDED_BYTES >> 20} MiB are needed",
            "make room and run this again",
        )


def make_venv(*, system_torch: bool) -> None:
    if (VENV / "bin" / "python").exists() and (VENV / "pyvenv.cfg").exists():
        return
    say(f"first use: making {VENV}, which takes about 1.1 GB (more with a CUDA build of torch)")
    command = [sys.executable, "-m", "venv", *(["--system-site-packages"] if system_torch else []), str(VENV)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        stop(f"python -m venv failed: {(done.stderr or done.stdout).strip()[-400:]}", "mend that and run this again")


def importable_torch() -> str | None:
    """The version of a torch that this python already has, e.g. 2.9.1, if it is new enough."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    version = done.stdout.strip()
    parts = version.split(".")
    return version if done.returncode == 0 and tuple(map(int, parts[:2])) >= (2, 6) else None


def pip(*arguments: str, quiet: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(VENV / "bin" / "python"), "-m", "pip", *arguments, "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=quiet, text=True, check=False)


def index_options() -> list[str]:
    index = os.environ.get("ZRUN_TORCH_INDEX")
    return ["--extra-index-url", index] if index else []


def announce_torch(wanted: str) -> None:
    """Say which build pip is going to take and how large it is, before it does."""
    done = pip("install", "--dry-run", "--no-deps", "--quiet", "--report", "-", *index_options(), wanted)
    try:
        item = json.loads(done.stdout)["install"][0]
    except (ValueError, KeyError, IndexError):
        return
    url = item["download_info"]["url"]
    name = urllib.parse.unquote(url.rsplit("/", 1)[-1])
    say(f"torch: {name} ({_size(url)})")
    if "cpu" not in name and sys.platform == "linux":
        say("  this may be the CUDA build with several GB of libraries; for a CPU build set ZRUN_TORCH_INDEX")


def _size(url: str) -> str:
    try:
        if url.startswith("file://"):
            size = Path(urllib.request.url2pathname(url[7:])).stat().st_size
        else:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=10) as answer:
                size = int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError, KeyError):
        return "size unknown"
    return f"{size / 1e6:.0f} MB"


def constraints(system_torch: str | None) -> Path:
    """The tried set; without its torch line where the machine's own torch is used."""
    if system_torch is None:
        return CONSTRAINTS
    kept = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("torch==")]
    own = VENV / "constraints.txt"
    own.write_text("\n".join(kept) + "\n")
    return own


def install(extras: str) -> None:
    system_torch = importable_torch()
    make_venv(system_torch=system_torch is not None)
    if system_torch:
        say(f"using the torch {system_torch} that is already there")
    elif pip("show", "-q", "torch").returncode:
        pinned = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
        announce_torch(pinned)
    began = time.monotonic()
    say("installing" + (f" with the packages for {extras}" if extras else "") + ", about a minute ...")
    target = f"{ROOT}[{extras}]" if extras else str(ROOT)
    done = pip("install", "--quiet", "-c", str(constraints(system_torch)), *index_options(), "-e", target)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        stop(
            "pip could not install everything", "see its words above; then run this again: it goes on where it stopped"
        )
    say(f"ready after {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="an extra of pyproject.toml, for example test")
    extras = parser.parse_args().extras
    check_machine()
    stamp = VENV / (f".zrun-ready-{extras}" if extras else ".zrun-ready")
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first uses at once: the second finds it done
        newest = max(CONSTRAINTS.stat().st_mtime, (ROOT / "pyproject.toml").stat().st_mtime)
        if stamp.exists() and stamp.stat().st_mtime > newest:
            return
        install(extras)
        stamp.touch()
        (VENV / ".zrun-ready").touch()


if __name__ == "__main__":
    main()
