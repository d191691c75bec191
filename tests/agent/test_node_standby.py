"""When a node has standbys made ready, and when it does without. By playbook."""

from tests.agent.test_node_machine import Play, deck, ending, exited, order

from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.agent.node_machine import NodeMachine
from zrun.agent.node_standby import TRIES, UNSEEN_S
from zrun.wire.order import End, JobOrder, LaunchPlan, Peer


def warm_play() -> Play:
    play = Play()
    play.machine = NodeMachine("toy", "a", setup=False, exit_s=60.0, standby_bytes=2 << 30)
    return play


def step(play: Play, *completed: int) -> list[a.NodeAction]:
    return play.say(e.DecksRead({rank: deck(rank, completed=done) for rank, done in enumerate(completed)}))


def prepared(out: list[a.NodeAction]) -> int:
    return sum(isinstance(action, a.PrepareStandbys) for action in out)


def running() -> Play:
    play = warm_play()
    play.say(order(1), e.KeeperReady([]), e.Launched([0, 1]), e.RankSeen(0, 100), e.RankSeen(1, 101))
    step(play, 0, 0)
    return play


def test_standbys_are_made_once_every_rank_has_made_a_step() -> None:
    play = running()
    assert not prepared(step(play, 1, 0))
    assert prepared(step(play, 1, 1)) == 1
    assert not prepared(step(play, 2, 2))


def test_a_script_whose_steps_nobody_sees_gets_them_later() -> None:
    play = running()
    assert not prepared(play.at(play.now + UNSEEN_S - 1))
    assert prepared(play.at(play.now + 2)) == 1


def test_without_standbys_in_the_job_file_none_are_made() -> None:
    assert not prepared(step(Play().running(), 1, 1))


def test_a_node_that_is_not_alone_has_none() -> None:
    play = warm_play()
    plan = LaunchPlan(
        attempt=1, node_rank=0, nnodes=2, nproc=2, master_addr="m", master_port=0, peers=[Peer("a"), Peer("b")]
    )
    play.say(e.OrderReceived(JobOrder(run=plan, attempt=1)), e.KeeperReady([]), e.Launched([0, 1]))
    play.say(e.RankSeen(0, 100), e.RankSeen(1, 101))
    assert not prepared(step(play, 0, 0) + step(play, 1, 1))


def test_a_lost_standby_is_replaced_but_not_for_ever() -> None:
    play = running()
    made = prepared(step(play, 1, 1))
    for number in range(20):
        out = play.say(e.StandbyLost(0, "wandb"))
        assert isinstance(out[0], a.DropStandbys)
        made += prepared(out) + prepared(step(play, number + 2, number + 2))
    assert made == TRIES


def test_standbys_that_are_too_large_are_given_up_and_said_so() -> None:
    play = running()
    step(play, 1, 1)
    assert play.say(e.StandbyReady(0, 1 << 30)) == []
    assert [type(action) for action in play.say(e.StandbyReady(1, 3 << 30))] == [a.DropStandbys]
    assert not prepared(step(play, 2, 2))
    assert "3072 MiB, more than standby.max_memory (2048 MiB)" in play.machine.state.record.warnings[0]


def test_the_next_attempt_makes_new_ones() -> None:
    play = running()
    step(play, 1, 1)
    play.say(exited(1, signal="SIGKILL"), ending(1, End.KILL), e.Swept([]))
    play.say(order(2), e.Launched([0, 1]), e.RankSeen(0, 102), e.RankSeen(1, 103))
    assert prepared(step(play, 0, 0) + step(play, 1, 1)) == 1


def test_after_the_keepers_death_they_are_made_again() -> None:
    play = running()
    step(play, 1, 1)
    play.say(e.KeeperLost(), e.KeeperReady([]))
    play.say(order(2), e.Launched([0, 1]), e.RankSeen(0, 102), e.RankSeen(1, 103))
    assert prepared(step(play, 0, 0) + step(play, 1, 1)) == 1
