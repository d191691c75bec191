"""Saves of a Session while it trains: requested and durable are two facts, and no failure of a save is silent."""

import re
from collections.abc import Callable

import pytest
from tests.worker.stage import Ranks, Stage

from zrun.core.manifest import scan
from zrun.core.settings import RankSettings

MakeStage = Callable[..., Stage]

SCRIPT = """
import os, sys, threading, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from zrun.worker import Session
dist.init_process_group("gloo")
FIRST = os.environ["RANK"] == "0"
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def slow_disk(until):
    real = os.fsync
    def fsync(handle):
        while threading.current_thread() is not threading.main_thread() and not os.path.exists(until):
            time.sleep(0.005)
        real(handle)
    os.fsync = fsync

SETUP
with Session(model=model, optimizer=optimizer) as run:
    for step in run.steps(total=int(sys.argv[1])):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)
        HOOK
"""


def script(stage: Stage, hook: str = "pass", setup: str = "") -> None:
    stage.script(SCRIPT.replace("HOOK", hook.replace("\n", "\n        ")).replace("SETUP", setup))


def ended(stage: Stage, ranks: Ranks, code: int = 0) -> None:
    assert (ranks.wait(120) == 0) is (code == 0), stage.story()


def kinds(stage: Stage, rank: int = 0) -> list[tuple[str, int]]:
    wanted = {"save-requested", "checkpoint", "save-failed"}
    return [(note["kind"], note["step"]) for note in stage.notes(rank=rank) if note["kind"] in wanted]


def test_a_save_is_requested_then_durable_and_training_goes_on_between(make_stage: MakeStage) -> None:
    """The disk is slow until step 4 is reached: step 2 is requested and nothing yet, and the loop does not wait."""
    stage = make_stage(2, settings=RankSettings(save_every_steps=2, save_initial=False))
    script(
        stage,
        "if step == 3: print('at 3:', sorted(n for n in os.listdir('checkpoints') if n == 'step-000002'))\n"
        "if step == 3: dist.barrier(); open('fast', 'w').close()",
        "slow_disk('fast')",
    )
    ended(stage, stage.launch("train.py", "4"))
    assert kinds(stage) == [("save-requested", 2), ("checkpoint", 2), ("save-requested", 4), ("checkpoint", 4)]
    assert kinds(stage, 1) == []
    assert "at 3: []" in stage.out()
    first, _ = stage.notes("checkpoint")
    assert first["seconds"] > first["blocked_s"] >= 0
    assert [found.step for found in scan(stage.folder / "checkpoints")] == [4, 2]


@pytest.mark.long
def test_the_next_save_waits_for_a_slow_one_and_says_so(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=1, save_initial=False))
    setup = """
real = os.fsync
def fsync(handle):
    time.sleep(0.5)
    real(handle)
os.fsync = fsync
"""
    script(stage, setup=setup)
    ended(stage, stage.launch("train.py", "3"))
    assert [note["waited_s"] > 0.2 for note in stage.notes("save-requested")] == [False, True, True]
    slow = [note["message"] for note in stage.notes("warning") if "is slow" in note["message"]]
    assert "the save of step 1 took" in slow[0]  # told again only when it has become half as bad again
    assert [note["step"] for note in stage.notes("checkpoint")] == [1, 2, 3]


@pytest.mark.long
def test_three_failed_saves_in_a_row_end_training_on_all_ranks_at_one_step(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=2, save_initial=False))
    script(stage, "if step == 1 and FIRST: os.rename('checkpoints', 'away'); open('checkpoints', 'w').close()")
    ended(stage, stage.launch("train.py", "100"), code=1)
    for rank in (0, 1):
        assert [note["step"] for note in stage.notes("save-failed", rank)] == [2, 4, 6]
        words = stage.note("last-words", rank, final=True)
        assert words["exception"] == "zrun.core.errors.CheckpointError"
        assert words["message"].startswith("3 saves in a row failed, the last one of step 6: rank 0: cannot write, ")
        assert (words["step"], words["phase"]) == (6, "step")
        assert "step 7" not in stage.out(rank)


@pytest.mark.long
def test_a_failed_last_save_is_told_though_the_script_ends_well(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=2, save_initial=False))
    script(stage, "if step == 3 and FIRST: os.rename('checkpoints', 'away'); open('checkpoints', 'w').close()")
    ended(stage, stage.launch("train.py", "4"))
    for rank in (0, 1):
        assert [note["step"] for note in stage.notes("save-failed", rank)][-1] == 4
        assert "the save at step 4 failed" in stage.err(rank)
    told = [note["kind"] for note in stage.notes()]
    assert told.index("save-failed") < told.index("finished")


@pytest.mark.long
def test_leaving_the_loop_early_waits_for_the_save_in_flight(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=2, save_initial=False))
    script(stage, "if step == 3: (FIRST and open('fast', 'w').close()); break", "slow_disk('fast')")
    ended(stage, stage.launch("train.py", "100"))
    assert kinds(stage) == [("save-requested", 2), ("checkpoint", 2)]


@pytest.mark.long
def test_a_raise_lets_the_save_in_flight_be_finished(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=2, save_initial=False))
    script(stage, "if step == 3: open('fast', 'w').close(); raise ValueError('bad')", "slow_disk('fast')")
    ended(stage, stage.launch("train.py", "100"), code=1)
    assert stage.note("last-words", 0, final=True)["message"] == "bad"
    assert [(found.step, found.state) for found in scan(stage.folder / "checkpoints")] == [(2, "complete")]


@pytest.mark.long
def test_a_save_that_cannot_be_finished_after_a_raise_is_as_if_it_never_was(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=2, save_initial=False))
    hook = "if step == 3 and FIRST: os.kill(os.getpid(), 9)"
    script(stage, hook, "slow_disk('never')")
    ended(stage, stage.launch("train.py", "100"), code=1)
    assert scan(stage.folder / "checkpoints") == []
    assert kinds(stage, 1) == [], "a dead peer's outcry is no failed save"


@pytest.mark.long
def test_what_ranks_do_for_a_save_in_the_background_is_not_taken_for_training(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=1, save_initial=False))
    script(
        stage,
        "import zlib\n"
        "for group, name in dist.distributed_c10d._world.pg_names.items():\n"
        "    print('group', zlib.crc32(name.encode()), 'background' in group.group_desc, flush=True)",
    )
    ended(stage, stage.launch("train.py", "3"))
    seen = dict(re.findall(r"group (\d+) (True|False)", stage.out()))
    (background,) = (int(code) for code, is_it in seen.items() if is_it == "True")
    others = {int(code) for code, is_it in seen.items() if is_it == "False"}
    assert {note["code"] for note in stage.notes("group")} == others
    recorded = {record.group for record in stage.deck().ring()}
    assert recorded
    assert recorded <= others
    assert background not in recorded
