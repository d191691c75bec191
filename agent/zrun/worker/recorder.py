"""Which recorder notes this rank's collectives in its deck: the built one if there is one, else the one in Python.

They see what patches of torch.distributed miss: DDP's reducer, FSDP2, functional collectives. Knows nothing about
hangs.
"""

from zrun.core.deck import Flag
from zrun.worker import recorder_built
from zrun.worker.group_notes import GroupNotes
from zrun.worker.rank import ThisRank


def install(rank: ThisRank) -> None:
    """Put the kernels in place; a torch that takes them not is warned about, and training goes on."""
    try:
        built = recorder_built.attach(rank)
    except Exception as error:  # a library that cannot be loaded must cost nobody a training run
        rank.warn(f"the built recorder cannot be used: {type(error).__name__}: {error}")
        built = False
    rank.sweepers.append(GroupNotes(rank).sweep)
    if built:
        rank.raise_flag(Flag.RECORDER | Flag.BUILT_RECORDER)
        return
    try:
        from zrun.worker.recorder_python import Recorder

        recorder = Recorder(rank)
    except Exception as error:  # these are inner parts of torch, and any version may change them
        rank.warn(f"collectives are not recorded: {type(error).__name__}: {error}")
        return
    rank.sweepers.append(recorder.sweep)
    rank.raise_flag(Flag.RECORDER)
