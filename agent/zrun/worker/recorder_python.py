"""The recorder in Python, where the built one (recorder.cpp) is not there yet: the same kernels, some 15 µs a call.

A kernel sits at the BackendSelect key (below autograd, above every backend), notes the arrival, hands on and keeps
the Work. The rank has left when the Work is completed: that is looked at on the next arrival, at step ends and every
50 ms, so a rank that waits in `work.wait()` counts as inside. A Work that cannot tell is over when the rank does the
next thing. It sees nothing while another thread holds the GIL. It knows nothing about hangs.
"""

import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import library as operators_of_torch

from zrun.core.deck import OP_CODE
from zrun.core.standing import BACKGROUND
from zrun.worker.operators import ASYNC_NAMES, OPERATORS
from zrun.worker.rank import ThisRank


class Recorder:
    """The kernels, the names of groups, and the collectives this rank is inside."""

    def __init__(self, rank: ThisRank) -> None:
        from torch._C._distributed_c10d import ProcessGroup, Work

        self._rank = rank
        self._group = ProcessGroup.unbox
        self._work = Work.unbox
        self._names: dict[str, int] = {}
        self._inside: deque[_Inside] = deque()
        self._blind: dict[tuple[int, int], bool] = {}
        # The autograd engine's threads and the watcher come here beside the main thread.
        self._lock = threading.Lock()
        key = torch._C.DispatchKey.BackendSelect  # noqa: SLF001
        self._below = torch._C._dispatch_keyset_full_after(key)  # noqa: SLF001
        library: Any = operators_of_torch.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        self._library = library  # the kernels go when it goes
        for name, shown in OPERATORS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                library.impl(name, self._kernel(packet.default, OP_CODE[shown]), "BackendSelect", with_keyset=True)

    def _kernel(self, operator: Any, op: int) -> Callable[..., Any]:
        kinds = [str(argument.type) for argument in operator._schema.arguments]  # noqa: SLF001
        at = next(index for index, kind in enumerate(kinds) if kind.endswith("ProcessGroup"))
        names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001
        told_at = next((index for index, name in enumerate(names) if name in ASYNC_NAMES), None)
        redispatch, below = operator.redispatch, self._below

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            group = arguments[at] if at < len(arguments) else named["process_group"]
            if self._rank.deck is None or self._is_background(group):
                return redispatch(keys & below, *arguments, **named)
            told = True if told_at is None else _argument(arguments, named, told_at, names[told_at])
            inside = self._enter(op, group, arguments[0], blocking=told is False)
            work = None
            try:
                result = redispatch(keys & below, *arguments, **named)
                work = result[-1] if isinstance(result, tuple | list) and result else result
            finally:
                self._handed_on(inside, work)
            return result

        return kernel

    def _is_background(self, group: Any) -> bool:
        """A save's own group, on another thread: what a rank does there says nothing about its training."""
        return bool(self._group(group).group_desc == BACKGROUND)

    def _enter(self, op: int, group: Any, tensors: Any, *, blocking: bool) -> "_Inside":
        name = self._group(group).group_name
        code = self._names.get(name)
        if code is None:
            code = self._names[name] = zlib.crc32(name.encode())
        size = _bytes_in(tensors)
        with self._lock:
            self._leave(moved_on=True)
            deck = self._rank.deck
            blocking = blocking and _on_cpu(tensors)
            sequence = deck.enter_collective(op, code, size, blocking=blocking) if deck is not None else 0
            inside = _Inside(sequence, op, code)
            self._inside.append(inside)
        return inside

    def _handed_on(self, inside: "_Inside", work: Any) -> None:
        """The kernel below has returned (None: without a Work, or by an exception)."""
        if work is not None:
            work = self._work(work)
            kind = (inside.op, inside.group)
            if kind not in self._blind:
                self._blind[kind] = _is_blind(work)
            inside.blind = self._blind[kind]
        inside.work = work
        inside.returned = True

    def _leave(self, *, moved_on: bool) -> None:
        """In order: the deck's count of collectives left stops at the first one that is not over."""
        inside, deck = self._inside, self._rank.deck
        while inside and inside[0].is_over(moved_on=moved_on):
            left = inside.popleft()
            if deck is not None:
                deck.leave_collective(left.sequence, blind=left.blind)

    def sweep(self, moved_on: bool) -> None:
        """See which are over; skipped while another thread is at it."""
        if self._inside and self._lock.acquire(blocking=False):
            try:
                self._leave(moved_on=moved_on)
            finally:
                self._lock.release()


class _Inside:
    """One collective that this rank has entered."""

    __slots__ = ("blind", "group", "op", "returned", "sequence", "work")

    def __init__(self, sequence: int, op: int, group: int) -> None:
        self.sequence = sequence
        self.op = op
        self.group = group
        self.returned = self.blind = False
        self.work: Any = None

    def is_over(self, *, moved_on: bool) -> bool:
        """`moved_on`: the rank is at another collective, or at the end of a step or phase."""
        if not self.returned:
            return False
        return self.work is None or (self.blind and moved_on) or bool(self.work.is_completed())


def _is_blind(work: Any) -> bool:
    """gloo's Works of reduce-scatter never call themselves completed (torch 2.13); they have no future either."""
    try:
        work.get_future()
    except RuntimeError:
        return True
    return False


def _argument(arguments: tuple[Any, ...], named: dict[str, Any], at: int, name: str) -> Any:
    return arguments[at] if at < len(arguments) else named.get(name, True)


def _on_cpu(tensors: Any) -> bool:
    """An accelerator's collective returns to its caller at once, whatever was asked for."""
    if isinstance(tensors, torch.Tensor):
        return tensors.device.type == "cpu"
    return isinstance(tensors, list | tuple) and all(map(_on_cpu, tensors))


def _bytes_in(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(_bytes_in, tensors)) if isinstance(tensors, list | tuple) else 0
