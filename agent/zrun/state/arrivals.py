"""In which order the gradients of one DDP came in its first synchronised backward: noted once, kept with the state,
and given back to a new DDP (zrun.state.prime). With static_graph=True: how often in the first, the order in the second.

Knows nothing about checkpoints or other ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from zrun.state.prime import INEXACT, matters, obstacle, parameters, prime, prime_static


class Arrivals:
    """Listens from now on, until it has seen enough; then its hooks are gone."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._now: dict[str, int] = {}
        """How often each gradient came in the backward of this moment, the last one last."""
        self._counts: dict[str, int] | None = None
        self._order: list[str] | None = None
        self._hooks: list[RemovableHandle] = []
        if obstacle(ddp) is None:
            for name, parameter in parameters(ddp).items():
                listener = self._listener(name)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(listener))  # type: ignore[no-untyped-call]
            self._hooks.append(ddp.register_forward_pre_hook(lambda *_: self._close()))

    def _listener(self, name: str) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            # Under no_sync() nothing is reduced, and DDP does not count these arrivals either.
            if self._ddp.require_backward_grad_sync:
                self._now[name] = self._now.pop(name, 0) + 1

        return arrived

    def _close(self) -> None:
        """A backward is over: the next forward begins, or the step is."""
        seen, self._now = self._now, {}
        if not seen or not self._hooks:
            return
        if self._counts is None:
            self._counts = seen
            if self._ddp.static_graph:
                return
        self._order = list(seen)
        self._forget()

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state(self) -> Any:
        """What a checkpoint keeps of it: None before the first backward. Called between steps."""
        self._close()
        if not self._ddp.static_graph or self._counts is None:
            return self._order
        return {"counts": self._counts, "order": self._order}

    def obstacle(self) -> str | None:
        """Why a resume of this DDP cannot be exact, where that is known before anything was done."""
        return (obstacle(self._ddp) or None) if matters(self._ddp) else None

    def resume(self, saved: Any) -> str | None:
        """Prime this DDP for what `state` gave, which is kept from now on. Returns a warning or None. Collective."""
        problem = obstacle(self._ddp)
        if saved is None or problem is not None:
            return None  # `obstacle` tells it at each start
        static = isinstance(saved, dict)
        if static != bool(self._ddp.static_graph):
            return f"DDP's static_graph is not what it was in the checkpoint: {INEXACT}"
        counts = saved["counts"] if static else dict.fromkeys(saved, 1)
        order = saved["order"] if static else saved
        held = parameters(self._ddp)
        if counts.keys() - held.keys() or (not static and held.keys() - counts.keys()):
            return f"the trainable parameters changed since the checkpoint: {INEXACT}"
        self._now, self._counts = {}, dict(counts)
        if order is not None:
            self._order = list(order)
            self._forget()
        if static:
            prime_static(self._ddp, counts, order)
        else:
            prime(self._ddp, order)
        return None
