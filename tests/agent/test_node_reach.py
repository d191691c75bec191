"""Is the coordinator down, or am I cut off? Told as stories of one agent's time."""

from zrun.agent.node_reach import RETURN_S, Reach, Reading, begins_with_others
from zrun.wire.order import JobOrder, LaunchPlan, Order, Peer

LEASE_S = 3.0
BEAT_S = 0.6


class Story:
    """Node a, whose peer is b; the coordinator answers each report until it goes away."""

    def __init__(self) -> None:
        self.now = 0.0
        self.serial = 0
        self.reach = Reach(0.0)

    def goes(self, seconds: float, *, heard: bool, peer_age: float | None = None, grows: bool = True) -> Reading:
        """`peer_age`: of b's contact with the coordinator, as b tells it all the time; None: b does not answer."""
        began = self.now
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            self.reach.tick(self.now)
            if self.now % BEAT_S < 0.05:
                self.serial += 1
                self.reach.sent(self.serial)
                if heard:
                    self.reach.acked(self.serial)
            if peer_age is not None:
                self.reach.answered("toy", "b", peer_age + (self.now - began if grows else 0.0), LEASE_S)
        return self.reading

    @property
    def reading(self) -> Reading:
        return self.reach.judge("toy", ["b"], LEASE_S).reading


def test_while_reports_are_heard_nothing_is_doubted() -> None:
    assert Story().goes(60, heard=True) is Reading.IN_TOUCH


def test_a_coordinator_that_no_peer_hears_either_is_down_and_training_goes_on_without_limit() -> None:
    story = Story()
    story.goes(10, heard=True)
    assert story.goes(600, heard=False, peer_age=0.3) is Reading.COORDINATOR_AWAY


def test_a_peer_that_does_not_answer_means_cut_off_within_the_lease() -> None:
    story = Story()
    story.goes(10, heard=True)
    assert story.goes(2.0, heard=False) is Reading.DOUBT
    assert story.goes(0.7, heard=False) is Reading.CUT_OFF


def test_a_peer_that_is_in_touch_means_cut_off_within_the_lease() -> None:
    story = Story()
    story.goes(10, heard=True)
    assert story.goes(2.7, heard=False, peer_age=0.2, grows=False) is Reading.CUT_OFF


def test_a_peer_lost_while_the_coordinator_is_down_means_cut_off() -> None:
    story = Story()
    story.goes(10, heard=True)
    story.goes(60, heard=False, peer_age=0.3)
    assert story.goes(1.5, heard=False) is Reading.CUT_OFF


def test_after_an_absence_a_peer_that_found_the_coordinator_first_accuses_nobody_yet() -> None:
    story = Story()
    story.goes(10, heard=True)
    story.goes(30, heard=False, peer_age=0.3)
    assert story.goes(RETURN_S / 2, heard=False, peer_age=0.1, grows=False) is Reading.COORDINATOR_AWAY
    assert story.goes(RETURN_S, heard=False, peer_age=0.1, grows=False) is Reading.CUT_OFF
    assert story.goes(1.0, heard=True) is Reading.IN_TOUCH


def test_a_stall_of_the_agent_itself_accuses_nobody() -> None:
    story = Story()
    story.goes(10, heard=True)
    story.now += 20.0
    story.reach.tick(story.now)
    assert story.reading in {Reading.IN_TOUCH, Reading.DOUBT}


def test_a_late_ack_of_an_old_report_is_no_fresh_contact() -> None:
    story = Story()
    story.goes(10, heard=True)
    story.serial += 1
    story.reach.sent(story.serial)
    old = story.serial
    story.goes(2.8, heard=False)
    story.reach.acked(old)
    assert story.reading is Reading.CUT_OFF


def test_an_order_after_a_long_silence_is_too_late_until_a_report_is_heard_again() -> None:
    story = Story()
    story.goes(10, heard=True)
    assert not story.reach.too_late(LEASE_S)
    story.goes(LEASE_S, heard=False)
    assert story.reach.too_late(LEASE_S)
    story.goes(1, heard=True)
    assert not story.reach.too_late(LEASE_S)


def test_only_an_order_to_run_with_others_can_be_too_late() -> None:
    def order(nnodes: int) -> Order:
        plan = LaunchPlan(1, 0, nnodes, 1, "m", 0, [Peer("a"), Peer("b")][:nnodes])
        return Order("boot", 1, {"toy": JobOrder(run=plan)})

    assert begins_with_others(order(2))
    assert not begins_with_others(order(1))
    assert not begins_with_others(Order("boot", 1, {"toy": JobOrder(attempt=1)}))
