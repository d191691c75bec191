"""One training of a framework, made exact: random numbers from (seed, rank, step), DDP's buckets as they were, the
agent's orders obeyed at a step that all ranks have in common, checkpoints sealed when every rank has written its part.

What `rng: stream` leaves to the framework is left to it. Knows no framework: each one's callback tells it what happens.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from zrun.core import env, seal
from zrun.core.deck import Flag, Phase, StopKind
from zrun.core.notes import NoteKind
from zrun.core.seal import Seal
from zrun.integrations.choice import Chosen, as_facts
from zrun.integrations.reads import reads
from zrun.state import rng
from zrun.state.agree import Agreement
from zrun.state.arrivals import Arrivals
from zrun.worker.rank import this_rank
from zrun.worker.stops import Stops

NO_READS: Final = "this torch does not tell which batch is read: data that draws random numbers is not exact"


class Exact:
    """Made on every rank at the same moment; its methods are called on every rank in the same order."""

    def __init__(self) -> None:
        self.here = this_rank()
        ranked = dist.is_available() and dist.is_initialized()
        self.number = dist.get_rank() if ranked else 0
        self.world_size = dist.get_world_size() if ranked else 1
        self.agreement = Agreement(self.number, self.world_size)
        self.seed = 0
        self.derived = self.here.settings.rng == "derived"
        self._reads = reads()
        self._stops = Stops(self.here)
        self._arrivals: list[Arrivals] = []
        self._asked = StopKind.NONE

    # Where it goes on

    def take_seed(self, chosen: Chosen, seed: int) -> None:
        """Before the first iterator is made, for its workers read ahead: the seed this run began with, else `seed`."""
        facts = chosen.seal.facts if chosen.seal is not None else {}
        self.seed = int(facts.get("seed", seed))

    def begin(self, chosen: Chosen, models: list[Any]) -> dict[str, Any]:
        """After everything was loaded, before the first step. Gives the facts that were sealed with the checkpoint."""
        facts = chosen.seal.facts if chosen.seal is not None else {}
        if self.derived and self._reads is None:
            self.tell(NO_READS)
        self._arrivals = [Arrivals(model) for model in models if isinstance(model, DistributedDataParallel)]
        held = facts.get("arrivals", [])
        for index, arrivals in enumerate(self._arrivals):
            for text in (arrivals.obstacle(), arrivals.resume(held[index]) if index < len(held) else None):
                if text:
                    self.tell(text)
        if chosen.seal is not None and chosen.seal.world_size != self.world_size:
            self.tell(
                f"saved by {chosen.seal.world_size} ranks, resumed by {self.world_size}: "
                "which samples come next is the framework's affair, and no loss will be as it was"
            )
        self.here.raise_flag(Flag.SESSION)
        return facts

    def note(self, chosen: Chosen, step: int, total: int | None) -> None:
        """Tell the agent where this attempt goes on."""
        self.here.note(NoteKind.SESSION, resumed_step=step, total_steps=total, **as_facts(chosen))
        env.put(env.RESUME_STEP, str(step))

    def tell(self, text: str) -> None:
        if self.number == 0:
            self.here.warn(text)

    # Random numbers

    def begin_epoch(self, epoch: int, loader: Any = None) -> None:
        """Before the epoch's samples are put in order, by Accelerate's own generator if its `loader` has one."""
        if self.derived and self._reads is not None:
            self._reads.begin_epoch(self.seed, epoch)
            generator = getattr(loader, "synchronized_generator", None)
            if generator is not None:
                generator.manual_seed(torch.initial_seed())  # which was set just now, the same on all ranks

    def skipping(self, batches: int) -> AbstractContextManager[None]:
        """Iterators of map-style datasets that are made inside pass over so many batches, which they do not read."""
        return self._reads.skipping(batches) if self._reads is not None else nullcontext()

    def begin_step(self, step: int) -> None:
        """After its batch was read, before the model sees it."""
        if self.derived:
            rng.seed_step(self.seed, self.number, step)

    def end(self) -> None:
        """The loop is over: what the script does now is its own."""
        if self._reads is not None:
            self._reads.off()
        self.here.lower_flag(Flag.SESSION)

    # Orders

    def at_top(self) -> None:
        """At the top of a step, once the deck says so."""
        if self.here.deck is not None:
            self._stops.at_top(self.here.deck.step())

    def at_bottom(self) -> bool:
        """After a step, on all ranks: must it be saved, because of a wish of somebody's, before training goes on?"""
        if self.here.deck is not None:
            self._asked = self._stops.at_bottom(self.here.deck.step())
        return self._asked is not StopKind.NONE

    @property
    def asked(self) -> bool:
        """A save was asked for and has not come yet."""
        return self._asked is not StopKind.NONE

    def _obey(self, *, saved: bool) -> None:
        """SystemExit where the wish was a stop: what stands after the training in the script is for a finished one."""
        asked, self._asked = self._asked, StopKind.NONE
        if asked is StopKind.STOP and self.here.deck is not None:
            self.here.note(NoteKind.STOPPED_AT, step=self.here.deck.step(), saved=saved)
            self.here.raise_flag(Flag.STOPPED_SAFE)
            raise SystemExit(0)

    # Saves

    def arrived(self) -> None:
        """Wait until every rank has come here."""
        self.agreement.numbers(0)

    def saved(self, checkpoint: Path, step: int, own: Any = None, *, writer: bool, begun: float) -> None:
        """A checkpoint was written by all ranks: seal it, tell of it, and obey a stop. `own`: this rank's JSON value.

        `writer`: this rank seals, one on each file system. `begun`: when the save began, by the monotonic clock.
        """
        with self.saving():
            facts = {
                "seed": self.seed, "arrivals": [arrivals.state() for arrivals in self._arrivals],
                "ranks": self.agreement.gather(own),
            }  # fmt: skip
            problem, sealed = None, None
            if writer:
                try:
                    sealed = seal.close(
                        checkpoint, job=env.get(env.JOB) or "local", attempt=self.here.attempt, step=step,
                        world_size=self.world_size, facts=facts,
                    )  # fmt: skip
                except OSError as error:
                    problem = f"{error.filename or checkpoint}: {error.strerror or error}"
            answers = self.agreement.gather([problem, sealed is not None])
        problems = [text for text, _ in answers if text is not None]
        if problems:
            text = "; ".join(problems)
            self.here.note(NoteKind.SAVE_FAILED, step=step, error=text, path=str(checkpoint), disk_full=False)
            self.tell(f"{checkpoint.name} cannot be sealed, so nobody can tell later whether it is whole: {text}")
        elif self.number == 0 and sealed is not None:
            self._tell_saved(checkpoint, sealed, begun)
        self._obey(saved=not problems and any(made for _, made in answers))

    def _tell_saved(self, checkpoint: Path, sealed: Seal, begun: float) -> None:
        seconds = time.monotonic() - begun
        step = self.here.deck.step() if self.here.deck is not None else sealed.step
        self.here.note(
            NoteKind.CHECKPOINT, step=step, batch=None, path=str(checkpoint), bytes=sealed.bytes, seconds=seconds,
            blocked_s=seconds, pruned=[],
        )  # fmt: skip

    @contextmanager
    def saving(self) -> Iterator[None]:
        before = self.here.phase()
        self.here.enter_phase(Phase.SAVE)
        try:
            yield
        finally:
            self.here.enter_phase(*before)


def ddp_of(model: Any) -> list[Any]:
    """The DistributedDataParallel that a framework's wrapped model is, or holds outermost."""
    seen = model
    while isinstance(seen, torch.nn.Module):
        if isinstance(seen, DistributedDataParallel):
            return [seen]
        seen = getattr(seen, "_orig_mod", None)
    return []
