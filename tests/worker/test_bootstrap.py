"""The bootstrap runs a script as python does, and says at once what ends it. Real processes, as the agent starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.worker.stage import Stage, until

from zrun.core.deck import Flag, Phase, StopKind
from zrun.core.marks import strip_marks

SEEN = """
import json, os, sys
class Own: pass
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path0": sys.path[0], "cwd": os.getcwd(),
    "spec": getattr(__spec__, "name", None), "package": __package__, "own": Own.__module__,
    "main": sys.modules["__main__"].__dict__ is globals(), "doc": __doc__,
}, sort_keys=True))
"""


def plain(stage: Stage, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The same without zrun."""
    return subprocess.run(
        [sys.executable, "-u", *map(str, arguments)], env=stage.variables(0), cwd=stage.folder, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_script_sees_what_python_shows_it(bare: Stage) -> None:
    bare.script(SEEN, "seen.py")
    assert bare.run("seen.py", "--lr", "1e-4") == 0
    assert bare.out() == plain(bare, "seen.py", "--lr", "1e-4").stdout


def test_a_module_sees_what_python_shows_it(bare: Stage) -> None:
    (bare.folder / "pack").mkdir()
    bare.script(SEEN, "pack/seen.py")
    bare.script(SEEN, "pack/__main__.py")
    for name in ("pack.seen", "pack"):
        assert bare.run("-m", name, "x") == 0
        assert json.loads(bare.out().splitlines()[-1]) == json.loads(plain(bare, "-m", name, "x").stdout)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0), ("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit('no data')", 1), ("raise ValueError('x')", 1),
        ("os._exit(9)", 9), ("sys.exit(300)", 44), ("raise KeyboardInterrupt", -signal.SIGINT), ("import nowhere", 1),
        ("os.kill(os.getpid(), 9)", -9), ("def f(:", 1), ("exit(0)", 0),
    ],
)  # fmt: skip
def test_exit_codes_and_stderr_are_pythons(bare: Stage, ending: str, code: int) -> None:
    bare.script(f"import os, sys\n{ending}\n")
    assert bare.run("train.py") == code, bare.story()
    expected = plain(bare, "train.py")
    assert expected.returncode == code
    assert bare.err() == expected.stderr


def test_a_missing_script_is_named(bare: Stage) -> None:
    assert bare.run("nowhere.py") == 2
    assert "can't open file" in bare.err()
    assert bare.notes("last-words")[0]["exit_code"] == 2
    assert bare.run("-m", "no.such") == 1
    assert "No module named no" in bare.err()


def test_the_deck_tells_boot_to_done(stage: Stage) -> None:
    stage.script("print('hello')")
    assert stage.run("train.py") == 0
    state = stage.deck().read()
    assert state.phase is Phase.DONE
    assert Flag.FINISHED | Flag.DUMP_READY | Flag.RECORDER in state.flags
    assert [note["kind"] for note in stage.notes()] == ["started", "finished"]
    assert stage.notes("started")[0]["argv"] == ["train.py"]
    assert stage.notes("started")[0]["pid"] == state.pid


CHAIN = """
import time
def load(path):
    raise FileNotFoundError(path)

def train():
    try:
        load("shard-7")
    except FileNotFoundError as error:
        raise RuntimeError("no shard") from error

try:
    train()
finally:
    time.sleep(3600)
"""


def test_last_words_come_while_a_finally_sleeps(bare: Stage) -> None:
    bare.script(CHAIN)
    bare.start("train.py")
    note = bare.note("last-words", final=False)
    assert note["exception"] == "FileNotFoundError"
    assert note["message"] == "shard-7"
    assert note["where"] == "train.py:4"
    assert "RuntimeError: no shard" in note["traceback"]
    assert note["traceback"].index("FileNotFoundError") < note["traceback"].index("RuntimeError")
    assert (note["phase"], note["step"]) == ("setup", 0)


