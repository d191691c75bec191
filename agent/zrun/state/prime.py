"""DDP's bucket trap: after its first backward DDP sorts gradients into new buckets by their order of arrival.

At three ranks and more the buckets decide in which order numbers are summed, so a resumed run, whose DDP is new,
would differ in the last bits. The order of arrival is noted in the first step and kept with the state; on restore one
backward of zeros through the parameters in that order lets DDP build the same buckets. No code of the user runs.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

_INEXACT: Final = "a resumed run may differ from an undisturbed one in the last bits at 3 ranks and more"


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
    if ddp.static_graph:
        return f"DDP(static_graph=True) delays its first reduction and cannot be primed: {_INEXACT}"
    if ddp.find_unused_parameters:
        return ""
    if ddp.mixed_precision is not None:
        return f"DDP(mixed_precision=...) cannot be primed: {_INEXACT}"
    if any(not _stateless(state) for _, state in ddp._comm_hooks):  # noqa: SLF001 - it has no public name
        return f"DDP has a communication hook with a state of its own and is not primed: {_INEXACT}"
    if any(getattr(module, "sparse", False) for module in ddp.module.modules()):
        return f"DDP has sparse gradients and is not primed: {_INEXACT}"
    return None


def _stateless(state: object) -> bool:
    return state is None or isinstance(state, torch.distributed.ProcessGroup)


class Arrivals:
    """The order in which one DDP's gradients came in its first synchronised backward; None until then."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self.order: list[str] | None = None
        self._seen: list[str] = []
        self._hooks: list[RemovableHandle] = []
        if obstacle(ddp) is None:
            held = parameters(ddp)
            for name, parameter in held.items():
                hook = self._hook(name, len(held))
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def _hook(self, name: str, count: int) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            # Under no_sync() nothing is reduced, and DDP does not count these arrivals either.
            if self.order is None and self._ddp.require_backward_grad_sync and name not in self._seen:
                self._seen.append(name)
                if len(self._seen) == count:
                    self.order = self._seen
                    self._forget()

        return arrived

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def resume(self, order: Sequence[str] | None) -> str | None:
        """Prime this DDP for a saved order, which is kept from now on. Returns a warning or None. Collective."""
        if order is None:
            return None
        problem = obstacle(self._ddp)
        if problem is None:
            held = parameters(self._ddp)
            if sorted(held) != sorted(order):
                return f"the trainable parameters changed since the checkpoint: {_INEXACT}"
            self._forget()
            self.order = list(order)
            prime(self._ddp, order)
        return problem or None


def record_arrival(ddp: DistributedDataParallel) -> Arrivals:
    """Note the order from now on; the hooks go away by themselves after the first synchronised backward."""
    return Arrivals(ddp)


class _Next(torch.autograd.Function):
    """One link of a chain: its backward gives the parameter a zero gradient, then goes on to the next link."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(parameter)
        return after.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (parameter,) = ctx.saved_tensors
        return torch.zeros_like(parameter), gradient


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


def prime(ddp: DistributedDataParallel, order: Sequence[str]) -> None:
    """Let gradients of zero arrive in `order`; .grad is as it was afterwards. Collective: every rank, same moment."""
    held = parameters(ddp)
    with _untouched(held.values()), torch.enable_grad():
        ddp.reducer.prepare_for_backward([])
        chain = torch.zeros((), requires_grad=True)
        for name in reversed(order):
            chain = _Next.apply(held[name], chain)  # type: ignore[no-untyped-call]
        chain.backward()  # type: ignore[no-untyped-call]
