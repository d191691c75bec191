"""The table of the fields of the `plan` block, which are the options of `zrun plan` too, and the kinds only they use.

Knows nothing about what is computed from them.
"""

import re
from typing import Any, Final

from zrun.spec import job, units
from zrun.spec.block import Block, Field
from zrun.spec.kinds import BAD, One, choice
from zrun.spec.nodes import Pairs, Scalar
from zrun.spec.problem import Problems, Source, Span, Wrong, quoted
from zrun.spec.values import BOOLEAN, SIZE, TEXT, duration, number, unset

PUBLISHED: Final = {"rsc-1": 6.50, "rsc-2": 2.34, "llama-3": 3.789}
"""Failures in 1000 node-days; docs/plan.md says where each was published."""

_AMOUNT: Final = r"([0-9]{1,19}(?:\.[0-9]{1,9})?)"
_THOUSANDS: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_SCALES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_TEXT_FORM: Final = {"type": ["string", "number"]}


def count(text: str) -> int:
    """`27B` -> 27000000000."""
    found = re.fullmatch(_AMOUNT + r"([kKMBGT]?)", text)
    if not found:
        raise Wrong(f"{quoted(text)} is not a count", "for example 27B, 350M or 124439808")
    value = round(float(found[1]) * _THOUSANDS[found[2]]) if "." in found[1] else int(found[1]) * _THOUSANDS[found[2]]
    if not 0 < value <= units.LARGEST:
        raise Wrong(f"{quoted(text)} is out of range", "for example 27B")
    return value


def _show_count(value: int) -> str:
    for unit in ("T", "B", "M", "k"):
        if value % _THOUSANDS[unit] == 0:
            return f"{value // _THOUSANDS[unit]}{unit}"
    return str(value)


def rate(text: str) -> float:
    """`450GB/s` -> 4.5e11; network people's `400Gb/s` (bits) -> 5e10."""
    if bits := re.fullmatch(_AMOUNT + r"([kMGT])(?:b|bit)/s|" + _AMOUNT + r"([kMGT])bps", text):
        amount, scale = (bits[1], bits[2]) if bits[1] else (bits[3], bits[4])
        return _positive(text, float(amount) * _SCALES[scale] / 8)
    size, slash, per = text.partition("/")
    if not slash or per != "s":
        raise Wrong(f"{quoted(text)} is not a rate", f"{size}/s" if re.search("B$", size) else "450GB/s, or 400Gb/s")
    return _positive(text, float(units.size_bytes(size)))


def _show_rate(value: float) -> str:
    return f"{units.show_size(int(value))}/s"


def _flops(text: str) -> float:
    found = re.fullmatch(_AMOUNT + r"([kMGTP]?)(?:FLOPS?|FLOP/s|flops)?", text)
    if not found or not found[2]:
        raise Wrong(f"{quoted(text)} is not a speed", "989T or 989TFLOPS: dense operations a second of one rank")
    return _positive(text, float(found[1]) * _SCALES[found[2]])


def _show_flops(value: float) -> str:
    return f"{value / 1e12:.9f}".rstrip("0").rstrip(".") + "T"