def test_candidates_come_within_a_tenth_of_a_second_and_final_words_before_any_exit_work(bare: Stage) -> None:
    bare.script(
        """
        import atexit, threading, time
        atexit.register(time.sleep, 3600)
        threading.Thread(target=time.sleep, args=(3600,)).start()
        try:
            print(time.time())
            raise ValueError("boom")
        finally:
            time.sleep(0.5)
            print(time.time())
        """
    )
    bare.start("train.py")
    final = bare.note("last-words", final=True)
    raised, left = map(float, bare.out().split())
    first = bare.notes("last-words")[0]
    assert not first["final"]
    # two polls of 50 ms and the writing itself; the machine may be busy
    assert first["at"] - raised < 0.4
    assert final["at"] - left < 0.2
    assert Flag.LAST_WORDS in bare.deck().read().flags


def test_last_words_are_cut_and_what_no_utf8_can_hold_is_escaped(bare: Stage) -> None:
    bare.script("raise ValueError('\\ud800' + 'x' * 200_000 + ' end')")
    assert bare.run("train.py") == 1
    (note,) = bare.notes("last-words")
    assert note["message"].startswith("\\ud800xxx")
    assert note["message"].endswith("xxx end")
    assert "characters cut" in note["message"]
    assert len(note["message"]) < 4_100
    assert 60_000 < len(note["traceback"]) < 66_000


def test_a_handled_exception_leaves_no_last_words(bare: Stage) -> None:
    bare.script("for n in range(1000):\n    try:\n        raise ValueError(n)\n    except ValueError:\n        pass\n")
    assert bare.run("train.py") == 0
    assert bare.notes("last-words") == []


def test_an_exit_with_a_code_is_no_exception(bare: Stage) -> None:
    bare.script("import sys\n\nsys.exit(7)\n")
    assert bare.run("train.py") == 7
    (note,) = bare.notes("last-words")
    assert (note["exit_code"], note["exception"], note["final"], note["where"]) == (7, None, True, "train.py:3")


def test_the_error_file_has_the_form_of_record(bare: Stage, tmp_path: Path) -> None:
    bare.env["TORCHELASTIC_ERROR_FILE"] = str(tmp_path / "error.json")
    bare.script("raise ValueError('boom')")
    assert bare.run("train.py") == 1
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert "boom" in message["extraInfo"]["py_callstack"]
    assert message["extraInfo"]["timestamp"].isdigit()


def test_the_users_line_is_named_not_the_librarys(bare: Stage) -> None:
    bare.script("import json\n\ndef read(text):\n    return json.loads(text)\n\nread('{')\n")
    assert bare.run("train.py") == 1
    (note,) = bare.notes("last-words")
    assert note["exception"] == "json.decoder.JSONDecodeError"
    assert note["where"] == "train.py:4"


def test_a_library_inside_the_scripts_folder_is_still_a_library(bare: Stage) -> None:
    for folder in (".venv/lib/python3.11/site-packages", "runs/toy-1/rank-path/zrun"):
        (bare.folder / folder).mkdir(parents=True)
        bare.script("def read(text):\n    raise ValueError(text)\n", f"{folder}/inner_{folder[1:4]}.py")
    bare.script(
        """
        import sys
        sys.path[:0] = [f"{sys.path[0]}/.venv/lib/python3.11/site-packages", f"{sys.path[0]}/runs/toy-1/rank-path/zrun"]
        import inner_uns, inner_ven
        (inner_ven if len(sys.argv) > 1 else inner_uns).read("x")
        """
    )
    for arguments in ((), ("venv",)):
        assert bare.run("train.py", *arguments) == 1
        assert bare.notes("last-words")[-1]["where"] == "train.py:5"


def test_an_excepthook_of_the_scripts_own_is_used(bare: Stage) -> None:
    bare.script("import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\nraise ValueError\n")
    assert bare.run("train.py") == 1
    assert bare.out() == "mine ValueError\n"
    assert bare.notes("last-words")[0]["exception"] == "ValueError"


def test_prints_are_on_disk_before_a_kill(bare: Stage) -> None:
    bare.script("import os, sys\nprint('one', end='')\nsys.stderr.write('two')\nos.kill(os.getpid(), 9)\n")
    assert bare.run("train.py") == -9
    assert (bare.out(), bare.err()) == ("one", "two")


def test_a_fatal_signal_leaves_the_stack(bare: Stage) -> None:
    bare.script("import ctypes\ndef deep():\n    ctypes.string_at(0)\ndeep()\n")
    assert bare.run("train.py") == -signal.SIGSEGV
    assert "in deep" in (bare.logs / "rank-0.stacks").read_text()


