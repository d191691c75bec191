"""How far one rank's end can be trusted as a cause, read from its texts alone; knows nothing about the other ranks.

When one rank dies, the others fail too: with words that only say that a peer is gone. Those words are listed here.
"""

import re
from enum import IntEnum
from typing import Final

from zrun.core.failure import Failure, FailureKind
from zrun.machine.excerpt import raised_by_hand


class Weight(IntEnum):
    """Smaller explains larger."""

    CAUSE = 0
    EARLY = 1
    """Left with code 0 before the others: explains what only speaks of a peer, not another rank's own failure."""
    WEAK = 2
    """Could be a cause, but is more often a consequence: believed only if nothing better is there."""
    ECHO = 3
    """Only says that a peer went away or did not come."""
    OURS = 4
    """zrun ended this rank."""


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_TIMEOUT: Final = _words(
    r"application timeout caused pair closure",
    r"timed out waiting \d+ ?ms for (recv|send)",
    r"watchdog caught collective operation timeout",
    r"timed out (after|waiting)[^\n]{0,80}(client|rank|collective|barrier|store)",
    r"ranks? .{0,40}failed to (pass|reach) monitored ?barrier",
    r"monitored ?barrier.{0,40}timed? ?out",
    r"wait timeout after \d+ ?ms",
)
"""These ranks waited in vain: nobody needs to have died."""
_GONE: Final = _words(
    r"connection closed by (remote )?peer",
    r"connection reset by (remote )?peer",
    r"connection refused",
    r"broken pipe",
    r"connection aborted",
    r"transport endpoint is not connected",
    r"connectfullmesh",
    r"gloo.{0,80}(ioexception|tcp/pair)",
    r"remote process (has )?exited",
    r"nccl communicator was aborted",
    r"nccl(remote|system)error|socket operation .{0,40}failed|ncclinternalerror.{0,200}(socket|peer)",
    r"failed to recv, got 0 bytes|recvvalue failed|sendbytes failed|failed to recv",
    r"tcpstore.{0,120}(failed|closed|reset)",
    r"the client socket has (failed|timed out)",
    r"processgroup.{0,80}(aborted|shut ?down)",
    r"no backend type associated|default process group has not been initialized",
    r"destroy_process_group",
)
_TORCH_TYPES: Final = {
    "RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistQueueEmptyError",
    "AcceleratorError",
}  # fmt: skip
"""What gloo, NCCL and the store raise."""
_PYTHON_TYPES: Final = {
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError",
    "EOFError", "TimeoutError",
}  # fmt: skip
"""Peers raise these too, but so does a script that talks to a server of its own."""
_LOADER_ENDED: Final = _words(r"dataloader worker .{0,60}killed by signal: (terminated|hangup|interrupt)")
_TERMINATE: Final = _words(
    r"terminate called", r"fatal python error: aborted", r"processgroupnccl.{0,80}taking the entire process down"
)
_OOM: Final = _words(
    r"out of memory", r"can(')?t allocate memory|cannot allocate memory", r"std::bad_alloc", r"hip out of memory",
    r"unable to allocate \d[\d.]* ?[kmgt]i?b",
)  # fmt: skip
_DISK: Final = _words(
    r"no space left",
    r"disk (is )?full",
    r"\benospc\b",
    r"disk quota",
    r"\bedquot\b",
    r"\[errno (28|122|27)\]|file too large",
)
_DISK_DISGUISED: Final = _words(
    r"unexpected pos \d+ vs \d+", r"pytorchstreamwriter failed writing", r"basic_ios::clear: iostream error"
)
_WRITES: Final = _words(
    r"inline_container|streamwriter|\bwrit(e|ing)\b|\bflush|\bdump(s|ing)?\b",
    r"^(OSError|IOError)\b|sqlite3\.",
    r"checkpoint|\bsav(e|ing)\b",
)
_OTHER_RANKS: Final = re.compile(r"\brank (\d+)\b")
_OFTEN_SENT: Final = {"SIGTERM", "SIGHUP", "SIGINT", "SIGPIPE", "SIGQUIT"}


def short_type(failure: Failure) -> str:
    """`torch.distributed.DistBackendError` -> `DistBackendError`; "" without an exception."""
    return (failure.exception or "").rpartition(".")[2]


def text_of(failure: Failure) -> str:
    """What the rank said: its exception's message, else the last lines it printed."""
    if failure.exception or failure.message:
        return failure.message or ""
    return "\n".join(failure.last_lines[-8:])


