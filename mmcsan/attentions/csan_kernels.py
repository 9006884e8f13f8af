"""CSaN's two looks at the logits, without keeping what can be made again.

CSaN reads each row of logits s twice: once for the row's mean of the
quasi-linear map phi, which decides the temperature tau among other things,
and once for softmax(tau s). Neither needs a matrix of N x N:

* :func:`row_mean` makes the logits in chunks that stay in the caches, adds up
  phi and forgets them. Its backward makes them again: with g the gradient of
  the means, ``dq = g (phi'(s) k)`` and ``dk = (phi'(s))^T (g q)``.
* softmax(tau s) (mu v) is plain attention with queries tau q and values mu v,
  so that any fused kernel does it.

Windows have a bias and few tokens: there the logits are kept, once, and what
follows from them is made again (:func:`logit_row_mean`,
:func:`tempered_attention`).

All of it works in units in which phi costs least. With

``u = (s - beta) / (beta ln 2)``

phi is ``beta (ln 2 max(u, 0) + 2^min(u, 0))``, its slope ``2^min(u, 0)``, and
softmax(tau s) is softmax(tau beta ln 2 u), as a row's constant cancels.
"""
import math
from typing import Iterator, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .first_order import first_order
from .graphs import in_graph

BETA = 0.25
"""Where the quasi-linear map turns from exponential to linear."""

UNIT = BETA * math.log(2)
"""Logits of one unit of u."""

OFFSET = 1 / math.log(2)
"""What u is less than s / UNIT."""

CHUNK = 2**18
"""Logits that a CPU works on at a time: one megabyte in float32."""

GPU_CHUNK = 2**26
"""Logits that a GPU works on at a time, which wants many."""

GRAPH_CHUNKS = 8
"""Chunks in a graph: their number is the same for any number of tokens."""

_first_order = first_order(
    'CSaN cannot be differentiated twice in its fused form: set fused=False '
    'on its modules, which then compute the equations step by step')