def test_the_dump_signal_writes_stacks_while_native_code_holds_the_gil(stage: Stage) -> None:
    stage.script(
        "import ctypes\ndef stuck():\n    print('in', flush=True)\n    ctypes.PyDLL(None).sleep(3600)\nstuck()\n"
    )
    process = stage.start("train.py")
    until("the script is stuck", lambda: (stage.logs / "rank-0.out").exists() and stage.out())
    assert Flag.DUMP_READY in stage.deck().read().flags
    process.send_signal(signal.SIGRTMIN + 4)
    until("stacks", lambda: "in stuck" in (stage.logs / "rank-0.stacks").read_text(), 5)


def test_seeds_are_set_before_the_script_runs(stage: Stage) -> None:
    stage.script("import random, torch, numpy\nprint(random.random(), torch.rand(1).item(), numpy.random.rand())\n")
    assert stage.run("train.py") == 0
    assert stage.run("train.py") == 0
    first, second = stage.out().splitlines()
    assert first == second
    stage.env["ZRUN_SEED"] = "1"
    assert stage.run("train.py") == 0
    assert not set(stage.out().splitlines()[2].split()) & set(first.split())


TRAIN = """
import sys, torch
from torch.distributed.optim import ZeroRedundancyOptimizer
p = torch.nn.Parameter(torch.ones(3))
opt = torch.optim.SGD([p], lr=0.1)
for step in range(1, 6):
    p.sum().backward()
    opt.step()
    print("after", step)
    print("err", step, file=sys.stderr)
"""


def test_steps_are_counted_without_a_session_and_marked_in_both_streams(stage: Stage) -> None:
    stage.script(TRAIN)
    assert stage.run("train.py") == 0
    state = stage.deck().read()
    assert (state.completed, state.step) == (5, 6)
    assert Flag.SESSION not in state.flags
    for raw, word in ((stage.out(), "after"), (stage.err(), "err")):
        clean, marks = strip_marks(raw.encode())
        assert clean.decode() == "".join(f"{word} {n}\n" for n in range(1, 6))
        assert [mark.step for mark in marks] == [2, 3, 4, 5, 6]
        before = raw[: raw.index(f"{word} 3")].encode()
        assert strip_marks(before)[1][-1].step == 4  # the third update is done: what follows belongs to step 4


def test_a_zero_redundancy_step_counts_once(stage: Stage) -> None:
    stage.env |= {"MASTER_ADDR": "127.0.0.1"}
    stage.script(
        """
        import torch, torch.distributed as dist
        from torch.distributed.optim import ZeroRedundancyOptimizer
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = torch.nn.Linear(3, 1)
        opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        for _ in range(4):
            model(torch.ones(3)).sum().backward()
            opt.step()
        dist.destroy_process_group()
        """
    )
    assert stage.run("train.py") == 0, stage.story()
    assert stage.deck().read().completed == 4


LOADERS = """
import sys, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        print("worker reads", i)
        return i

if __name__ == "__main__":
    for batch in DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]):
        print(batch.tolist())
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loader_workers_find_main_and_leave_deck_and_notes_alone(stage: Stage, start: str) -> None:
    stage.script(LOADERS)
    assert stage.run("train.py", start) == 0, stage.story()
    assert "[0, 1, 2, 3]\n" in stage.out()
    assert stage.out().count("worker reads") == 8
    assert [note["kind"] for note in stage.notes()] == ["started", "finished"]
    assert stage.deck().read().pid == stage.notes("started")[0]["pid"]


def test_spawned_workers_of_a_module_find_it(stage: Stage) -> None:
    (stage.folder / "pack").mkdir()
    stage.script(LOADERS, "pack/train.py")
    assert stage.run("-m", "pack.train", "spawn") == 0, stage.story()
    assert "[4, 5, 6, 7]\n" in stage.out()


def test_an_error_in_a_loader_worker_is_told_with_the_datasets_line(stage: Stage) -> None:
    stage.script(LOADERS.replace("        return i", "        return 1 / (i - 5)"))
    assert stage.run("train.py", "fork") == 1
    (note,) = stage.notes("last-words")
    assert note["exception"] == "ZeroDivisionError"
    assert note["message"] == "division by zero"
    assert note["where"] == "train.py:9"


def test_a_forked_child_that_fails_leaves_no_words_in_the_ranks_name(stage: Stage) -> None:
    stage.script(
        "import os\npid = os.fork()\nif pid == 0:\n    raise ValueError('child')\nos.waitpid(pid, 0)\nprint('parent')\n"
    )
    assert stage.run("train.py") == 0
    assert [note["kind"] for note in stage.notes()] == ["started", "finished"]
    assert "ValueError: child" in stage.err()


WAIT = """
import time
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def ready(stage: Stage, text: str = WAIT) -> subprocess.Popen[bytes]:
    stage.script(text)
    process = stage.start("train.py")
    until("the script runs", lambda: (stage.logs / "rank-0.out").exists() and "ready" in stage.out())
    return process


