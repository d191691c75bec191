"""One seed is one story: a small cluster, one job, a bad day. The story has to end, and nothing forbidden may happen."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.simulation.agents import Agent
from tests.simulation.coordinator import JOB, Coordinator
from tests.simulation.world import CALM, LEASE_S, BrokenInvariantError, Bugs, Chances, World

from zrun.core.failure import FailureKind
from zrun.core.ids import JobId
from zrun.machine.events import Command
from zrun.machine.job import JobMachine
from zrun.machine.state import Job
from zrun.spec.job import Backoff, Budgets, JobSpec, Restart, Watchdog
from zrun.wire.report import Doing

TROUBLE_S = 40.0
"""Faults happen in the first part of the story; then it must come to its end."""
LIMIT_S = 600.0


ANYTHING = ("crash", "crash", "hang", "cut", "cut", "agent", "agent", "coordinator", "pair")
"""What may happen to somebody, by weight."""


@dataclass(frozen=True)
class Plot:
    """What the story is about; None = by chance."""

    network: Chances | None = None
    troubles: tuple[str, ...] = ANYTHING
    how_many: int | None = None
    nodes: int | None = None
    commands: bool = True
    taken: float | None = None


def play(
    seed: int, bugs: Bugs | None = None, make: Callable[[JobId], JobMachine] = JobMachine, plot: Plot | None = None
) -> tuple[Job, World]:
    """Raises BrokenInvariantError, with the story, if something went wrong."""
    world, plot = World(seed, bugs or Bugs()), plot or Plot()
    world.network = plot.network or world.network
    world.taken = world.taken if plot.taken is None else plot.taken
    try:
        return _play(world, make, plot), world
    except AssertionError as error:
        story = "\n".join(world.story[-60:])
        raise BrokenInvariantError(f"seed {seed}: {error}\n{story}") from error


def _play(world: World, make: Callable[[JobId], JobMachine], plot: Plot) -> Job:
    nodes = plot.nodes or world.chance.choice([1, 2, 3, 3])
    coordinator = Coordinator(world, _spec(world, nodes), make)
    for name in "abcd"[: nodes + 1]:
        coordinator.agents[name] = Agent(world, name, coordinator.receive)
    for agent in coordinator.agents.values():
        agent.peers = coordinator.agents
    for _ in range(world.chance.randint(0, 7) if plot.how_many is None else plot.how_many):
        kind = world.chance.choice(plot.troubles)
        world.after(world.chance.random() * TROUBLE_S, partial(_trouble, world, coordinator, kind))
    if plot.commands and world.chance.random() < 0.3:
        what = world.chance.choice(["stop", "stop_now", "preempt", "restart", "restart", "save"])
        world.after(world.chance.random() * TROUBLE_S, partial(_command, coordinator, what))
    world.after(2 * TROUBLE_S, lambda: setattr(world, "network", CALM))
    world.run(lambda: coordinator.up and coordinator.job.over, LIMIT_S)
    _ended_well(world, coordinator)
    return coordinator.job


def _spec(world: World, nodes: int) -> JobSpec:
    restart = Restart(
        lease_s=LEASE_S, max_restarts=50, max_without_progress=20, backoff={"crash": Backoff(0.2, 2.0)},
        budgets=Budgets(crash=30, hang=30),
    )  # fmt: skip
    return JobSpec(
        name="story", run=["train.py"], nodes_min=nodes, nodes_max=nodes, nproc_per_node=1, restart=restart,
        watchdog=Watchdog(patience_s=world.chance.choice([None, 2.0])), stop_grace_s=5.0,
    )  # fmt: skip


def _command(coordinator: Coordinator, what: str) -> None:
    if coordinator.up and not coordinator.job.over:
        coordinator.emit(Command(what, "a person"))


def _trouble(world: World, coordinator: Coordinator, kind: str) -> None:
    """One bad thing happens to somebody."""
    agent = world.chance.choice(list(coordinator.agents.values()))
    match kind:
        case "crash":
            agent.fail(FailureKind.SIGNALED, signal="SIGKILL")
        case "hang":
            _hang(world, agent)
        case "cut":
            _cut(world, agent)
        case "agent":
            if agent.up:
                agent.die(world.chance.choice([0.2, 2.0, 8.0]))
        case "reboot":
            if agent.up:
                agent.die(0.05)
        case "coordinator away":
            coordinator.crash(10 * LEASE_S)
        case "coordinator":
            coordinator.crash(world.chance.choice([0.5, 5.0, 12.0]))
        case "pair":
            _cut(world, agent)
            world.chance.choice(list(coordinator.agents.values())).fail(FailureKind.RAISED, exception="ValueError")


def _hang(world: World, agent: Agent) -> None:
    training = agent.training
    if training is None or agent.doing is not Doing.RUNNING:
        return
    training.hung = True
    world.tell(f"{agent.name}: hangs")
    if world.chance.random() < 0.3:  # it was only slow
        world.after(world.chance.random() * 10.0, lambda: setattr(training, "hung", False))


def _cut(world: World, agent: Agent) -> None:
    world.cut.add(agent.name)
    world.tell(f"{agent.name}: cut off from all others")
    world.after(world.chance.choice([1.0, 4.0, 15.0]), lambda: world.cut.discard(agent.name))


def _ended_well(world: World, coordinator: Coordinator) -> None:
    job = coordinator.job
    if coordinator.opened or any(i.open for i in job.incidents):
        raise BrokenInvariantError(f"incidents {coordinator.opened} are still open")
    if any(a.outcome is None for a in job.attempts):
        raise BrokenInvariantError("an attempt has no outcome")
    given_up = {name for name, node in job.nodes.items() if node.silent}  # stop at once: a person said so
    alive = {n: a for n, a in world.alive.items() if n not in given_up}
    if alive:
        raise BrokenInvariantError(f"the job is {job.state} and workers are alive: {alive}")
    again = coordinator.make(JOB)
    for number, now, event, answered in coordinator.journal:
        if again.handle(event, number, now) != answered:
            raise BrokenInvariantError(f"replay differs at {number} {event}")
    if again.job != job:
        raise BrokenInvariantError("replay leads elsewhere")
