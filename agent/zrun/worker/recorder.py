"""Records every collective in the deck, by kernels of our own in front of the c10d operators.

They see what patches of torch.distributed miss: DDP's reducer, FSDP2, functional collectives. A kernel sits at the
BackendSelect key (below autograd, above every backend), notes the arrival, hands on and keeps the Work. The rank has
left when the Work is completed: that is looked at on the next arrival, at step ends and every 50 ms, so a rank
that waits in `work.wait()` counts as inside. A Work that cannot tell is over when the rank does the next thing.
It costs about 15 µs a collective. It knows nothing about hangs.
"""

import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

from zrun.core.deck import OP_CODE, Flag
from zrun.worker.rank import ThisRank

_OPS: Final = {
    "allreduce_": "all_reduce", "broadcast_": "broadcast", "reduce_": "reduce", "allgather_": "all_gather",
    "gather_": "gather", "scatter_": "scatter", "reduce_scatter_": "reduce_scatter", "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all", "barrier": "barrier", "send": "send", "recv_": "recv",
    "recv_any_source_": "recv_any_source", "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor", "allreduce_coalesced_": "allreduce_coalesced",
    "allgather_coalesced_": "allgather_coalesced", "allgather_into_tensor_coalesced_": "allgather_coalesced",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_coalesced", "monitored_barrier_": "monitored_barrier",
}  # fmt: skip
"""Operator -> its name in the deck."""


def install(rank: ThisRank) -> None:
    """Put the kernels in place; a torch that takes them not is warned about, and training goes on."""
    try:
        recorder = Recorder(rank)
    except Exception as error:  # these are inner parts of torch, and any version may change them
        rank.warn(f"collectives are not recorded: {type(error).__name__}: {error}")
        return
    rank.sweepers.append(recorder.sweep)
    rank.raise_flag(Flag.RECORDER)


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
        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        self._library = library  # the kernels go when it goes
        for name, shown in _OPS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                library.impl(name, self._kernel(packet.default, OP_CODE[shown]), "BackendSelect", with_keyset=True)

    def _kernel(self, operator: Any, op: int) -> Callable[..., Any]:
        kinds = [str(argument.type) for argument in operator._schema.arguments]  # noqa: SLF001
        at = next(index for index, kind in enumerate(kinds) if kind.endswith("ProcessGroup"))
        redispatch, below = operator.redispatch, self._below

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            if self._rank.deck is None:
                return redispatch(keys & below, *arguments, **named)
            inside = self._enter(op, arguments[at] if at < len(arguments) else named["process_group"], arguments[0])
            work = None
            try:
                result = redispatch(keys & below, *arguments, **named)
                work = result[-1] if isinstance(result, tuple | list) and result else result
            finally:
                self._handed_on(inside, work)
            return result

        return kernel

    def _enter(self, op: int, group: Any, tensors: Any) -> "_Inside":
        name = self._group(group).group_name
        code = self._names.get(name)
        if code is None:
            code = self._names[name] = zlib.crc32(name.encode())
        size = _bytes_in(tensors)
        with self._lock:
            self._leave(moved_on=True)
            deck = self._rank.deck
            inside = _Inside(deck.enter_collective(op, code, size) if deck is not None else 0, op, code)
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
            sequence = inside.popleft().sequence
            if deck is not None:
                deck.leave_collective(sequence)

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


def _bytes_in(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(_bytes_in, tensors)) if isinstance(tensors, list | tuple) else 0
