"""Whether an exception in flight will surely leave the script: small scripts whose cleanup asks while it runs."""

import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest

from zrun.worker import unwinding
from zrun.worker.exception_table import guarded_ranges, handler_of
from zrun.worker.session import Session


def calls_the_script(script: Callable[[], None]) -> None:
    try:
        script()
    except BaseException:
        return


def judged(text: str) -> list[bool]:
    """What is thought of the exception in flight at each call of `ask()` in the script."""
    answers: list[bool] = []
    me = threading.get_ident()

    def ask(*_: object) -> None:
        error = unwinding.in_flight(me)
        assert error is not None, "nothing is in flight"
        answers.append(unwinding.fate_of(error, me, calls_the_script.__code__) is unwinding.Fate.LEAVES)

    names: dict[str, Any] = {"__name__": "__main__", "ask": ask, "Session": Session}
    code = compile(textwrap.dedent(text), "script.py", "exec")
    calls_the_script(lambda: exec(code, names))
    return answers


LEAVES = {
    "finally": """
        try:
            raise ValueError
        finally:
            ask()
    """,
    "finally with work that may fail and is caught in it": """
        try:
            raise ValueError
        finally:
            try:
                ask()
            except Exception:
                pass
    """,
    "except body that raises on in each of its ways": """
        try:
            raise ValueError
        except ValueError as error:
            ask()
            if error.args:
                raise RuntimeError("worse") from error
            raise
    """,
    "except body that ends in sys.exit": """
        import sys
        try:
            raise ValueError
        except Exception:
            ask()
            sys.exit(3)
    """,
    "under clauses for other exceptions": """
        import types
        classes, Two = types.SimpleNamespace(One=KeyError), (OSError, EOFError)
        def work():
            for _ in range(3):
                try:
                    try:
                        raise ValueError
                    finally:
                        ask()
                except (classes.One, IndexError, Two):
                    pass
                except KeyboardInterrupt:
                    return
        work()
    """,
    "under a clause that catches all and raises on": """
        def work():
            try:
                raise ValueError
            finally:
                ask()
        try:
            work()
        except:
            print("so it is")
            raise
    """,
    "with whose exit gives nothing": """
        class Slow:
            def __enter__(self): return self
            def __exit__(self, *_): ask()
        with Slow() as slow, open("/dev/null") as file:
            raise ValueError
    """,
    "under with blocks whose exits give nothing": """
        import threading
        class Quiet:
            def __init__(self, a, b=1): pass
            def __enter__(self): return self
            def __exit__(self, *_): return None
        lock, quiet = threading.Lock(), Quiet(0)
        def work(n):
            with Quiet(n, b=list(range(n))) as one, lock, quiet, open("/dev/null", "rb") as file:
                try:
                    raise ValueError
                finally:
                    ask()
        work(3)
    """,
    "with of a generator that only cleans up": """
        from contextlib import contextmanager
        @contextmanager
        def managed(name):
            try:
                yield name
            finally:
                ask()
        with managed("x") as x:
            raise ValueError
    """,
    "under a generator that only cleans up": """
        from contextlib import contextmanager
        @contextmanager
        def managed(name):
            try:
                yield name
            except OSError:
                pass
            finally:
                print(name)
        with managed("x") as x:
            try:
                raise ValueError
            finally:
                ask()
    """,
    "under torch's and zrun's own": """
        import torch
        with torch.no_grad():
            with Session() as run:
                try:
                    raise ValueError
                finally:
                    ask()
    """,
    "torch's record over main": """
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            try:
                raise ValueError
            finally:
                ask()
        main()
    """,
    "generator in a loop": """
        def batches():
            try:
                yield 1
                raise ValueError
            finally:
                ask()
        for batch in batches():
            pass
    """,
    "another raised in a finally": """
        try:
            try:
                raise ValueError
            finally:
                raise OSError
        finally:
            ask()
    """,
    "group": """
        try:
            raise ExceptionGroup("two", [ValueError(), OSError()])
        finally:
            ask()
    """,
    "interrupt under except Exception": """
        try:
            try:
                raise KeyboardInterrupt
            finally:
                ask()
        except Exception:
            pass
    """,
    "run by runpy": """
        import runpy, tempfile, pathlib
        folder = tempfile.mkdtemp()
        path = pathlib.Path(folder, "inner.py")
        path.write_text("try:\\n    raise ValueError\\nfinally:\\n    ask()\\n")
        runpy.run_path(str(path), init_globals={"ask": ask})
    """,
}


@pytest.mark.parametrize("name", LEAVES)
def test_what_nobody_will_catch_leaves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "__enter__", lambda self: self)
    monkeypatch.setattr(Session, "__init__", lambda self: None)
    monkeypatch.setattr(Session, "_here", None, raising=False)
    answers = judged(LEAVES[name])
    assert answers, "the script never came to its cleanup"
    assert all(answers)


