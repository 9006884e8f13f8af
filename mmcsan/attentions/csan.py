"""CSaN: attention that compensates itself (Selection-as-Nonlinearity).

Softmax attention is a game in which each query spends a unit budget over
shared values. CSaN keeps it and lets every token correct it with four numbers
read off how its row of logits looks: a temperature for its row, an
amplification of its column, and gains of a public value (what attention
returns) and of a private one (the token's own value).
"""
from typing import NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmcsan.registry import ATTENTIONS
from .base import BaseAttention, TokenLayout

BETA = 0.25
"""Where the quasi-linear map turns from exponential to linear."""


class Compensation(NamedTuple):
    """What a token does to its row, its column and its two value paths.

    Args:
        temperature (Tensor): tau, (G, H, N, 1); multiplies the row's logits.
        column (Tensor): mu, (G, H, N, 1); multiplies the token's value
            wherever it is read.
        public (Tensor): kappa_pub, (G, H, N, d or 1); multiplies what the
            attention returns.
        private (Tensor): kappa_priv, (G, H, N, d or 1); multiplies the
            token's own value, which is added.
    """

    temperature: Tensor
    column: Tensor
    public: Tensor
    private: Tensor


class _QuasiLinear(torch.autograd.Function):
    """The map as one operation that keeps its input alone for backward."""

    @staticmethod
    def forward(scores: Tensor, beta: float) -> Tensor:
        return F.celu(scores - beta, alpha=beta).add_(beta)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        scores, ctx.beta = inputs
        ctx.save_for_backward(scores)

    @staticmethod
    def backward(ctx, grad: Tensor):
        scores, = ctx.saved_tensors
        slope = (scores / ctx.beta - 1).clamp(max=0).exp()
        # Where the branches meet, the released code passes no gradient on.
        slope = slope.masked_fill(scores == ctx.beta, 0)
        return grad * slope, None


def quasi_linear(scores: Tensor, beta: float = BETA) -> Tensor:
    """Non-negative, order-preserving, C1 map of the logits.

    ``s`` above ``beta``, ``beta * exp(s / beta - 1)`` below, which is a CELU
    shifted by ``beta``.

    Args:
        scores (Tensor): Logits of any shape.
        beta (float): Where the branches meet. Defaults to 0.25.

    Returns:
        Tensor: The same shape.
    """
    return _QuasiLinear.apply(scores, beta)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def row_descriptor(logits: Tensor, valid: Optional[Tensor] = None) -> Tensor:
    """Mean of the quasi-linear logits of each row, over its real columns.

    Computed in float32 at least, whatever the logits are stored in.

    Args:
        logits (Tensor): (B, W, H, N, N).
        valid (Tensor, optional): Boolean (W, N), False for padding.

    Returns:
        Tensor: (B, W, H, N).
    """
    phi = quasi_linear(_at_least_float32(logits))
    if valid is None:
        return phi.mean(dim=-1)
    columns = valid[:, None, None, :].to(phi.dtype)  # (W, 1, 1, N)
    return (phi * columns).sum(dim=-1) / columns.sum(dim=-1)


def compensated_softmax(logits: Tensor,
                        temperature: Tensor,
                        hidden: Optional[Tensor] = None) -> Tensor:
    """Rows of ``softmax(tau * s)`` with some columns hidden afterwards.

    Args:
        logits (Tensor): (B, W, H, N, N).
        temperature (Tensor): (B, W, H, N, 1).
        hidden (Tensor, optional): Boolean, broadcastable to the logits. True
            where no weight may go, whatever the sign of the temperature.

    Returns:
        Tensor: (B, W, H, N, N), rows sum to one.
    """
    # Softmax is taken in float32 anyway; before it, products may overflow.
    logits = _at_least_float32(logits) * temperature
    if hidden is not None:
        logits = logits.masked_fill(hidden, float('-inf'))
    return logits.softmax(dim=-1)