def out_of_memory(failure: Failure) -> bool:
    if failure.kind is FailureKind.OOM or short_type(failure) in {"MemoryError", "OutOfMemoryError"}:
        return True
    return bool(failure.kind is not FailureKind.ENDED_BY_US and failure.exception and _OOM.search(text_of(failure)))


def disk_full(failure: Failure) -> bool:
    """True also for the words that torch's file writer hides a full disk behind."""
    if failure.kind is FailureKind.SIGNALED and failure.signal == "SIGBUS":
        return bool(failure.full_disks)  # a mapped file that cannot grow
    if failure.kind not in {FailureKind.RAISED, FailureKind.EXITED, FailureKind.LAUNCH}:
        return False
    text = text_of(failure)
    return bool(_DISK.search(text) or _DISK_DISGUISED.search(text) or _wrote_in_vain(failure))


def _wrote_in_vain(failure: Failure) -> bool:
    """There was no room, and it failed in what writes: its words need not say so."""
    if not failure.full_disks:
        return False
    return failure.phase == "save" or bool(_WRITES.search(f"{failure.exception}: {text_of(failure)}"))


def says_disk_full(text: str) -> bool:
    return bool(_DISK.search(text))


def disk_words(failure: Failure) -> str:
    """The line that says that a disk is full; "" if none says so in plain words."""
    return next((line.strip() for line in text_of(failure).splitlines() if _DISK.search(line)), "")


def loader_gone(failure: Failure) -> bool:
    """The rank saw the line to its own DataLoader worker break: no peer has to do with that."""
    return short_type(failure) in _PYTHON_TYPES and "torch/utils/data/dataloader.py" in (failure.traceback or "")


def waited_in_vain(failure: Failure) -> bool:
    """The rank gave up waiting for others: the sign of a hang, not of a death."""
    return _in_network_words(failure, _TIMEOUT)


def weigh(failure: Failure) -> Weight:
    match failure.kind:
        case FailureKind.ENDED_BY_US:
            return Weight.OURS
        case FailureKind.EARLY:
            return Weight.EARLY
        case FailureKind.OOM | FailureKind.SETUP | FailureKind.LAUNCH | FailureKind.HUNG | FailureKind.NODE:
            return Weight.CAUSE
        case FailureKind.PREEMPTED:
            return Weight.CAUSE
        case FailureKind.SIGNALED:
            return _weigh_signal(failure)
        case FailureKind.RAISED | FailureKind.EXITED:
            return _weigh_words(failure)


def _weigh_signal(failure: Failure) -> Weight:
    text = text_of(failure)
    if failure.exception:  # died while an exception was in flight: that one tells more
        return _weigh_words(failure)
    if failure.signal == "SIGABRT" and (_TERMINATE.search(text) or _GONE.search(text)):
        return Weight.ECHO if _GONE.search(text) or _TIMEOUT.search(text) else Weight.WEAK
    return Weight.WEAK if failure.signal in _OFTEN_SENT else Weight.CAUSE


def _weigh_words(failure: Failure) -> Weight:
    text = text_of(failure)
    if out_of_memory(failure) or (failure.exception and _DISK.search(text)):
        return Weight.ECHO if _speaks_of_another(failure) else Weight.CAUSE
    if _in_network_words(failure, _TIMEOUT) or _in_network_words(failure, _GONE):
        return Weight.WEAK if raised_by_hand(failure.traceback) else Weight.ECHO
    if _speaks_of_another(failure) or _LOADER_ENDED.search(text):
        return Weight.ECHO
    if short_type(failure) == "KeyboardInterrupt" or _DISK_DISGUISED.search(text):
        return Weight.WEAK
    if short_type(failure) in _PYTHON_TYPES and not loader_gone(failure):
        return Weight.WEAK
    return Weight.CAUSE


def _in_network_words(failure: Failure, words: re.Pattern[str]) -> bool:
    """Network words count only from those that speak with peers: torch itself, or lines printed by who knows whom."""
    text = text_of(failure)
    if "DataLoader worker" in text or loader_gone(failure):
        return False
    through_torch = "torch/distributed" in (failure.traceback or "") or failure.collective is not None
    if failure.exception and short_type(failure) not in _TORCH_TYPES and not through_torch:
        return False
    return bool(words.search(text))


def _speaks_of_another(failure: Failure) -> bool:
    """A checkpoint's error is raised on every rank and names the ranks that caused it."""
    if short_type(failure) != "CheckpointError":
        return False
    named = {int(rank) for rank in _OTHER_RANKS.findall(text_of(failure))}
    return bool(named) and failure.rank not in named