MAY_STAY = {
    "retry loop, in its except body": """
        for _ in range(3):
            try:
                raise OSError
            except OSError:
                ask()
    """,
    "retry loop that gives up the third time": """
        for n in range(3):
            try:
                raise OSError
            except OSError:
                ask()
                if n == 2:
                    raise
    """,
    "retry loop, in a finally under it": """
        def work():
            try:
                raise ConnectionError
            finally:
                ask()
        for _ in range(3):
            try:
                work()
            except OSError:
                pass
    """,
    "retry of anything": """
        def work():
            try:
                raise ValueError
            finally:
                ask()
        def retried(function, times):
            while times:
                try:
                    return function()
                except BaseException as error:
                    last = error
                    times -= 1
            raise last
        retried(work, 3)
    """,
    "a clause that nobody can read": """
        kinds = {"all": ValueError}
        try:
            try:
                raise ValueError
            finally:
                ask()
        except kinds["all"]:
            pass
    """,
    "a base class": """
        class Mine(ValueError): pass
        try:
            try:
                raise Mine
            finally:
                ask()
        except (OSError, ValueError):
            pass
    """,
    "suppress": """
        from contextlib import suppress
        with suppress(ValueError):
            try:
                raise ValueError
            finally:
                ask()
    """,
    "exit stack": """
        from contextlib import ExitStack, suppress
        with ExitStack() as stack:
            stack.enter_context(suppress(ValueError))
            stack.callback(ask)
            raise ValueError
    """,
    "exit that gives true": """
        class Deaf:
            def __enter__(self): return self
            def __exit__(self, *_):
                ask()
                return True
        with Deaf():
            raise ValueError
    """,
    "exit that gives what it was told": """
        class Told:
            def __init__(self, deaf): self.deaf = deaf
            def __enter__(self): return self
            def __exit__(self, *_):
                if self.deaf:
                    return self.deaf
                return False
        with Told(True):
            try:
                raise ValueError
            finally:
                ask()
    """,
    "generator that catches": """
        from contextlib import contextmanager
        @contextmanager
        def managed():
            try:
                yield
            except Exception:
                ask()
        with managed():
            raise ValueError
    """,
    "under a generator that catches": """
        from contextlib import contextmanager
        @contextmanager
        def managed():
            try:
                yield
            except Exception:
                pass
        with managed():
            try:
                raise ValueError
            finally:
                ask()
    """,
    "finally that returns": """
        def work():
            try:
                raise ValueError
            finally:
                ask()
                return 1
        work()
    """,
    "finally that goes on": """
        for _ in range(2):
            try:
                raise ValueError
            finally:
                ask()
                continue
    """,
    "except star": """
        try:
            try:
                raise ExceptionGroup("two", [ValueError(), OSError()])
            finally:
                ask()
        except* ValueError:
            pass
    """,
    "task of an event loop": """
        import asyncio
        async def work():
            try:
                raise ValueError
            finally:
                ask()
        asyncio.run(work())
    """,
    "hasattr": """
        class Lazy:
            @property
            def value(self):
                try:
                    raise AttributeError("value")
                finally:
                    ask()
        hasattr(Lazy(), "value")
    """,
    "property with a fallback": """
        class Lazy:
            @property
            def value(self):
                try:
                    raise AttributeError("value")
                finally:
                    ask()
            def __getattr__(self, name): return 1
        Lazy().value
    """,
    "lazy attribute that is then said not to be there": """
        class Lazy:
            def __getattr__(self, name):
                try:
                    return {}[name]
                except KeyError:
                    ask()
                    raise AttributeError(name) from None
        hasattr(Lazy(), "value")
    """,
    "iteration by index": """
        class Old:
            def __getitem__(self, index):
                try:
                    raise IndexError
                finally:
                    ask()
        for _ in Old(): pass
    """,
    "end of an iterator": """
        class New:
            def __iter__(self): return self
            def __next__(self):
                try:
                    raise StopIteration
                finally:
                    ask()
        for _ in New(): pass
    """,
    "destructor": """
        class Late:
            def __del__(self):
                try:
                    raise ValueError
                finally:
                    ask()
        late = Late()
        del late
    """,
    "training in an except body": """
        try:
            raise FileNotFoundError("no checkpoint yet")
        except FileNotFoundError:
            for step in range(3):
                ask()
    """,
    "another one that an outer clause is for, raised in an except body": """
        try:
            try:
                raise ValueError
            except ValueError as error:
                ask()
                raise OSError("again, please") from error
        except OSError:
            pass
    """,
}


@pytest.mark.parametrize("name", MAY_STAY)
def test_what_may_be_caught_or_is_not_understood_is_not_sure_to_leave(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # what a destructor raises is nobody's
    answers = judged(MAY_STAY[name])
    assert answers, "the script never came to its cleanup"
    assert not any(answers)


def test_an_exception_in_an_except_clause_is_caught_wherever_that_is() -> None:
    found: list[unwinding.Fate] = []
    try:
        int("x")
    except ValueError as error:
        found.append(unwinding.fate_of(error, threading.get_ident(), calls_the_script.__code__))
    assert found == [unwinding.Fate.CAUGHT]


def test_an_exception_outside_the_script_is_not_sure_to_leave_it() -> None:
    found: list[unwinding.Fate] = []

    def divides() -> None:
        try:
            _ = 1 // len(found)
        finally:
            error = sys.exc_info()[1]
            assert error is not None
            found.append(unwinding.fate_of(error, threading.get_ident(), calls_the_script.__code__))

    with pytest.raises(ZeroDivisionError):
        divides()
    assert found == [unwinding.Fate.OPEN]


def test_the_exception_table_is_read_as_python_reads_it() -> None:
    def guarded() -> None:
        try:
            print(1)
        finally:
            print(2)

    import dis

    code = guarded.__code__
    ours = [(entry.begin, entry.end, entry.target) for entry in guarded_ranges(code.co_exceptiontable)]
    theirs = [(entry.start, entry.end, entry.target) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]
    assert ours == theirs != []
    assert handler_of(guarded_ranges(code.co_exceptiontable), ours[0][0]) == ours[0][2]
    assert handler_of(guarded_ranges(code.co_exceptiontable), len(code.co_code)) is None
    assert guarded_ranges(b"\x80\x01") == [], f"a table that is cut off, {sys.version_info}"
