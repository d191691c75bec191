"""The gated delta rule: a memory S that forgets (alpha) and corrects itself (beta) at every token.

    S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T        o_t = S_t^T q_t

`recurrent` is that line as a loop and shows what is meant; `chunked` computes the same with matrix products, a chunk of
tokens at a time, and is what trains. Shapes: q, k [batch, heads, tokens, d_k], v [..., d_v], log_alpha and beta
[batch, heads, tokens].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def recurrent(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor) -> Tensor:
    """One token after another; slow, and the measure of `chunked`."""
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[2]):
        state = state * log_alpha[:, :, t, None, None].exp()
        recalled = torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        correction = beta[:, :, t, None] * (v[:, :, t] - recalled)
        state = state + k[:, :, t, :, None] * correction[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(outputs, dim=2)


def chunked(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, chunk: int = 32) -> Tensor:
    """Within a chunk the corrections u solve a unit lower triangular system; between chunks only S is carried.

    With g_t the sum of log_alpha up to t in the chunk and S the state before it:
    u_t = beta_t (v_t - e^{g_t} S^T k_t - sum_{i<t} e^{g_t-g_i} (k_t.k_i) u_i), so (I + T) u = beta (v - e^g k S).
    """
    tokens = q.shape[2]
    padding = -tokens % chunk
    if padding:  # tokens of zeros with beta 0 and alpha 1 change nothing
        q, k, v = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        log_alpha, beta = (F.pad(x, (0, padding)) for x in (log_alpha, beta))
    q, k, v, log_alpha, beta = (x.reshape(*x.shape[:2], -1, chunk, *x.shape[3:]) for x in (q, k, v, log_alpha, beta))

    g = log_alpha.cumsum(-1)
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    # Masked before exp: above the diagonal the exponent is positive and could overflow.
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(upper, float("-inf")).exp()
    scores = (q @ k.mT) * decay
    system = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    right = torch.cat([beta[..., None] * v, (beta * g.exp())[..., None] * k], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    from_values, from_state = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    decayed_q = q * g.exp()[..., None]
    remembered_k = k * (g[..., -1:] - g).exp()[..., None]
    kept = g[..., -1].exp()[..., None, None]

    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for n in range(q.shape[2]):
        u = from_values[:, :, n] - from_state[:, :, n] @ state
        outputs.append(decayed_q[:, :, n] @ state + scores[:, :, n] @ u)
        state = state * kept[:, :, n] + remembered_k[:, :, n].mT @ u
    return torch.cat(outputs, dim=2)[:, :, :tokens]


class GatedDeltaNet(nn.Module):
    """The token mixer of three layers out of four: projections, short causal convolution, delta rule, gated output."""

    def __init__(self, hidden: int, heads: int, kernel: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.width = hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.convolution = nn.Conv1d(3 * hidden, 3 * hidden, kernel, groups=3 * hidden, bias=False)
        self.gates = nn.Linear(hidden, 2 * heads, bias=False)
        self.log_rate = nn.Parameter(torch.linspace(1.0, 8.0, heads).log())
        self.rate_bias = nn.Parameter(torch.full((heads,), -3.0))
        self.output_gate = nn.Linear(hidden, hidden, bias=False)
        self.norm = nn.RMSNorm(self.width, eps=1e-6)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.qkv(x).mT
        mixed = F.silu(self.convolution(F.pad(mixed, (self.convolution.kernel_size[0] - 1, 0)))).mT
        q, k, v = (in_heads(part, self.heads) for part in mixed.chunk(3, dim=-1))
        beta, rate = self.gates(x).float().chunk(2, dim=-1)
        log_alpha = -self.log_rate.float().exp() * F.softplus(rate + self.rate_bias.float())
        with torch.autocast(x.device.type, enabled=False):  # the triangular system wants all its digits
            mixed = chunked(
                unit(q.float()) * self.width**-0.5, unit(k.float()), v.float(), log_alpha.mT, beta.sigmoid().mT
            )
        mixed = self.norm(mixed.transpose(1, 2).type_as(x)).flatten(2)
        out: Tensor = self.out(mixed * F.silu(self.output_gate(x)))
        return out


def in_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, tokens, hidden] -> [batch, heads, tokens, hidden / heads]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def unit(x: Tensor) -> Tensor:
    """Length 1 in the last dimension, also near zero."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
