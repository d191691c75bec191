"""Session restores, counts, saves and stops, alone and on two gloo ranks under torchrun."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from tests.worker.stage import Ranks, Stage, until

from zrun.core.deck import Flag, Phase, StopKind
from zrun.core.manifest import scan
from zrun.core.settings import RankSettings

MakeStage = Callable[..., Stage]

TOY = """
import hashlib, os, sys, time, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from zrun.worker import Loader, Session

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        x = torch.arange(4.0) * i / 40 + torch.rand(4) * 0.1
        return x, x.sum(0, keepdim=True)

TOTAL, PAUSE = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
model = DDP(net) if "RANK" in os.environ else net
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, TOTAL)
with Session(model=model, optimizer=opt, scheduler=sched, data=Loader(Rows(), global_batch=8)) as run:
    for x, y in run.steps(total=TOTAL):
        time.sleep(PAUSE)
        HOOK
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss * run.weight).backward()
        opt.step(); sched.step(); opt.zero_grad()
        run.state["seen"] = run.state.get("seen", 0) + 1
        run.report(loss=loss)
        print("step", run.step, run.batch_id, loss.item().hex())
digest = hashlib.sha256(repr([p.tolist() for p in net.parameters()]).encode()).hexdigest()
print("end", digest, run.state["seen"], sched.last_epoch)
"""


def toy(stage: Stage, hook: str = "pass") -> Path:
    return stage.script(TOY.replace("HOOK", hook))


def losses(text: str) -> dict[int, str]:
    """step -> batch and loss as printed."""
    return {int(n): rest for n, rest in re.findall(r"step (\d+) (.+)", text)}


def end_of(text: str) -> str:
    found = re.search(r"^end .*$", re.sub("\x1e[^\x1e]*\x1e", "", text), re.MULTILINE)
    assert found, text
    return found[0]


def finished(stage: Stage, process: Ranks | subprocess.Popen[bytes]) -> None:
    assert process.wait(120) == 0, stage.story()


@pytest.mark.long
def test_without_agent_and_torchrun_a_script_trains_and_leaves_nothing(tmp_path: Path, bare: Stage) -> None:
    toy(bare)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")}
    done = subprocess.run(
        [sys.executable, "train.py", "7", "0"], env=environment, cwd=bare.folder, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(losses(done.stdout)) == [1, 2, 3, 4, 5, 6, 7]
    assert "e1-s000006-" in done.stdout
    assert not (bare.folder / "checkpoints").exists()
    assert list(bare.logs.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("kill_at", [8])
def test_two_ranks_killed_and_resumed_end_with_the_same_losses_and_weights(
    make_stage: MakeStage, tmp_path: Path, kill_at: int
) -> None:
    settings = RankSettings(seed=5, save_every_steps=3)
    (tmp_path / "straight").mkdir()
    straight = Stage(tmp_path / "straight", 2, settings)
    toy(straight)
    finished(straight, straight.launch("train.py", "14", "0"))

    hook = f"""
        while run.step == {kill_at} and os.environ["ZRUN_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
            if os.path.isdir("checkpoints/step-{(kill_at - 1) // 3 * 3:06d}"): os.kill(os.getpid(), 9)
            time.sleep(0.01)
"""
    first = make_stage(2, settings=settings)
    toy(first, hook)
    assert first.launch("train.py", "14", "0").wait(120) != 0
    assert max(losses(first.out(1))) == kill_at - 1

    second = make_stage(2, settings=settings, attempt=2)
    finished(second, second.launch("train.py", "14", "0"))
    resumed = (kill_at - 1) // 3 * 3
    for rank in (0, 1):
        note = second.note("session", rank)
        assert (note["resumed_step"], note["tier"], note["total_steps"]) == (resumed, "disk", 14)
        assert losses(second.out(rank)) == {
            n: line for n, line in losses(straight.out(rank)).items() if n > resumed
        }  # fmt: skip
        assert end_of(second.out(rank)) == end_of(straight.out(rank))
    assert [n["step"] for n in straight.notes("checkpoint")] == [0, 3, 6, 9, 12, 14]
    assert straight.notes("checkpoint", rank=1) == []
    straight.end()


@pytest.mark.long
def test_the_deck_follows_a_session(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=None, save_initial=False))
    toy(stage, "with run.phase('tokenize'): time.sleep(PAUSE)")
    process = stage.torchrun("train.py", "6", "0.1")
    seen = set()
    while process.poll() is None:
        state = stage.deck().read()
        seen.add((state.phase, state.phase_name))
        time.sleep(0.005)
    finished(stage, process)
    assert {
        (Phase.BOOT, ""),
        (Phase.SETUP, ""),
        (Phase.FIRST_STEP, ""),
        (Phase.STEP, ""),
        (Phase.OWN, "tokenize"),
    } <= seen
    state = stage.deck(1).read()
    assert (state.step, state.completed, state.total_steps, state.phase) == (6, 6, 6, Phase.DONE)
    assert Flag.SESSION | Flag.FINISHED | Flag.RECORDER in state.flags
    assert Flag.IN_LOADER not in state.flags
    assert str(state.batch).startswith("e1-s000006-")
    assert state.metrics["loss"] > 0
    assert state.coll_seq == state.coll_done > 6


def order(stage: Stage, kind: StopKind, sequence: int, step: int, confirmed: int = 0) -> None:
    for rank in range(stage.ranks):
        stage.deck(rank).write_order(kind, sequence, step, confirmed, time.time() + 60)


def all_acknowledged(stage: Stage, sequence: int) -> bool:
    return all(stage.deck(rank).read().ack_seq == sequence for rank in range(stage.ranks))


def test_a_confirmed_stop_saves_at_one_step_on_all_ranks_and_ends_with_code_0(make_stage: MakeStage) -> None:
    stage = make_stage(2)
    toy(stage)
    process = stage.launch("train.py", "100000", "0.02")
    until("some steps", lambda: stage.deck().read().completed >= 3)
    # As the agent does: a step some rank may be past already is raised until everybody has acknowledged it.
    sequence, step = 1, stage.deck().read().step
    while not all_acknowledged(stage, sequence):
        decks = [stage.deck(rank).read() for rank in (0, 1)]
        if any(d.step > step and d.ack_seq != sequence for d in decks) or sequence == 1:
            sequence, step = sequence + 1, max(d.step for d in decks) + 1
            order(stage, StopKind.STOP, sequence, step)
        time.sleep(0.005)
    order(stage, StopKind.STOP, sequence, step, confirmed=sequence)
    finished(stage, process)
    for rank in (0, 1):
        assert stage.notes("stopped-at", rank)[0]["step"] == step
        assert stage.notes("stopped-at", rank)[0]["saved"] is True
        assert Flag.STOPPED_SAFE | Flag.FINISHED in stage.deck(rank).read().flags
        assert max(losses(stage.out(rank))) == step
        assert stage.notes("last-words", rank) == []
    newest = scan(stage.folder / "checkpoints")[0]
    assert (newest.step, newest.state) == (step, "complete")


@pytest.mark.long
def test_an_ordered_save_is_made_once_and_training_goes_on(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=None))
    toy(
        stage,
        "if run.step == 40: open('go','w').close()\n        while run.step == 5 and not os.path.exists('five'): time.sleep(0.01)",
    )
    process = stage.launch("train.py", "12", "0")
    until("step 5", lambda: all(stage.deck(r).read().step == 5 for r in (0, 1)))
    order(stage, StopKind.SAVE, 7, 9)
    (stage.folder / "five").touch()
    until("acknowledged", lambda: all_acknowledged(stage, 7))
    order(stage, StopKind.SAVE, 7, 9, confirmed=7)
    finished(stage, process)
    assert [n["step"] for n in stage.notes("checkpoint")] == [0, 9, 12]
    assert max(losses(stage.out())) == 12


@pytest.mark.long
def test_a_rank_inside_a_collective_is_seen_there_and_the_other_is_not(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_initial=False, save_every_steps=None))
    toy(stage, "if run.step == 4 and os.environ['RANK'] == '1': time.sleep(3600)")
    stage.launch("train.py", "9", "0")
    until("rank 1 sleeps", lambda: stage.deck(1).read().step == 4)
    # Rank 1's own last collective is over once its watcher has looked.
    until("rank 0 is inside", lambda: stage.deck(0).read().in_collective and stage.deck(0).read().step == 4)
    until("rank 1 is outside", lambda: not stage.deck(1).read().in_collective)
    time.sleep(0.3)  # longer than any look: it must still be so
    waiting, absent = stage.deck(0).read(), stage.deck(1).read()
    assert waiting.in_collective
    assert waiting.coll_op == "all_reduce"
    assert waiting.coll_seq == absent.coll_seq + 1
    assert waiting.coll_bytes == 4 * (4 * 8 + 8 + 8 + 1)
    assert not absent.in_collective
    os.kill(absent.pid, signal.SIGKILL)
    note = stage.note("last-words", 0, final=True)
    assert note["collective"] == f"all_reduce #{waiting.coll_seq}" or note["collective"] is None
    assert note["exception"] in {"RuntimeError", "torch.distributed.DistBackendError"}
    assert note["where"] == "train.py:25"
    assert note["step"] == 4
    assert note["batch"].startswith("e0-s000004-")


def test_a_raise_in_the_body_is_told_at_once_with_step_and_batch(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    text = TOY.replace("HOOK", "if run.step == 3: raise ValueError('bad sample')").replace(
        "with Session", "try:\n  with Session"
    )
    head, body = text.split("try:\n", 1)
    loop, tail = body.split("digest =", 1)
    loop = "\n".join(line if number == 0 else f"  {line}" for number, line in enumerate(loop.splitlines()))
    stage.script(f"{head}try:\n{loop}\nfinally:\n  time.sleep(3600)\ndigest ={tail}")
    stage.launch("train.py", "9", "0")
    note = stage.note("last-words", exception="ValueError")
    assert note["final"] is False
    assert (note["step"], note["phase"]) == (3, "step")
    assert note["batch"].startswith("e0-s000003-")
    assert len(stage.notes("last-words")) == 1


def test_a_failed_save_is_loud_and_training_goes_on(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=4))
    toy(
        stage,
        """
        while run.step == 6 and os.environ["RANK"] == "0" and os.path.isdir("checkpoints"):
            if os.path.isdir("checkpoints/step-000004"):
                os.rename("checkpoints", "elsewhere"); open("checkpoints", "w").close()
            time.sleep(0.01)
""",
    )
    finished(stage, stage.launch("train.py", "9", "0"))
    for rank in (0, 1):
        assert [n["step"] for n in stage.notes("save-failed", rank)] == [8, 9]
        assert max(losses(stage.out(rank))) == 9
    assert not stage.notes("save-failed")[0]["disk_full"]
    assert "save at step 8 failed" in stage.err()


def test_a_quarantined_batch_is_skipped_and_told(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    toy(stage)
    finished(stage, stage.launch("train.py", "4", "0"))
    third = losses(stage.out())[3].split()[0]
    second = make_stage(1, attempt=2, settings=RankSettings(quarantined=[third], fresh=True))
    second.env["ZRUN_CHECKPOINT_DIR"] = str(second.folder / "others")
    finished(second, second.launch("train.py", "4", "0"))
    assert second.notes("quarantined")[0] | {"at": 0} == {"kind": "quarantined", "at": 0, "step": 3, "batch": third}
    assert [line.split()[0][:10] for line in losses(second.out()).values()] == [
        "e0-s000001", "e0-s000002", "e0-s000004", "e0-s000005",
    ]  # fmt: skip


@pytest.mark.long
def test_what_another_run_found_bad_is_left_out_by_a_run_that_begins_from_its_checkpoint(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    toy(stage)
    finished(stage, stage.launch("train.py", "5", "0"))
    (fifth, third) = (losses(stage.out())[n].split()[0] for n in (5, 3))
    settings = RankSettings(quarantined=[third, fifth], fresh=True, save_every_steps=2)
    knows = make_stage(1, attempt=2, settings=settings)  # dies before it comes to the fifth batch
    knows.env["ZRUN_CHECKPOINT_DIR"] = str(knows.folder / "known")
    toy(knows, "sys.exit(3) if run.step == 4 else None")
    assert knows.launch("train.py", "5", "0").wait() == 3
    own = str(knows.folder / "own")
    for attempt, resume in ((3, str(knows.folder / "known" / "step-000002")), (4, "auto")):
        later = make_stage(1, attempt=attempt, settings=RankSettings(resume=resume, save_every_steps=1))
        later.env |= {"ZRUN_CHECKPOINT_DIR": own, "ZRUN_JOB": "other-5678"}
        toy(later, f"sys.exit(3) if run.step == 4 and {attempt} == 3 else None")
        assert later.launch("train.py", "5", "0").wait() == (3 if attempt == 3 else 0), later.story()
        assert fifth in "".join(n["message"] for n in later.notes("warning"))
    told = {step: line.split()[0].split("-")[1] for step, line in losses(later.out()).items()}
    assert told == {4: "s000006", 5: "s000007"}


@pytest.mark.long
def test_data_that_cannot_be_sought_is_refused_before_anything_is_loaded(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    toy(stage)
    finished(stage, stage.launch("train.py", "2", "0"))
    second = make_stage(1, attempt=2)
    forgets = "Loader(Rows(), global_batch=8, sampler=Remembers())"
    second.script(
        TOY.replace("HOOK", "pass").replace("Loader(Rows(), global_batch=8)", forgets).replace(
            "TOTAL,", "class Remembers:\n    n = 0\n    def __iter__(self):\n        self.n += 1\n"
            "        return iter([self.n] * 8)\nTOTAL,", 1))  # fmt: skip
    assert second.launch("train.py", "3", "0").wait() == 1
    (words,) = second.notes("last-words")[-1:]
    assert "Remembers gives another order when it is asked again" in words["message"]
    assert not second.notes("session"), "nothing was restored"


BAD_LOSS = """
import sys, torch
from zrun.worker import Loader, Session
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
rank = torch.distributed.get_rank()
with Session(model=model, data=Loader(torch.zeros(400, 1), global_batch=8)) as run:
    for batch in run.steps(total=30):
        run.report(loss=torch.tensor(float(sys.argv[1])) if (run.step, rank) == (25, 1) else 1.0 + run.step / 100)
        print("step", run.step, run.batch_id)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("loss", "factor", "words"),
    [("nan", None, "is nan on rank 1"), ("50", 10.0, "is 50, more than 10 times the usual 1.125 on rank 1"), ("9", 10.0, "")],
)  # fmt: skip
def test_a_bad_loss_on_one_rank_ends_all_before_the_step_is_done(
    make_stage: MakeStage, loss: str, factor: float | None, words: str
) -> None:
    settings = RankSettings(on_bad_loss="skip", bad_loss_factor=factor, save_every_steps=5)
    stage = make_stage(2, settings=settings)
    stage.script(BAD_LOSS)
    assert stage.launch("train.py", loss).wait() == (1 if words else 0), stage.story()
    for rank in (0, 1) if words else ():
        told = stage.notes("last-words", rank)[-1]
        assert words in told["message"]
        assert (told["step"], told["phase"], told["batch"]) == (25, "step", told["batch"])
        assert told["batch"] == stage.out(rank).split()[-1].strip("\x1e")
        assert stage.deck(rank).read().completed == 24
    assert max(f.step for f in scan(stage.folder / "checkpoints")) == (20 if words else 30)


