"""Runs the user's script or module as `__main__`, as `python SCRIPT` and `python -m MODULE` do.

A fresh module takes the place of ours in sys.modules, with the file and spec that multiprocessing's spawn looks for.
"""

import importlib.machinery
import importlib.util
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType, TracebackType


def _fresh_main() -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def load_script(path: str, arguments: list[str]) -> Callable[[], None]:
    """Ready to run the file at `path`. Raises SystemExit(2) if it cannot be opened."""
    sys.argv[:] = [path, *arguments]
    file = Path(path)
    if file.is_dir() or file.suffix in {".pyc", ".zip", ".pyz", ".egg"}:
        return lambda: _discard(runpy.run_path(path, run_name="__main__"))
    try:
        with io.open_code(str(file.absolute())) as source:
            text = source.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {str(file.absolute())!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if not sys.flags.safe_path:
        sys.path[0] = str(file.resolve().parent)
    module = _fresh_main()
    module.__file__ = str(file.absolute())
    module.__dict__["__cached__"] = None
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", module.__file__)
    return lambda: _execute(compile(text, str(file.absolute()), "exec", dont_inherit=True), module)


def load_module(name: str, arguments: list[str]) -> Callable[[], None]:
    """Ready to run module `name` (or `name.__main__` of a package). Raises SystemExit(1) if there is none."""
    sys.argv[:] = ["-m", *arguments]
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = _find(name)
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        raise SystemExit(1)
    sys.argv[0] = spec.origin or "-m"
    module = _fresh_main()
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    module.__file__ = spec.origin
    module.__dict__["__cached__"] = spec.cached
    loader = spec.loader

    def run() -> None:
        code = loader.get_code(spec.name)
        if code is None:
            raise ImportError(f"no code object available for {spec.name}")
        _execute(code, module)

    return run


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise  # a package on the way imports something that is missing: the user's error, with its traceback


def _execute(code: CodeType, module: ModuleType) -> None:
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what this program is for


def _discard(_: object) -> None:
    pass


def without_our_frames(error: BaseException) -> TracebackType | None:
    """The traceback as it would be without the bootstrap: its outermost frames are not the user's."""
    folder = f"{Path(__file__).parent}/"
    trace = error.__traceback__
    # A script that does not compile never had a frame of its own.
    while trace is not None and (trace.tb_next is not None or isinstance(error, SyntaxError)):
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((folder, "<frozen")) and file != runpy.__file__:
            break
        trace = trace.tb_next
    return trace