def test_a_term_without_a_stop_asks_for_preemption_and_the_rank_goes_on(bare: Stage) -> None:
    process = ready(bare)
    process.send_signal(signal.SIGTERM)
    until("the request is seen", lambda: Flag.TERM_SEEN in bare.deck().read().flags)
    assert process.poll() is None
    bare.deck().write_order(StopKind.STOP, 1, 10**9, 0, time.time() + 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert bare.notes("last-words") == []


def test_a_term_after_a_stop_ends_a_rank_inside_native_code(bare: Stage) -> None:
    process = ready(bare, "import ctypes\nprint('ready')\nwhile True:\n    ctypes.CDLL(None).poll(0, 0, -1)\n")
    process.send_signal(signal.SIGTERM)
    until("the request is seen", lambda: Flag.TERM_SEEN in bare.deck().read().flags)
    bare.deck().write_order(StopKind.STOP, 1, 10**9, 0, time.time() + 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) in {-signal.SIGTERM, 128 + signal.SIGTERM}


def test_a_scripts_own_term_handler_runs_alone_and_the_job_is_told(bare: Stage) -> None:
    own = "import signal\nsignal.signal(signal.SIGTERM, lambda *a: print('mine', flush=True))\n"
    process = ready(bare, own + WAIT)
    process.send_signal(signal.SIGTERM)
    until("the script's handler", lambda: "mine" in bare.out())
    until("the request is seen", lambda: Flag.TERM_SEEN in bare.deck().read().flags)
    bare.deck().write_order(StopKind.STOP, 1, 10**9, 0, time.time() + 60)
    process.send_signal(signal.SIGTERM)
    until("the script's handler again", lambda: bare.out().count("mine") == 2)
    time.sleep(1.5)  # longer than a rank with our handler gets to unwind
    assert process.poll() is None, "nothing of ours ends it"


def test_loader_workers_can_be_terminated(bare: Stage) -> None:
    bare.script(
        """
        import multiprocessing, time
        if __name__ == "__main__":
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
            child.start()
            child.terminate()
            child.join()
            print("child", child.exitcode)
        """
    )
    assert bare.run("train.py") == 0
    assert bare.out() == "child -15\n"
    assert Flag.TERM_SEEN not in bare.deck().read().flags


def test_without_an_agent_a_script_just_runs(bare: Stage) -> None:
    bare.script("print('hello')\nraise ValueError('x')\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")}
    done = subprocess.run(
        [sys.executable, "-m", "zrun.worker", "train.py"], env=environment, cwd=bare.folder, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == "hello\n"
    assert done.stderr == plain(bare, "train.py").stderr


def test_importing_the_package_brings_neither_torch_nor_anything_of_ours_beyond_core() -> None:
    code = (
        "import sys; before = set(sys.modules); import zrun.worker, zrun.worker.bootstrap; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} & {'torch','numpy','pydantic','fastapi',"
        "'structlog','psutil','msgspec','click','rich'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_rooms_inside_a_rank_import_torch_and_the_standard_library_only() -> None:
    code = (
        "import sys, torch, torch.distributed, torch.utils.data, torch.distributed.tensor; before = set(sys.modules); "
        "from zrun.worker import Session, Loader; import zrun.worker.bootstrap, zrun.worker.recorder; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'zrun', 'torch'} - {n for n in new if n.startswith('_sysconfigdata')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
