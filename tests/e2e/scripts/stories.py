"""A small DDP loop in which something goes wrong in step 4 of attempt 1: `stories.py KIND [STEPS]`, see the functions.

Rank 1 is the culprit, unless the story says otherwise; the others go on into their all_reduce.
"""

import ctypes
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

KIND = sys.argv[1]
STEP = 4
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 12
FIRST = os.environ.get("ZRUN_ATTEMPT", "1") == "1"
SHORT_S = {"waits_in_vain": 4.0}


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3 and KIND == "loader_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 3 and KIND == "loader_raises":
            raise KeyError("label of sample 3")
        return index


def raises() -> None:
    raise ValueError("sample 17 is broken")


def slow_finally() -> None:
    try:
        raise IndexError("index 9 is out of bounds")
    finally:
        dist.destroy_process_group()
        time.sleep(4)


def exit_0() -> None:
    os._exit(0)


def exit_7() -> None:
    os._exit(7)


def sys_exit_7() -> None:
    sys.exit(7)


def exit_137() -> None:
    child = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], check=False)
    sys.exit(128 - child.returncode)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    os.abort()


def segfault() -> None:
    ctypes.string_at(0)


def memory_error() -> None:
    raise MemoryError


def allocator() -> None:
    torch.empty(1 << 50)


def waits_in_vain() -> None:
    time.sleep(3600)


def sleeps() -> None:
    time.sleep(3600)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def broken_pipe() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"nobody reads")


def loader_killed() -> None:
    list(torch.utils.data.DataLoader(Numbers(), num_workers=1))


def loader_raises() -> None:
    list(torch.utils.data.DataLoader(Numbers(), num_workers=1))


def all_the_same() -> None:
    raise ValueError(f"no such config: {os.getpid()} at {id(object()):#x}")


def most_the_same() -> None:
    """Ranks 0, 1 and 3 of 4."""
    raise ValueError(f"no such config: {os.getpid()}")


def chained() -> None:
    try:
        dict[str, int]()["missing"]
    except KeyError as error:
        raise RuntimeError("the batch could not be made") from error


def keyboard() -> None:
    raise KeyboardInterrupt


def disk_full() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    Path("too-big").write_bytes(bytes(1 << 20))


def save_disk_full() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    torch.save(torch.zeros(1 << 20), "too-big.pt")


def http_reset() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        taken, _ = server.accept()
        taken.recv(100)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        taken.close()

    threading.Thread(target=serve, daemon=True).start()
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/shard-3", timeout=5)


def network_words() -> None:
    """A slow end: the others have complained before it is over."""
    try:
        raise RuntimeError("rank 0 of the feature store: connection reset by peer while shard 3 was read")
    finally:
        dist.destroy_process_group()
        time.sleep(1)


def user_timeout() -> None:
    raise TimeoutError("the lock on vocab.json was not free within 30 s")


def end_of_file() -> None:
    pickle.loads(pickle.dumps([1, 2, 3])[:-3])


def two_raise() -> None:
    """Rank 0 too, a little later and of its own."""
    if os.environ["RANK"] == "0":
        time.sleep(0.03)
        raise AssertionError("the loss is not finite")
    raise ValueError("sample 17 is broken")


def odd_survivor() -> None:
    """Rank 1 is killed; rank 0 hides its network error and fails on the consequence."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        print("never mind")
    raise AssertionError("no loss was reduced")


def wrapped_echo() -> None:
    """Rank 1 is killed; rank 0 raises an error of its own from the network's."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        raise LookupError("the loss could not be reduced") from error


def hidden_echo() -> None:
    """Rank 1 exits 3; rank 0 says the network's words again, as if they were its own."""
    if os.environ["RANK"] == "1":
        os._exit(3)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        raise RuntimeError(f"sync failed: {error}") from None


def work_wait() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()


def monitored_barrier() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(3600)
    dist.monitored_barrier(timeout=timedelta(seconds=2))


def store_wait() -> None:
    """Rank 1 waits for a key that nobody sets."""
    dist.distributed_c10d._get_default_store().wait(["the-vocabulary"], timedelta(seconds=1))


def mismatch() -> None:
    """Rank 1 reduces another shape: gloo says so on either side."""
    dist.all_reduce(torch.ones(4096 if os.environ["RANK"] == "1" else 1))


EVERYBODY: dict[str, set[int]] = {
    "all_the_same": {0, 1, 2, 3}, "most_the_same": {0, 1, 3}, "two_raise": {0, 1}, "odd_survivor": {0, 1},
    "wrapped_echo": {0, 1}, "hidden_echo": {0, 1}, "work_wait": {0, 1}, "monitored_barrier": {0, 1}, "mismatch": {0, 1},
}  # fmt: skip


def hook(_: Any) -> None:
    raise ArithmeticError("the gradient is not finite")


def main() -> None:
    rank = int(os.environ["RANK"])
    if KIND == "at_import":
        import a_module_nobody_has  # type: ignore[import-not-found]  # noqa: F401 - that is the story
    if KIND == "setup_one" and rank == 1:
        Path("no-such-vocabulary.json").read_text()
    dist.init_process_group("gloo", timeout=timedelta(seconds=SHORT_S.get(KIND, 300.0)))
    net = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trip: Callable[[], None] | None = globals().get(KIND)
    for step in range(1, STEPS + 1):
        time.sleep(0.05)
        x = torch.ones(2, 4)
        if step == STEP and FIRST and KIND == "backward_hook" and rank == 1:
            net.weight.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if step == STEP and FIRST and trip is not None and rank in EVERYBODY.get(KIND, {1}):
            print(f"story: {KIND}", flush=True)
            trip()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