def _fraction(text: str) -> float:
    found = re.fullmatch(_AMOUNT + "(%?)", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise Wrong(f"{quoted(text)} is not a part of a whole", "40% or 0.4")
    return value


def _part(text: str) -> float:
    return _positive(text, _fraction(text))


def _failures(text: str) -> float:
    if text in PUBLISHED:
        return PUBLISHED[text]
    if not re.fullmatch(_AMOUNT, text):
        hint = f"a number such as 6.5, or a published one: {', '.join(PUBLISHED)}"
        raise Wrong(f"{quoted(text)} is not a rate of failures", hint)
    return float(text)


def _positive(text: str, value: float) -> float:
    if value <= 0:
        raise Wrong(f"{quoted(text)} is nothing", "more than 0")
    return value


def _plain(value: float) -> str:
    return f"{value:.12f}".rstrip("0").rstrip(".")


COUNT: Final = unset(One("a count such as 27B or 350M", count, {"type": ["string", "integer"]}, _show_count))
RATE: Final = unset(One("a rate such as 450GB/s, or in bits 400Gb/s", rate, {"type": "string"}, _show_rate))
FLOPS: Final = unset(One("operations a second such as 989T", _flops, {"type": "string"}, _show_flops))
SHARE: Final = unset(One("a part of a whole, 40% or 0.4", _fraction, _TEXT_FORM, _plain))
MFU: Final = unset(One("a part of a whole, 40% or 0.4", _part, _TEXT_FORM, _plain))
FAILURES: Final = unset(
    One(f"failures in 1000 node-days, or {' | '.join(PUBLISHED)}", _failures, _TEXT_FORM, _plain)
)  # fmt: skip
_BYTES: Final = unset(SIZE)
_SPAN: Final = unset(duration(above_zero=False))
_WORDS: Final = unset(TEXT)
_FLAG: Final = unset(BOOLEAN)


def _number(what: str, most: int = 10**7) -> One:
    return unset(number(what, 1, most))


def _word(*words: str) -> One:
    return unset(choice(*words))


PLAN: Final = Block(job.Plan, (
    Field("params", COUNT, "parameters of the model, tied ones once"),
    Field("frozen", COUNT, "of these, without a gradient"),
    Field("model", _WORDS, "where the size comes from instead: MODULE:CALLABLE, which returns the module (built on the "
          "meta device), or a safetensors file, index or folder"),
    Field("loss", _WORDS, "MODULE:CALLABLE that takes the model and a micro-batch size and returns the loss: what a "
          "forward keeps is then counted, not estimated"),
    Field("layers", _number("a number of layers"), "of the model"),
    Field("deltanet_layers", unset(number("a number of layers", 0, 10**7)),
          "of these, Gated DeltaNet; the others attend"),
    Field("hidden", _number("a width"), "width of the stream"),
    Field("heads", _number("a number of heads"), "of queries"),
    Field("kv_heads", _number("a number of heads"), "of keys and values; else as many as heads"),
    Field("head_width", _number("a width"), "of one head; else hidden / heads"),
    Field("inner", _number("a width"), "of the MLP; else 4 x hidden"),
    Field("mlp", _word("gated", "plain"), "gated (SwiGLU) or plain (two matrices); else gated"),
    Field("dropout", _FLAG, "masks are kept; else false"),
    Field("vocabulary", _number("a number of tokens"), "for the logits"),
    Field("wrap", _WORDS, "units that are gathered as one, in order: 64x400M, or 16x(3x420M,430M); what is missing to "
          "params is the root unit. With MODULE:CALLABLE: layer or superblock"),
    Field("world", _number("a number of ranks"), "all ranks; else nodes x nproc_per_node"),
    Field("ranks_per_node", _number("a number of ranks", 1024), "else nproc_per_node, or 8"),
    Field("memory", _BYTES, "of one rank's device", ("memory_bytes",)),
    Field("headroom", SHARE, "of that memory, kept free for context, libraries and fragmentation; else 10%"),
    Field("recipe", _WORDS, "dtypes: mixed, bf16, 8bit, fp32, fsdp2-mixed, or for example "
          "`parameters=bf16,gradients=bf16,master=none,moments=int8+int8`; else mixed"),
    Field("optimizer", _word("foreach", "fused", "loop"),
          "what the optimizer step needs beside the state; else foreach"),
    Field("ddp_buckets", _word("copy", "view"), "DDP keeps gradients twice unless gradient_as_bucket_view; else copy"),
    Field("micro_batch", _number("a number of samples"), "samples of one backward of one rank; else 1"),
    Field("accumulate", _number("a number of parts"), "backwards in one step; else 1"),
    Field("sync", _word("every", "last"), "sharded gradients cross after every backward, or are held whole until the "
          "last; else every"),
    Field("sequence", _number("a number of tokens"), "tokens of one sample"),
    Field("checkpointing", _word("none", "full"), "of activations; else none"),
    Field("attention", _word("flash", "quadratic"), "else flash"),
    Field("routing", _word("flat", "hierarchical"),
          "one ring over all ranks, or within nodes and between them; else flat"),
    Field("intra", RATE, "what one rank sends to others of its node"),
    Field("inter", RATE, "what one node sends to others, all its network cards together"),
    Field("latency_intra", _SPAN, "of one hop within a node", ("latency_intra_s",)),
    Field("latency_inter", _SPAN, "of one hop between nodes", ("latency_inter_s",)),
    Field("flops", FLOPS, "of one rank in the recipe's dtype"),
    Field("mfu", MFU, "the part of flops that is reached; else 40%"),
    Field("storage", RATE, "what the checkpoints' storage takes and gives, for all ranks together"),
    Field("staging", RATE, "at which one rank copies its state to host memory"),
    Field("failures", FAILURES, "that end the job; else rsc-1"),
    Field("detection", _SPAN, "from the fault to its being seen; else as measured here", ("detection_s",)),
    Field("restart", _SPAN, "from then to the first new step; else as measured here", ("restart_s",)),
    Field("stall", _SPAN, "for which a checkpoint holds training up; else from staging or storage", ("stall_s",)),
))  # fmt: skip


def option(name: str) -> str:
    """The command-line option of a field."""
    return f"--{name.replace('_', '-')}"


def read_options(given: dict[str, str], problems: Problems) -> dict[str, Any]:
    """The attributes of `job.Plan` that options name; mistakes are told under the option."""
    pairs = []
    for name, text in given.items():
        source = Source(f"{option(name)} {text}", text, is_file=False)
        span = Span(source, 0, len(text))
        pairs.append((Scalar(span, name), Scalar(span, text)))
    values = PLAN.collect(Pairs(Span(Source("options", "", is_file=False), 0, 0), list(pairs)), "", problems)
    return {} if values is BAD else dict(values)
