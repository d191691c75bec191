"""Whether this machine has what a job names: folder, script, interpreter, secrets. Knows nothing about YAML's text."""

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from zrun.spec.job import JobSpec
from zrun.spec.kinds import closest
from zrun.spec.nodes import Node, Pairs
from zrun.spec.problem import Problems, Span, quoted

_PYTHON_WITHIN_S: Final = 10.0
_MOST_SAID: Final = 4096
_ASKED: Final = "print(6 * 7)"
_ANSWER: Final = "42"


def find(root: Pairs, *keys: str) -> Span:
    """Where a value stands; the whole file where it does not."""
    node: Node = root
    for key in keys:
        child = node.get(key) if isinstance(node, Pairs) else None
        if child is None:
            break
        node = child
    return node.span


def check_machine(spec: JobSpec, root: Pairs, caller: Mapping[str, str], problems: Problems) -> None:
    """What must be there where the job is started."""
    workdir = Path(spec.workdir)
    if reason := _absent(workdir.is_dir, "no folder"):
        problems.add(find(root, "workdir"), f"workdir: {reason} {spec.workdir}")
        return
    if spec.run[0] != "-m" and (reason := _absent((workdir / spec.run[0]).is_file, "no file")):
        problems.add(find(root, "run"), f"run: {reason} {workdir / spec.run[0]}", suggestion=_script_hint(spec))
    if spec.python is not None:
        _check_python(spec.python, spec.workdir, find(root, "python"), caller, problems)
    for name in spec.secrets:
        if name not in caller:
            message = f"secret {quoted(name)} is not set in your environment"
            problems.add(find(root, "secrets"), message, suggestion=f"export {name}=...")


def _absent(there: Callable[[], bool], otherwise: str) -> str:
    """Why a path is not there (too long a name, no right to look), or nothing."""
    try:
        return "" if there() else otherwise
    except OSError as error:
        return f"{otherwise} ({error.strerror}):"


def _script_hint(spec: JobSpec) -> str:
    try:
        scripts = sorted(one.name for one in Path(spec.workdir).iterdir() if one.suffix == ".py")
    except OSError:
        scripts = []
    return closest(spec.run[0], scripts) or (f"there are {', '.join(scripts[:5])}" if scripts else "")


def _check_python(python: str, workdir: str, span: Span, caller: Mapping[str, str], problems: Problems) -> None:
    if "/" in python:
        if reason := _absent(Path(python).is_file, "no file"):
            problems.add(span, f"python: {reason} {python}", suggestion="make the environment first")
            return
    elif shutil.which(python, path=caller.get("PATH")) is None:
        problems.add(span, f"python: no program {quoted(python)} in your PATH", suggestion="make the environment first")
        return
    if wrong := _tried(python, workdir, caller):
        problems.add(span, f"python: {python} runs no Python: {wrong}", expected="an interpreter that runs")


def _tried(python: str, workdir: str, caller: Mapping[str, str]) -> str:
    """What is wrong with an interpreter, asked for the simplest there is; nothing if it answers."""
    command = [shutil.which(python, path=caller.get("PATH")) or python, "-c", _ASKED]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=workdir,
            env=dict(caller), start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    deadline = time.monotonic() + _PYTHON_WITHIN_S
    try:
        words = _said(child, deadline).decode("utf-8", "replace").split("\n")
        code = child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"it was not done within {_PYTHON_WITHIN_S:.0f} s"
    finally:
        _end(child)
    lines = [line.strip() for line in words if line.strip()]
    if code == 0 and lines and lines[-1] == _ANSWER:
        return ""
    how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
    return f"{how}, {quoted(lines[-1]) if lines else 'and it said nothing'}"


def _said(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Its output up to a limit; its own children may hold the pipe open, so that the deadline counts, not its end."""
    assert child.stdout is not None
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while len(said) < _MOST_SAID and (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                more = os.read(child.stdout.fileno(), _MOST_SAID)
                if not more:
                    break
                said += more
    return said


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    child.stdout.close()
    try:
        os.killpg(child.pid, signal.SIGKILL)  # its session holds nobody but it and its children
    except (ProcessLookupError, PermissionError):
        pass  # all have ended
    child.wait()
