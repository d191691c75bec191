"""What one rank keeps in memory that outlives it: small things at each step's end, and the whole state when it must.

The whole of it is copied when something has failed (`hold`), by whichever thread is free, as long as nothing has been
changed since the step began, or all of it has; and on a cadence (`copy`) where a rank's death would lose it. Knows
nothing about who asks.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, cast

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zrun.core.errors import CheckpointError
from zrun.state import memory_slot
from zrun.state.background import Background
from zrun.state.blocks import Block
from zrun.state.kept import Kept, Whose
from zrun.state.memory_page import PageWriter
from zrun.state.memory_slot import Filled
from zrun.state.parts import Parts
from zrun.state.places import Places
from zrun.state.progress import Progress

_SETTLES_IN: Final = 3
"""Steps after the start in which optimizers and DDP make what they keep from then on."""
_VALUES_EVERY: Final = 16
"""Steps between two times at which the small values are put down, where they are known to be small and settled."""


@dataclass(frozen=True, slots=True)
class Held:
    """The state after `step`, in memory; or why it is not."""

    step: int
    bytes: int = 0
    seconds: float = 0.0
    problem: str = ""


class _State(Enum):
    """Of which step is what the model and the optimizers hold?"""

    WHOLE = auto()
    """Of the last one that was done."""
    CHANGING = auto()
    """Of none: an optimizer has begun to step."""
    STEPPED = auto()
    """Of the one under way: every optimizer that had stepped in the last one has stepped."""


class Keeping:
    """Of one rank. Made before training; `step_done` is called by the training thread at the end of every step."""

    def __init__(self, parts: Parts, places: Places, whose: Whose, fingerprint: dict[str, Any], threads: int) -> None:
        self._fingerprint, self._threads = fingerprint, threads
        self._page = PageWriter(places.page)
        self._kept = Kept(parts, whose)
        self._lock = threading.Lock()
        self._state = _State.CHANGING
        self._dones = 0
        self._steps_of: dict[int, int] = {}
        self._steps_before: dict[int, int] = {}
        """Optimizer -> how often it has stepped, in this step and in the last one."""
        self._versions: list[int] = []
        self._slots = places.oldest_first(whose.job)
        self._sealing = Background("zrun-memory")
        self._held: Held | None = None
        self.cost_s = 0.0
        """Of the newest `step_done`."""
        self._trouble = ""
        """What went wrong where nobody could be told: it must not reach the script."""
        self._hooks = [
            register_optimizer_step_pre_hook(_as_it_is(self._optimizer_begins)),
            register_optimizer_step_post_hook(_as_it_is(self._optimizer_ends)),
            *(model.register_forward_hook(self._forward_ends) for model in parts.plain_models()),
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _optimizer_begins(self, *_: Any) -> None:
        with self._lock:  # a copy that is being made is made of one step
            self._state = _State.CHANGING

    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        of = self._steps_of
        of[id(optimizer)] = of.get(id(optimizer), 0) + 1
        if of == self._steps_before:
            self._state = _State.STEPPED

    def _forward_ends(self, *_: Any) -> None:
        """Before another rank can have completed this step: what the forward has changed is safe from now on."""
        if torch.compiler.is_compiling():  # no hook of ours may break the script's graph
            return
        try:
            if self._state is _State.WHOLE and self._kept.changed and self._kept.buffers_in_place:
                self._page.put_changed(self._kept.progress.step + 1, self._kept.changed)
        except RuntimeError as error:  # a buffer of another shape than before, for one
            self._trouble = str(error).partition("\n")[0]

    def step_done(self, progress: Progress, cursor: Callable[[], dict[str, Any]]) -> None:
        """The state is that of `progress.step`, whole; `cursor` says where the data stands, when it is wanted.

        CheckpointError: it cannot be kept, now or ever.
        """
        if self._trouble:
            raise CheckpointError(self._trouble)
        begun = time.perf_counter()
        kept, page = self._kept, self._page
        with self._lock:
            self._state = _State.CHANGING
            thorough = self._dones < _SETTLES_IN or not kept.settled or progress.step % _VALUES_EVERY == 0
            kept.capture(progress, cursor, thorough=thorough)
            if self._dones < _SETTLES_IN or kept.moved:
                self._lay_out()
            if thorough and not page.put_values(progress.step, kept.text):
                self._lay_out()
                page.put_values(progress.step, kept.text)
            page.put_tensors(progress.step, kept.small)
            self._versions = [tensor._version for _, tensor in kept.watched]  # noqa: SLF001 - counts changes in place
            self._steps_before, self._steps_of = self._steps_of, {}
            self._dones += 1
            self._state = _State.WHOLE
        self.cost_s = time.perf_counter() - begun

    def _lay_out(self) -> None:
        kept = self._kept
        kept.lay_out()
        room = 2 * len(kept.text) + 4096
        self._page.lay_out(kept.described(), kept.small, len(kept.changed), room)

    def hold(self, *, ever: bool = True, begins: Callable[[int], None] = lambda _: None) -> Held | None:
        """Copy the state, of the step before or of the one under way. None: it is of neither; try again after a while.

        `ever` False: it will not be, so that is an answer. `begins` is told how many bytes are copied.
        """
        with self._lock:
            step = self._kept.progress.step
            if self._held is not None and self._held.step >= step:
                return self._held
            if self._state is _State.WHOLE:
                return self._copied(step, self._kept.blocks_before(self._page.newest), begins, done=True)
            if ever:
                return None  # the end of this step, or this rank's own failure
            if self._state is _State.STEPPED and self._kept.settled and not self._kept.more_than_optimizers:
                return self._copied(step + 1, self._kept.blocks_now(), begins, done=False)
            return Held(step, problem="an optimizer had begun to change it")

    def _copied(self, step: int, blocks: list[Block], begins: Callable[[int], None], *, done: bool) -> Held:
        begun, size = time.perf_counter(), sum(block.bytes for block in blocks)
        pairs = zip(self._kept.watched, self._versions, strict=True)
        moved = next((name for (name, tensor), version in pairs if tensor._version != version), None)  # noqa: SLF001
        if done and moved is not None:
            return Held(step, problem=f"{moved} was changed before the optimizer's step")
        if (other := self._kept.replaced()) is not None or not (done or self._kept.buffers_in_place):
            return Held(step, problem=f"{other or 'a buffer'} was replaced by another tensor")
        try:
            about = self._kept.about(step, blocks, self._fingerprint, done=done)
            begins(size)
            self._fill(blocks).seal(about)
            self._use_the_other_slot()
        except (CheckpointError, OSError, RuntimeError, MemoryError) as error:
            return Held(step, problem=str(error).partition("\n")[0])
        self._held = Held(step, size, time.perf_counter() - begun)
        return self._held

    def copy(self) -> Held:
        """Right after `step_done`: training waits for the copy, its digests are taken meanwhile."""
        begun = time.perf_counter()
        self._sealing.wait()
        with self._lock:
            step, blocks = self._kept.progress.step, self._kept.blocks_before(self._page.newest)
            try:
                about = self._kept.about(step, blocks, self._fingerprint, done=True)
                filled = self._fill(blocks)
            except (CheckpointError, OSError, RuntimeError, MemoryError) as error:
                return Held(step, problem=str(error).partition("\n")[0])
            self._sealing.start(lambda: self._seal(filled, about))
        return Held(step, sum(block.bytes for block in blocks), time.perf_counter() - begun)

    @property
    def keys(self) -> list[str]:
        """What this rank holds apart from the small things; under its own name where nothing keeps it equal."""
        return self._kept.keys

    def _fill(self, blocks: Sequence[Block]) -> Filled:
        self._sealing.wait()
        return memory_slot.fill(self._slots[0], [block.local for block in blocks], self._threads)

    def _seal(self, filled: Filled, about: dict[str, Any]) -> None:
        try:
            filled.seal(about)
        except OSError:
            return  # no memory left: what is not sealed does not count
        self._use_the_other_slot()

    def _use_the_other_slot(self) -> None:
        """Only once a copy is whole: one that fails is tried again in its own place, and never costs the one before."""
        self._slots.append(self._slots.pop(0))


def _as_it_is(hook: Callable[..., None]) -> Callable[..., None]:
    """For an optimizer's compiled step, whose graph ends at hooks anyway."""

    def called(*arguments: Any) -> None:  # a bound method cannot be marked
        hook(*arguments)

    return cast("Callable[..., None]", torch._disable_dynamo(called))  # type: ignore[attr-defined]  # noqa: SLF001
