"""Virtual time, a bad network, and the truth about which workers are alive: what the stories happen in.

One seed, one story: all chance comes from the world's own Random.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

LEASE_S = 3.0
MARGIN_S = 0.6
"""An agent out of touch stops its workers this much before its lease is over."""
STEP_S = 0.25
TOTAL_STEPS = 120
SAVE_EVERY = 10


class BrokenInvariantError(AssertionError):
    """A story in which something happened that must never happen."""


@dataclass
class Bugs:
    """Planted on purpose, one at a time, to see that the stories catch them."""

    endings_said_once: bool = False
    runs_said_once: bool = False
    dead_self_obeyed: bool = False
    no_self_stop: bool = False
    old_port_kept: bool = False
    late_orders_obeyed: bool = False


@dataclass
class Chances:
    """How bad this story's network is."""

    lost: float
    doubled: float
    delay_s: float
    straggling: float
    """Frames that come seconds late."""


CALM = Chances(0.0, 0.0, 0.02, 0.0)
ROUGH = Chances(0.3, 0.3, 0.5, 0.25)


@dataclass
class Training:
    """What the ranks of one attempt have done, all nodes together."""

    attempt: int
    nodes: tuple[str, ...]
    step: int
    resumed: int
    hung: bool = False
    broken: bool = False
    """A rank ended badly: the others get no further than their next collective."""


class World:
    def __init__(self, seed: int, bugs: Bugs) -> None:
        self.seed = seed
        self.bugs = bugs
        self.chance = random.Random(seed)
        self.now = 0.0
        self.saved_step = 0
        self.alive: dict[str, int] = {}
        """Node -> the attempt whose workers live there: the truth, known to nobody in the story."""
        self.cut: set[str] = set()
        """Nodes that neither coordinator nor peers can reach."""
        self.coordinator_up = False
        self.coordinator_since = 0.0
        self.stopped_themselves = 0
        """How often an agent took itself for cut off."""
        self.training: dict[int, Training] = {}
        self.ports: dict[str, tuple[int, int]] = {}
        """Node -> (attempt, the port at which its ranks look for the store)."""
        self.story: list[str] = []
        pick = self.chance.choice
        self.network = Chances(pick([0.0, 0.05, 0.25]), pick([0.0, 0.1]), pick([0.02, 0.3]), pick([0.0, 0.0, 0.05]))
        self.taken = pick([0.0, 0.0, 0.4])
        """How often somebody else is at the port that was picked for the store."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._ties), what))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._ties), what))

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        while not until():
            if not self._queue or self._queue[0][0] > limit_s:
                raise BrokenInvariantError(f"the story does not end within {limit_s} s of its own time")
            self.now, _, what = heapq.heappop(self._queue)
            what()

    def send(self, node: str, deliver: Callable[[], None]) -> None:
        """One frame between the node and the coordinator, either way: lost, late, doubled, out of order."""
        copies = 2 if self.chance.random() < self.network.doubled else 1
        for _ in range(copies):
            if node in self.cut or self.chance.random() < self.network.lost:
                continue
            most = 4.0 if self.chance.random() < self.network.straggling else self.network.delay_s
            self.after(0.001 + self.chance.random() * most, self._unless_cut(node, deliver))

    def _unless_cut(self, node: str, deliver: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if node in self.cut else deliver()

    def born(self, node: str, attempt: int) -> None:
        """Workers come to life: never beside those of another attempt."""
        self.tell(f"{node}: workers of attempt {attempt} begin")
        self.alive[node] = attempt
        others = {n: a for n, a in self.alive.items() if a != attempt}
        if others:
            raise BrokenInvariantError(f"two attempts alive: {attempt} on {node}, and {others}")

    def meet(self, training: Training) -> bool:
        """Do all look for the store at one port?"""
        return len({self.ports.get(node) for node in training.nodes}) == 1

    def dead(self, node: str) -> None:
        if self.alive.pop(node, 0):
            self.tell(f"{node}: workers are gone")

    def tell(self, line: str) -> None:
        self.story.append(f"{self.now:8.2f}  {line}")

    def attempt(self, number: int, nodes: tuple[str, ...]) -> Training:
        """The training of this attempt, resumed from what was saved when it began."""
        return self.training.setdefault(number, Training(number, nodes, self.saved_step, self.saved_step))

    def steps(self, training: Training) -> None:
        """One step of all ranks, if all of them live and none hangs."""
        if not self.meet(training):
            return
        if training.hung or training.broken or not all(self.alive.get(n) == training.attempt for n in training.nodes):
            return
        if training.step < TOTAL_STEPS:
            training.step += 1
            if training.step % SAVE_EVERY == 0:
                self.saved_step = max(self.saved_step, training.step)
