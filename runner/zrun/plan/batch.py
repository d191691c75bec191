"""The global batch, ranks x micro-batch x accumulation x tokens, and what other numbers of workers make of it.

Pure arithmetic. Knows nothing about memory or links.
"""

from typing import Any


def global_batch(world: int, micro_batch: int, accumulate: int, sequence: int | None) -> dict[str, Any]:
    """P·b·a samples and P·b·a·T tokens of one optimizer step, now and with other worlds."""
    samples = world * micro_batch * accumulate
    return {
        "ranks": world, "micro_batch": micro_batch, "accumulate": accumulate, "sequence": sequence,
        "samples": samples, "tokens": samples * sequence if sequence else None,
        "other_worlds": [_other(other, micro_batch, accumulate, sequence, samples)
                         for other in sorted({max(1, world // 2), world * 2, world * 4} - {world})],
    }  # fmt: skip


def _other(world: int, micro_batch: int, accumulate: int, sequence: int | None, samples: int) -> dict[str, Any]:
    """`grows_to`: with the same b and a. `same_batch_accumulate`: the a that keeps the batch; None where none does."""
    parts, left = divmod(samples, world * micro_batch)
    grown = world * micro_batch * accumulate
    return {
        "ranks": world, "grows_to_samples": grown, "grows_to_tokens": grown * sequence if sequence else None,
        "same_batch_accumulate": parts if not left and parts else None,
    }  # fmt: skip
