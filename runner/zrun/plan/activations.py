"""What a forward keeps for its backward, by layer, in bytes: attention (flash or quadratic) and Gated DeltaNet.

Pure arithmetic. Knows nothing about parameters, ranks or torch. Sources are in docs/plan.md, "Activations".
"""

from dataclasses import dataclass
from typing import Final

CHUNK: Final = 64
"""Tokens of one chunk of the delta rule in flash-linear-attention."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One model's layers; `item_bytes`: of the dtype that is computed in."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    item_bytes: float
    deltanet_layers: int = 0
    kv_heads: int = 0
    head_width: int = 0
    inner: int = 0
    gated: bool = True
    dropout: bool = False
    vocabulary: int = 0
    flash: bool = True

    @property
    def width(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def mlp_width(self) -> int:
        return self.inner or 4 * self.hidden


@dataclass(frozen=True, slots=True)
class Activations:
    """`fixed` + `per_sample` x the micro-batch; `working_per_sample`: what one layer's backward needs beside it."""

    per_sample: float
    working_per_sample: float
    fixed: float = 0.0
    source: str = "estimated"

    def bytes(self, micro_batch: int) -> float:
        return self.fixed + self.per_sample * micro_batch


def estimated(shape: Shape, checkpointing: str) -> Activations:
    """Of one sample: all layers, or their inputs and one layer at a time; and the logits."""
    attending = shape.layers - shape.deltanet_layers
    each = ([attention_layer(shape)] if attending else []) + ([deltanet_layer(shape)] if shape.deltanet_layers else [])
    if checkpointing == "full":
        layers = shape.layers * shape.item_bytes * shape.hidden + max(each)
    else:
        layers = attending * attention_layer(shape) + shape.deltanet_layers * deltanet_layer(shape)
    return Activations(shape.sequence * (layers + _ends(shape)), shape.sequence * max(each))


def attention_layer(shape: Shape) -> float:
    """Bytes a token; plain MLP, dropout, quadratic attention and 16 bit give 34 h + 5 a s (Korthikanti et al. 2022)."""
    c, s = shape.item_bytes, shape
    kv = (s.kv_heads or s.heads) * s.width
    q = s.heads * s.width
    kept = c * s.hidden + c * (q + 2 * kv) + c * q  # input of the projections, q, k, v, input of the output projection
    if s.flash:
        kept += 4 * s.heads  # log-sum-exp of each row
    else:
        kept += c * s.heads * s.sequence  # softmax's output
        if s.dropout:
            kept += (c + 1) * s.heads * s.sequence  # what dropout made of it, and its mask
    return kept + _rest_of_layer(s)


def deltanet_layer(shape: Shape) -> float:
    """Bytes a token, in the chunked form (Yang et al. 2024): a state for each chunk, so O(T) in the sequence."""
    c, s = shape.item_bytes, shape
    wide = s.heads * s.width
    kept = c * s.hidden  # input of the projections
    kept += 2 * c * 3 * wide  # inputs of the short convolution and of its SiLU
    kept += c * 3 * wide  # q, k (of unit length), v
    kept += 2 * 4 * s.heads  # decay and beta in fp32
    kept += c * s.heads * CHUNK  # the solved triangular system of the chunk
    kept += c * s.heads * s.width * s.width / CHUNK  # the state before each chunk
    kept += 3 * c * wide  # output of the rule, its gate, the product
    return kept + _rest_of_layer(s)


def _rest_of_layer(s: Shape) -> float:
    """Two norms' inputs, the MLP, and the masks of dropout."""
    c = s.item_bytes
    mlp = c * s.hidden + c * s.mlp_width * (4 if s.gated else 2)  # gated: gate, its SiLU, value, product
    return 2 * c * s.hidden + mlp + (2 * s.hidden if s.dropout else 0)


def _ends(s: Shape) -> float:
    """The last norm's input and output; logits, their fp32 copy and its log-softmax."""
    return 2 * s.item_bytes * s.hidden + s.vocabulary * (s.item_bytes + 4 + 4)