class SoftGShift(nn.Module):
    """``z * sigmoid(W z)``: the gate of unbounded CSaN.

    Args:
        dim (int): Number of channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, z: Tensor) -> Tensor:
        """(..., dim) -> (..., dim)."""
        return z * self.proj(z).sigmoid()


@ATTENTIONS.register_module()
class CSaN(BaseAttention):
    """Compensated softmax attention (CSaN, CVPR 2026).

    With logits ``s`` of scaled queries and keys, each token's descriptor is
    the mean of its quasi-linear row gated by a template ``u`` of the token;
    ``z`` is its reduction to ``max(C / 8, 24)`` channels, and

    ``x_i = [sum_j softmax_j(tau_i s_ij) mu_j v_j] kpub_i + v_i kpriv_i``

    with tau, mu and kpub one plus a linear map of ``z``, kpriv a linear map
    of ``z`` (each through tanh if bounded). If all four maps are zero this is
    plain attention.

    Parameters bear the names of the released code: ``u`` (template),
    ``reduce``, ``act.proj`` (gate, unbounded only), ``temp`` (tau), ``magk``
    (mu), ``ka`` (kpub), ``kv`` (kpriv).

    Args:
        dim (int): Number of channels C; ``C / 4`` must be divisible by
            ``num_heads``.
        num_heads (int): Number of heads H.
        variant (str): ``'unbounded'`` (the paper's) or ``'bounded'``.
            Defaults to ``'unbounded'``.
        granularity (str): ``'unit'``, a gain for each channel, or ``'head'``,
            one for each head (CSaN-HdW). Defaults to ``'unit'``.
        posinfo (bool): V2, a 7x7 depthwise convolution of the merged map.
            Defaults to False.
        init (str): ``'paper'``, truncated normal, or ``'identity'``, which
            starts as plain attention. Defaults to ``'paper'``.
        hard_shift_mask (bool): Also hide what the shift mask hides after the
            temperature is applied. Released weights were trained without:
            their mask weakens as tau goes to zero. Defaults to False.
        **kwargs: Those of :class:`BaseAttention`.

    Raises:
        ValueError: If an argument is none of its options, or heads do not
            divide the template.
    """

    descriptor_ratio = 4
    hidden_ratio = 8
    min_hidden = 24

    def __init__(self,
                 dim: int,
                 num_heads: int,
                 *,
                 variant: str = 'unbounded',
                 granularity: str = 'unit',
                 posinfo: bool = False,
                 init: str = 'paper',
                 hard_shift_mask: bool = False,
                 **kwargs) -> None:
        super().__init__(dim, num_heads, **kwargs)
        _check_option('variant', variant, ('unbounded', 'bounded'))
        _check_option('granularity', granularity, ('unit', 'head'))
        _check_option('init', init, ('paper', 'identity'))
        template = dim // self.descriptor_ratio
        if dim % self.descriptor_ratio or template % num_heads:
            raise ValueError(
                f'CSaN needs dim / {self.descriptor_ratio} divisible by '
                f'num_heads, but got dim={dim}, num_heads={num_heads}')
        self.variant = variant
        self.granularity = granularity
        self.init = init
        self.hard_shift_mask = hard_shift_mask

        hidden = max(dim // self.hidden_ratio, self.min_hidden)
        gains = dim if granularity == 'unit' else num_heads
        self.u = nn.Linear(dim, template)
        self.reduce = nn.Linear(template, hidden)
        self.act = SoftGShift(hidden) if variant == 'unbounded' else nn.GELU()
        self.ka = nn.Linear(hidden, gains)
        self.kv = nn.Linear(hidden, gains)
        self.magk = nn.Linear(hidden, num_heads)
        self.temp = nn.Linear(hidden, num_heads)
        self.posinfo = nn.Conv2d(
            dim, dim, 7, padding=3, groups=dim) if posinfo else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as the paper does, or to plain attention."""
        super().reset_parameters()
        if self.init == 'identity':
            self._start_as_identity()

    def _start_as_identity(self) -> None:
        for layer in (self.ka, self.kv, self.magk, self.temp):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        if self.posinfo is not None:
            nn.init.dirac_(self.posinfo.weight, groups=self.dim)
            nn.init.zeros_(self.posinfo.bias)

    @staticmethod
    def branch_drop_path(rate: float, grouping: str) -> float:
        """The paper's rates: a third in deep Swin, 3/4 in deep Hiera."""
        if grouping == 'window' and rate >= 0.25:
            return rate / 3
        if grouping == 'mask_unit' and rate > 0.2:
            return rate * 0.75
        return rate

    def describe(self, x: Tensor, row_mean: Tensor) -> Tensor:
        """The descriptor z of every token.

        Args:
            x (Tensor): Tokens (G, N, C).
            row_mean (Tensor): Output of :func:`row_descriptor`, (G, H, N).

        Returns:
            Tensor: (G, N, hidden).
        """
        # (G, N, C/4) -> (G, N, H, C/4H)
        template = self.u(x).unflatten(-1, (self.num_heads, -1)).sigmoid()
        # (G, H, N) -> (G, N, H, 1)
        row_mean = row_mean.transpose(1, 2).unsqueeze(-1)
        iota = (row_mean * template).flatten(2)  # (G, N, C/4)
        return self.act(self.reduce(iota.to(x.dtype)))

    def compensate(self, z: Tensor) -> Compensation:
        """The four corrections of every token.

        Args:
            z (Tensor): Descriptors (G, N, hidden).

        Returns:
            Compensation: tau and mu of shape (G, H, N, 1), gains (G, H, N, d)
            or, with head granularity, (G, H, N, 1).
        """
        out = []
        for layer in (self.temp, self.magk, self.ka, self.kv):
            value = layer(z)
            if self.variant == 'bounded':
                value = value.tanh()
            # (G, N, H*c) -> (G, N, H, c) -> (G, H, N, c)
            out.append(
                value.unflatten(-1, (self.num_heads, -1)).transpose(1, 2))
        tau, mu, public, private = out
        return Compensation(1 + tau, 1 + mu, 1 + public, private)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.attend`."""
        logits = (q * self.scale) @ k.transpose(-2, -1)  # (G, H, N, N)
        bias = self.relative_bias()
        if bias is not None:
            logits = logits + bias.to(logits.dtype)
        # (G, H, N, N) -> (B, W, H, N, N)
        windows = _num_windows(layout)
        logits = logits.unflatten(0, (-1, windows))
        if layout.mask is not None:
            logits = logits + layout.mask[:, None].to(logits.dtype)
        row_mean = row_descriptor(logits, layout.valid).flatten(0, 1)

        comp = self.compensate(self.describe(x, row_mean))
        weights = compensated_softmax(
            logits, comp.temperature.unflatten(0, (-1, windows)),
            self._hidden(layout)).flatten(0, 1)  # (G, H, N, N)
        if self.training and self.attn_drop:
            weights = F.dropout(weights, self.attn_drop)
        values = comp.column * v  # (G, H, N, d)
        out = weights.to(values.dtype) @ values
        return out * comp.public + v * comp.private

    def _hidden(self, layout: TokenLayout) -> Optional[Tensor]:
        """Columns that get no weight: Boolean, broadcasts to the logits."""
        hidden = None
        if layout.valid is not None:
            hidden = ~layout.valid[:, None, None, :]  # (W, 1, 1, N)
        if self.hard_shift_mask and layout.mask is not None:
            masked = layout.mask[:, None] < 0  # (W, 1, N, N)
            if layout.valid is not None:
                # A padding query may have no real key in its own region.
                masked = masked & layout.valid[:, None, :, None]
            hidden = masked if hidden is None else hidden | masked
        return hidden

    def forward_map(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """V2's depthwise convolution; see :meth:`BaseAttention.forward_map`.
        """
        if self.posinfo is None:
            return x
        if layout.valid_map is not None:
            x = x * layout.valid_map.to(x.dtype)  # padding adds nothing
        x = x.permute(0, 3, 1, 2)  # (B, H, W, C) -> (B, C, H, W)
        return self.posinfo(x).permute(0, 2, 3, 1)


def _num_windows(layout: TokenLayout) -> int:
    """Groups per image that the layout tells apart."""
    for tensor in (layout.mask, layout.valid):
        if tensor is not None:
            return tensor.shape[0]
    return 1


def _check_option(name: str, value: str, options: Tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f'{name}={value!r} is unknown: choose one of '
                         f'{", ".join(map(repr, options))}')