@pytest.mark.long
def test_a_script_that_tells_no_loss_is_told_so(make_stage: MakeStage) -> None:
    stage = make_stage(1, settings=RankSettings(on_bad_loss="stop"))
    toy(stage, "run.report = lambda **_: None")
    finished(stage, stage.launch("train.py", "3", "0"))
    assert [n["message"] for n in stage.notes("warning") if "sees no loss" in n["message"]]


MICRO = """
import sys, torch
from zrun.worker import Loader, Session
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
torch.nn.init.zeros_(model.module.weight); torch.nn.init.zeros_(model.module.bias)
data = torch.utils.data.TensorDataset(torch.arange(30.0).view(10, 3), torch.arange(10.0))
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
with Session(model=model, optimizer=opt, data=Loader(data, global_batch=5, micro_batch=int(sys.argv[1]))) as run:
    for batch in run.steps(total=2):
        parts = 0
        for x, y in run.micro(batch):
            loss = ((model(x).squeeze(1) - y) ** 2).mean()
            (loss * run.weight).backward()
            parts += 1
        opt.step(); opt.zero_grad()
        print("parts", parts)
    print("weights", [round(float(v), 5) for v in model.module.weight[0]])
"""


@pytest.mark.long
def test_uneven_shares_and_parts_make_the_exact_mean(make_stage: MakeStage, tmp_path: Path) -> None:
    seen: dict[tuple[int, int], str] = {}
    for ranks, micro in ((1, 2), (2, 1), (3, 1)):
        folder = tmp_path / f"{ranks}-{micro}"
        folder.mkdir()
        stage = Stage(folder, ranks)
        stage.script(MICRO)
        finished(stage, stage.launch("train.py", str(micro)))
        counts = {tuple(re.findall(r"parts (\d+)", stage.out(rank))) for rank in range(ranks)}
        assert counts == {(str(ceil(ceil(5 / ranks) / micro)),) * 2}
        seen[ranks, micro] = re.findall(r"weights .*", stage.out())[0]
        stage.end()
    assert len(set(seen.values())) == 1, seen


