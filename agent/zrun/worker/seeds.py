"""Seeds the generators a script draws from, once, before the script runs; a script's own seeding comes later and wins.

Importing torch here is no loss: every script does.
"""

import random
import sys


def seed_everything(seed: int) -> None:
    """Python, torch and every accelerator it knows, and NumPy where torch's import has brought it."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
