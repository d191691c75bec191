"""A small language model of the hybrid kind: super-blocks of three Gated DeltaNet layers and one of full attention."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from deltanet import GatedDeltaNet, in_heads
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    vocabulary: int = 256
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.layers < 4 or self.layers % 4:
            raise SystemExit(f"--layers {self.layers}: a super-block has 4 layers, so write 4, 8, 12 ...")
        if self.hidden % (2 * self.heads):
            raise SystemExit(f"--hidden {self.hidden} does not divide into {self.heads} heads of even width")


class GatedAttention(nn.Module):
    """Causal softmax attention with rotary positions, normed queries and keys, and a gate on its output."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        width = hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output_gate = nn.Linear(hidden, hidden, bias=False)
        self.q_norm = nn.RMSNorm(width, eps=1e-6)
        self.k_norm = nn.RMSNorm(width, eps=1e-6)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (in_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = rotated(self.q_norm(q)), rotated(self.k_norm(k))
        mixed = F.scaled_dot_product_attention(q, k, v.type_as(q), is_causal=True)
        gated: Tensor = self.out(mixed.transpose(1, 2).flatten(2) * self.output_gate(x).sigmoid())
        return gated


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: each pair of dimensions turns with its own speed along the tokens."""
    half = x.shape[-1] // 2
    speed = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000.0) / half))
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).type_as(x)


class SwiGLU(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        inner = 2 * hidden
        self.up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * value)
        return out


class Layer(nn.Module):
    """A token mixer and a SwiGLU, each after a norm and added to the stream."""

    def __init__(self, shape: Shape, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.mixer = mixer
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.mlp = SwiGLU(shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.mixer(self.mixer_norm(x)))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class SuperBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        mixers = [
            *(GatedDeltaNet(shape.hidden, shape.heads) for _ in range(3)),
            GatedAttention(shape.hidden, shape.heads),
        ]
        self.layers = nn.ModuleList(Layer(shape, mixer) for mixer in mixers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class HybridLM(nn.Module):
    """tokens [batch, n] -> logits [batch, n, vocabulary]; the embedding is the output layer too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(SuperBlock(shape) for _ in range(shape.layers // 4))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.apply(self._start)
        for layer in self.residual_outputs():  # so that the stream does not grow with depth
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * shape.layers))

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def residual_outputs(self) -> list[nn.Linear]:
        endings = (".mixer.out", ".mlp.down")
        return [part for name, part in self.named_modules() if name.endswith(endings) and isinstance(part, nn.Linear)]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    """Mean cross entropy of each next byte of windows [batch, n + 1]."""
    logits = model(window[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