def test_wrong_use_says_what_to_do(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    stage.script(
        """
        import torch
        from torch.utils.data import DataLoader
        from zrun.worker import Loader, Session
        for attempt in (
            lambda: Session(data=DataLoader([1, 2])),
            lambda: next(Session().steps(3)),
        ):
            try:
                attempt()
            except Exception as error:
                print(type(error).__name__, error)
        with Session() as run:
            print([step for step in run.steps(3)], run.batch_id, run.weight)
            try:
                list(run.steps(4))
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    assert stage.run("train.py") == 0, stage.story()
    lines = re.sub("\x1e[^\x1e]*\x1e", "", stage.out()).splitlines()
    assert lines[0] == "UsageError data is a DataLoader"
    assert lines[1].startswith("UsageError steps() is for the inside")
    assert lines[2] == "[1, 2, 3] None 1.0"
    assert lines[3].startswith("UsageError steps() may be entered once")


def test_run_save_saves_at_the_end_of_its_step(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=None, save_initial=False))
    toy(stage, "run.save() if run.step == 2 else None")
    finished(stage, stage.launch("train.py", "5", "0"))
    assert [n["step"] for n in stage.notes("checkpoint")] == [2, 5]
    found: dict[str, Any] = json.loads((stage.folder / "checkpoints/step-000002/manifest.json").read_text())
    assert found["cursor"]["ordinal"] == 2


@pytest.mark.long
def test_a_cadence_in_seconds_is_agreed_by_all_ranks(make_stage: MakeStage) -> None:
    stage = make_stage(2, settings=RankSettings(save_every_steps=None, save_every_s=0.4, save_initial=False))
    toy(stage)
    finished(stage, stage.launch("train.py", "40", "0.05"))
    steps = [n["step"] for n in stage.notes("checkpoint")]
    assert 2 <= len(steps) <= 7
    assert steps[-1] == 40


RAISES = """
import sys, time
from zrun.worker import Session
with Session() as run:
    if sys.argv[1] == "setup":
        raise ValueError("early")
    for step in run.steps(total=5):
        if sys.argv[1] == "eval":
            with run.phase("eval"):
                raise ValueError("in eval")
        if sys.argv[1] == "step" and step == 3:
            try:
                raise KeyError("handled")
            except KeyError:
                pass
            raise ValueError("in the loop")
        if sys.argv[1] == "first":
            raise ValueError("at once")
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "phase", "step"),
    [("step", "step", 3), ("eval", "eval", 1), ("first", "first_step", 1), ("setup", "setup", 0)],
)
def test_last_words_tell_the_phase_in_which_it_was_raised_not_the_exit(
    stage: Stage, mode: str, phase: str, step: int
) -> None:
    stage.script(RAISES)
    assert stage.run("train.py", mode) == 1
    final = stage.note("last-words", final=True)
    assert (final["exception"], final["phase"], final["step"]) == ("ValueError", phase, step)
    assert stage.deck().read().phase is Phase.EXIT


