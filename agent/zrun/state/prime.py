"""DDP's bucket trap: after its first backward DDP sorts gradients into new buckets by their order of arrival.

At three ranks and more the buckets decide in which order numbers are summed, so a resumed run, whose DDP is new,
would differ in the last bits. On restore a backward of zeros through the parameters, in the order noted in the first
step (zrun.state.arrivals), lets DDP build the same buckets. No code of the user runs. Knows nothing of checkpoints.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zrun.state.comm_hooks import unknown_state

INEXACT: Final = "a resumed run may differ from an undisturbed one in the last bits at 3 ranks and more"


def parameters(ddp: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """What the reducer reduces, by DDP's own names, each shared parameter once."""
    return {
        name: parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    }


def obstacle(ddp: DistributedDataParallel) -> str | None:
    """Why this DDP cannot be primed; "" where it need not be, because it never rebuilds its buckets."""
    if ddp._use_python_reducer:  # noqa: SLF001 - it has no public name
        return ""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return ""
    if ddp.mixed_precision is not None:
        return f"DDP(mixed_precision=...) cannot be primed: {INEXACT}"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.module.parameters()):
        return f"DDP with an optimizer that runs inside backward cannot be primed: {INEXACT}"
    state = unknown_state(ddp)
    if state is not None:
        return f"DDP has a communication hook with a state of its own ({state}) and is not primed: {INEXACT}"
    return None


def matters(ddp: DistributedDataParallel) -> bool:
    """Two numbers have the same sum in either order; three have not."""
    return dist.get_world_size(ddp.process_group) > 2


class _Next(torch.autograd.Function):
    """One link of a chain: its backward gives the parameter a zero gradient, then goes on to the next link."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, after: torch.Tensor, sparse: bool) -> torch.Tensor:
        ctx.save_for_backward(parameter)
        ctx.sparse = sparse
        return after.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (parameter,) = ctx.saved_tensors
        if not ctx.sparse:
            return torch.zeros_like(parameter), gradient, None
        nowhere = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        nothing = parameter.new_zeros((0, *parameter.shape[1:]))
        return torch.sparse_coo_tensor(nowhere, nothing, parameter.shape, check_invariants=False), gradient, None


@contextlib.contextmanager
def _untouched(held: Iterable[nn.Parameter]) -> Iterator[None]:
    """No gradient and no hook of the user's is on the parameters meanwhile; afterwards all is as it was."""
    kept: list[tuple[nn.Parameter, torch.Tensor | None, list[tuple[Any, dict[Any, Any]]]]] = []
    for parameter in held:
        found = [getattr(parameter, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        kept.append((parameter, parameter.grad, [(hooks, dict(hooks)) for hooks in found if hooks]))
        parameter.grad = None
        for hooks in found:
            if hooks:
                hooks.clear()
    try:
        yield
    finally:
        for parameter, gradient, hooked in kept:
            parameter.grad = gradient
            for hooks, content in hooked:
                hooks.update(content)


def _sparse(ddp: DistributedDataParallel) -> set[int]:
    """ids of the parameters whose gradients are sparse, which the reducer expects to come so."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {id(module.weight) for module in ddp.module.modules() if isinstance(module, kinds) and module.sparse}


def prime(ddp: DistributedDataParallel, order: Sequence[str]) -> None:
    """Let gradients of zero arrive in `order`; .grad is as it was afterwards. Collective: every rank, same moment."""
    with _untouched(parameters(ddp).values()):
        ddp.reducer.prepare_for_backward([])
        _zeros(ddp, order)


def prime_static(ddp: DistributedDataParallel, counts: Mapping[str, int], order: Sequence[str] | None) -> None:
    """The same for DDP(static_graph=True), which learns in its first backward how often each gradient comes, and sorts
    its buckets by the second. `counts`: of the first; `order`: of the second, None if there was none yet.
    """
    with _untouched(parameters(ddp).values()):
        ddp.reducer.prepare_for_backward([])
        for names in _rounds(counts, list(counts)):
            _zeros(ddp, names)
        # What torch does at the end of that first backward, and never again.
        ddp._static_graph_delay_allreduce_enqueued = True  # noqa: SLF001 - it has no public name
        ddp.reducer._delay_all_reduce()  # type: ignore[attr-defined]  # noqa: SLF001 - it has no public name
        if order is not None:
            for parameter in parameters(ddp).values():
                parameter.grad = None
            ddp.reducer.prepare_for_backward([])
            for names in _rounds(counts, order):
                _zeros(ddp, names)


def _rounds(counts: Mapping[str, int], order: Sequence[str]) -> list[list[str]]:
    """Which gradients come in each of several backwards, so that each comes its times and the last in `order`."""
    most = max(counts.values(), default=0)
    return [[name for name in order if counts[name] >= left] for left in range(most, 0, -1)]


def _zeros(ddp: DistributedDataParallel, order: Sequence[str]) -> None:
    held, sparse = parameters(ddp), _sparse(ddp)
    with torch.enable_grad():
        chain = torch.zeros((), requires_grad=True)
        for name in reversed(order):
            chain = _Next.apply(held[name], chain, id(held[name]) in sparse)  # type: ignore[no-untyped-call]
        chain.backward()  # type: ignore[no-untyped-call]
