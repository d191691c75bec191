"""The telling part of a traceback."""

from zrun.machine.excerpt import excerpt, raised_by_hand

CHAIN = """Traceback (most recent call last):
  File "/job/train.py", line 8, in load
    return table["missing"]
           ~~~~~^^^^^^^^^^^
KeyError: 'missing'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    main()
  File "/job/train.py", line 12, in main
    raise RuntimeError("no batch") from error
RuntimeError: no batch
"""
THROUGH_TORCH = """Traceback (most recent call last):
  File "<frozen runpy>", line 88, in _run_code
  File "/job/train.py", line 30, in <module>
    main()
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1884, in _call_impl
    return inner()
  File "/job/hooks.py", line 4, in hook
    raise ArithmeticError("not finite")
ArithmeticError: not finite
"""
LOADER = """Traceback (most recent call last):
  File "/job/train.py", line 30, in <module>
    for batch in loader:
  File "/venv/lib/python3.11/site-packages/torch/_utils.py", line 750, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/job/data.py", line 7, in __getitem__
    raise KeyError("label")
KeyError: 'label'
"""
FATAL = """Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/job/other.py", line 3 in thread

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 517 in string_at
  File "/job/train.py", line 9 in crash
  File "/job/train.py", line 30 in <module>

Extension modules: numpy
"""


def test_the_root_of_a_chain_is_told_and_only_the_users_frames() -> None:
    assert excerpt(CHAIN) == ['/job/train.py:8 in load: return table["missing"]']
    assert excerpt(THROUGH_TORCH) == [
        "/job/train.py:30 in <module>: main()", '/job/hooks.py:4 in hook: raise ArithmeticError("not finite")',
    ]  # fmt: skip


def test_an_error_in_a_loader_worker_is_told_from_the_worker() -> None:
    assert excerpt(LOADER)[-1] == '/job/data.py:7 in __getitem__: raise KeyError("label")'


def test_of_a_fatal_error_the_thread_it_was_in_is_told() -> None:
    assert excerpt(FATAL) == ["/job/train.py:30 in <module>", "/job/train.py:9 in crash"]


def test_it_is_short_whatever_the_input() -> None:
    deep = "".join(f'  File "/job/a.py", line {n}, in f\n    {"x" * 999}\n' for n in range(500))
    found = excerpt(f"Traceback (most recent call last):\n{deep}RecursionError: deep\n")
    assert len(found) == 4
    assert max(map(len, found)) <= 160
    assert excerpt(None) == excerpt("") == excerpt("nonsense") == []


def test_words_are_the_users_where_the_user_raised() -> None:
    assert raised_by_hand(THROUGH_TORCH)
    assert not raised_by_hand(CHAIN), "it began with a look-up that failed"
    assert not raised_by_hand(None)