def test_an_exception_that_was_handled_lends_its_step_to_no_other(stage: Stage) -> None:
    stage.script(
        """
        from zrun.worker import Session
        kept = ValueError("again")
        with Session() as run:
            for step in run.steps(total=5):
                if step in (2, 4):
                    try:
                        with run.phase("eval"):
                            raise kept
                    except ValueError:
                        if step == 4:
                            raise
        """
    )
    assert stage.run("train.py") == 1
    final = stage.note("last-words", final=True)
    assert (final["step"], final["phase"]) == (4, "eval")


@pytest.mark.long
def test_pruned_checkpoints_are_told_and_the_resume_step_is_known_at_the_scripts_first_line(
    make_stage: MakeStage,
) -> None:
    settings = RankSettings(save_every_steps=1, keep_last=2, keep_every_steps=None, save_initial=False)
    first = make_stage(settings=settings)
    script = """
        import os
        print("first line", os.environ["ZRUN_RESUME_STEP"])
        from zrun.worker import Session
        with Session() as run:
            for step in run.steps(total=4):
                pass
        """
    first.script(script)
    assert first.run("train.py") == 0, first.story()
    assert [(note["step"], note["pruned"]) for note in first.notes("checkpoint")] == [
        (1, []), (2, []), (3, [1]), (4, [2]),
    ]  # fmt: skip
    assert first.out().replace("\x1e", "").startswith("first line 0\n")
    second = make_stage(settings=settings, attempt=2)
    assert second.run("train.py") == 0, second.story()
    assert second.out().startswith("first line 4\n")
    never = make_stage(settings=RankSettings(resume="never"), attempt=3)
    never.script("import os\nprint(os.environ['ZRUN_RESUME_STEP'])")
    assert never.run("train.py") == 0
    assert never.out() == "0\n"