def _blocks(q: Tensor, k: Tensor) -> Iterator[Tuple[slice, slice]]:
    """Heads and queries of (heads, N, d) whose logits make a chunk."""
    heads, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if in_graph():
        # A range over sizes would make plain numbers of them.
        step = queries // GRAPH_CHUNKS
        for index in range(GRAPH_CHUNKS):
            yield slice(None), slice(index * step, (index + 1) * step)
        return
    chunk = GPU_CHUNK if q.is_cuda else CHUNK
    head_step = max(chunk // (queries * keys), 1)
    step = queries if head_step > 1 else max(chunk // keys, 16)
    for head in range(0, heads, head_step):
        for start in range(0, queries, step):
            yield (slice(head, min(head + head_step, heads)),
                   slice(start, min(start + step, queries)))


def _low(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def _chunk_logits(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Logits u of some heads and queries: (heads, chunk, M), float32 or more.
    """
    if _low(q):
        # Scaled first: products of 16 bits end at 65504.
        u = ((q * scale) @ k.transpose(1, 2)).float()
        return u.mul_(1 / UNIT).sub_(OFFSET)
    offset = q.new_full((1, 1, 1), OFFSET)
    return torch.baddbmm(
        offset, q, k.transpose(1, 2), beta=-1, alpha=scale / UNIT)


def _phi_sum(u: Tensor) -> Tensor:
    """Sum over the last axis of phi / beta; overwrites u."""
    linear = u.relu().sum(dim=-1)
    return linear.mul_(math.log(2)).add_(u.clamp_max_(0).exp2_().sum(dim=-1))


class _RowMean(torch.autograd.Function):

    @staticmethod
    def forward(q: Tensor, k: Tensor, scale: float) -> Tensor:
        dtype = torch.float32 if _low(q) else q.dtype
        out = q.new_empty(q.shape[:-1], dtype=dtype)
        for heads, rows in _blocks(q, k):
            u = _chunk_logits(q[heads, rows], k[heads], scale)
            out[heads, rows] = _phi_sum(u)
        return out.mul_(BETA / k.shape[1])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        q, k, ctx.scale = inputs
        ctx.save_for_backward(q, k)

    @staticmethod
    @_first_order
    def backward(ctx, grad: Tensor):
        q, k = ctx.saved_tensors
        # Sums over all tokens: 16 bits would overflow, or lose small terms.
        q_grad = torch.empty_like(q)
        k_grad = torch.zeros_like(k, dtype=grad.dtype)
        grad = (grad * (ctx.scale / k.shape[1])).unsqueeze(-1)
        for heads, rows in _blocks(q, k):
            queries, keys = q[heads, rows], k[heads]
            slope = _chunk_logits(queries, keys, ctx.scale)
            slope.clamp_max_(0).exp2_()  # (heads, chunk, M)
            queries, keys = queries.to(grad.dtype), keys.to(grad.dtype)
            q_grad[heads, rows] = (slope @ keys).mul_(grad[heads, rows])
            k_grad[heads].baddbmm_(
                slope.transpose(1, 2), queries * grad[heads, rows])
        return q_grad, k_grad.to(k.dtype), None


def row_mean(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Mean of phi over each row of ``scale * q k^T``, in O(N) memory.

    Args:
        q (Tensor): Queries (G, H, N, d).
        k (Tensor): Keys (G, H, M, d).
        scale (float): Factor of the products.

    Returns:
        Tensor: (G, H, N), float32 at least.
    """
    tokens = q.shape[2]
    if in_graph():
        # Always more than there are, lest a graph be for multiples alone.
        rows = GRAPH_CHUNKS * (tokens // GRAPH_CHUNKS + 1)
        q = F.pad(q, (0, 0, 0, rows - tokens))
    # Normalised queries are float32 under autocast, and are to stay so.
    with torch.autocast(q.device.type, enabled=False):
        # (G, H, N, d) -> (G*H, N, d), copied once rather than at each chunk
        means = _RowMean.apply(
            q.flatten(0, 1).contiguous(),
            k.flatten(0, 1).contiguous(), scale)
    return means.unflatten(0, q.shape[:2])[..., :tokens]


def shifted_logits(q: Tensor, k: Tensor, scale: float,
                   bias: Optional[Tensor], windows: int) -> Tensor:
    """The logits as u, with a bias that heads and windows have.

    Args:
        q (Tensor): Queries (G, H, N, d).
        k (Tensor): Keys (G, H, M, d).
        scale (float): Factor of the products.
        bias (Tensor, optional): Added to the logits, (1 or W, H or 1, N, M).
        windows (int): Groups W of an image that are told apart.

    Returns:
        Tensor: u (B, W, H, N, M), float32 at least.
    """
    # Products of 16 bits end at 65504: their unit comes afterwards.
    unit = 1. if _low(q) else UNIT
    u = (q * (scale / unit)) @ k.transpose(-2, -1)  # (G, H, N, M)
    u = u.float() if _low(u) else u
    if unit != UNIT:
        u.mul_(1 / UNIT)
    u = u.unflatten(0, (-1, windows))
    return u.add_(-OFFSET if bias is None else bias / UNIT - OFFSET)


class _LogitRowMean(torch.autograd.Function):

    @staticmethod
    def forward(u: Tensor, columns: Optional[Tensor]) -> Tensor:
        if columns is None:
            return _phi_sum(u.clone()).mul_(BETA / u.shape[-1])
        phi = u.relu().mul_(math.log(2)).add_(u.clamp_max(0).exp2_())
        return phi.mul_(columns).sum(dim=-1).mul_(BETA)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @_first_order
    def backward(ctx, grad: Tensor):
        u, columns = ctx.saved_tensors
        # Of phi by u: beta ln 2 times the slope by s.
        if columns is None:
            grad, columns = grad * (UNIT / u.shape[-1]), 1
        else:
            grad = grad * UNIT
        slope = u.clamp_max(0).exp2_().mul_(grad.unsqueeze(-1))
        return slope.mul_(columns), None


def logit_row_mean(u: Tensor, valid: Optional[Tensor] = None) -> Tensor:
    """Mean of phi over each row of logits, over real columns only.

    Args:
        u (Tensor): Output of :func:`shifted_logits`, (B, W, H, N, M).
        valid (Tensor, optional): Boolean (W, M), False for padding.

    Returns:
        Tensor: (B, W, H, N).
    """
    columns = None
    if valid is not None:
        columns = valid[:, None, None, :].to(u.dtype)  # (W, 1, 1, M)
        columns = columns / columns.sum(dim=-1, keepdim=True)
    return _LogitRowMean.apply(u, columns)


def _tempered_weights(u: Tensor, tau: Tensor,
                      hidden: Optional[Tensor]) -> Tensor:
    weights = u * tau
    if hidden is not None:
        weights.masked_fill_(hidden, float('-inf'))
    return weights.softmax(dim=-1)


class _TemperedAttention(torch.autograd.Function):

    @staticmethod
    def forward(u: Tensor, tau: Tensor, v: Tensor,
                hidden: Optional[Tensor]) -> Tensor:
        return _tempered_weights(u, tau, hidden).to(v.dtype) @ v

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @_first_order
    def backward(ctx, grad: Tensor):
        u, tau, v, hidden = ctx.saved_tensors
        weights = _tempered_weights(u, tau, hidden)
        v_grad = weights.transpose(-2, -1).to(v.dtype) @ grad
        # Of softmax: p (dp - sum p dp); what is hidden has p = 0.
        inner = (grad @ v.transpose(-2, -1)).to(u.dtype)
        inner = torch._softmax_backward_data(inner, weights, -1, u.dtype)
        tau_grad = torch.mul(inner, u, out=weights).sum(
            dim=-1, keepdim=True)
        return inner.mul_(tau), tau_grad, v_grad, None


def tempered_attention(u: Tensor,
                       temperature: Tensor,
                       v: Tensor,
                       hidden: Optional[Tensor] = None) -> Tensor:
    """``softmax(tau s) v``, keeping the logits alone for backward.

    Args:
        u (Tensor): Output of :func:`shifted_logits`, (B, W, H, N, M).
        temperature (Tensor): tau, (B, W, H, N, 1).
        v (Tensor): Values (B, W, H, M, d).
        hidden (Tensor, optional): Boolean, broadcastable to the logits, True
            where no weight may go.

    Returns:
        Tensor: (B, W, H, N, d).
    """
    with torch.autocast(u.device.type, enabled=False):
        return _TemperedAttention.apply(u, temperature.to(u.dtype) * UNIT, v,
                                        hidden)


def tempered_global_attention(q: Tensor,
                              k: Tensor,
                              v: Tensor,
                              temperature: Tensor,
                              scale: float,
                              dropout: float = 0.) -> Tensor:
    """``softmax(tau s) v`` by the fused kernel: O(N) memory.

    Args:
        q (Tensor): Queries (G, H, N, d).
        k (Tensor): Keys (G, H, M, d).
        v (Tensor): Values (G, H, M, d).
        temperature (Tensor): tau, (G, H, N, 1).
        scale (float): Factor of the products.
        dropout (float): Dropout rate of the weights; above 0 some kernels
            keep them all. Defaults to 0.

    Returns:
        Tensor: (G, H, N, d).
    """
    return F.scaled_dot_product_attention(
        q * temperature.to(q.dtype), k, v, dropout_p=dropout, scale=scale)


def real_columns(x: Tensor, valid: Tensor) -> Tensor:
    """Keys or values without padding that is the same for all groups.

    Args:
        x (Tensor): (G, H, M, d).
        valid (Tensor): Boolean (1, M).

    Returns:
        Tensor: (G, H, real, d).
    """
    return x[:, :, valid[0].nonzero().squeeze(1)]
