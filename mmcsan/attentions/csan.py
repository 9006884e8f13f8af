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
from .base import BaseAttention, TokenLayout, pool_siblings
from .csan_kernels import (BETA, logit_row_mean, real_columns, row_mean,
                           shifted_logits, tempered_attention,
                           tempered_global_attention)
from .graphs import ceil_div, leaves_torch


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
    if torch.jit.is_tracing():  # which takes no function of Python
        return F.celu(scores - beta, alpha=beta) + beta
    return _QuasiLinear.apply(scores, beta)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    low = dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if low else dtype


def row_descriptor(logits: Tensor, valid: Optional[Tensor] = None) -> Tensor:
    """Mean of the quasi-linear logits of each row, over its real columns.

    Computed in float32 at least, whatever the logits are stored in.

    Args:
        logits (Tensor): (B, W, H, N, N).
        valid (Tensor, optional): Boolean (W, N), False for padding.

    Returns:
        Tensor: (B, W, H, N).
    """
    phi = quasi_linear(logits.to(_at_least_float32(logits.dtype)))
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
    logits = logits.to(_at_least_float32(logits.dtype)) * temperature
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

    Where a query is pooled from several tokens (Hiera), each token's
    descriptor is formed of the pooled row and its own template; tau and kpub
    follow the mean of their ``z``, and ``v_i kpriv_i`` is averaged over them.
    Where keys and values come from a reduced map (PVT), a column's mu follows
    the mean ``z`` of the tokens it was made of, and a token's own value is
    that of the cell it lies in.

    Parameters bear the names of the released code: ``u`` (template),
    ``reduce``, ``act.proj`` (gate, unbounded only), ``temp`` (tau), ``magk``
    (mu), ``ka`` (kpub), ``kv`` (kpriv).

    Args:
        dim (int): Number of channels C; a quarter of ``dim_out``, which is
            C if not given, must be divisible by ``num_heads``.
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

    fused = True
    """False computes the equations step by step, at a higher cost."""

    descriptor_ratio = 4
    hidden_ratio = 8
    min_hidden = 24

    reduced_name = 'key_value'  # kv is the private gain
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
        width = self.dim_out
        template = width // self.descriptor_ratio
        if width % self.descriptor_ratio or template % num_heads:
            name = 'dim' if width == dim else 'dim_out'
            raise ValueError(
                f'CSaN needs {name} / {self.descriptor_ratio} divisible by '
                f'num_heads, but got {name}={width}, num_heads={num_heads}')
        self.variant = variant
        self.granularity = granularity
        self.init = init
        self.hard_shift_mask = hard_shift_mask

        hidden = max(width // self.hidden_ratio, self.min_hidden)
        gains = width if granularity == 'unit' else num_heads
        self.u = nn.Linear(dim, template)
        self.reduce = nn.Linear(template, hidden)
        self.act = SoftGShift(hidden) if variant == 'unbounded' else nn.GELU()
        self.ka = nn.Linear(hidden, gains)
        self.kv = nn.Linear(hidden, gains)
        self.magk = nn.Linear(hidden, num_heads)
        self.temp = nn.Linear(hidden, num_heads)
        self.posinfo = nn.Conv2d(
            width, width, 7, padding=3, groups=width) if posinfo else None
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
            nn.init.dirac_(self.posinfo.weight, groups=self.dim_out)
            nn.init.zeros_(self.posinfo.bias)

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys."""
        # No attribute: torch.compile(dynamic=True) would make it a symbol.
        return self.head_dim**-0.5

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
            row_mean (Tensor): Output of :func:`row_descriptor` for the row
                that each token asks for, (G, H, N).

        Returns:
            Tensor: (G, N, hidden).
        """
        # (G, N, C/4) -> (G, N, H, C/4H)
        template = self.u(x).unflatten(-1, (self.num_heads, -1)).sigmoid()
        # (G, H, N) -> (G, N, H, 1)
        row_mean = row_mean.transpose(1, 2).unsqueeze(-1)
        iota = (row_mean * template).flatten(2)  # (G, N, C/4)
        return self.act(self.reduce(iota.to(x.dtype)))

    def compensate(self,
                   z: Tensor,
                   row_z: Optional[Tensor] = None,
                   column_z: Optional[Tensor] = None) -> Compensation:
        """The four corrections of every token.

        Args:
            z (Tensor): Descriptors (G, N, hidden).
            row_z (Tensor, optional): Those of the rows, where a row is that
                of several tokens, (G, N / s, hidden). Defaults to None:
                ``z``.
            column_z (Tensor, optional): Those of the columns, where a column
                is that of several tokens, (G, M, hidden). Defaults to None:
                ``z``.

        Returns:
            Compensation: tau (G, H, N / s, 1), mu (G, H, M, 1), kpub
            (G, H, N / s, d) and kpriv (G, H, N, d); gains have 1 for d with
            head granularity.
        """
        if row_z is None and column_z is None and self._may_fuse():
            return self._compensate_at_once(z)
        row_z = z if row_z is None else row_z
        column_z = z if column_z is None else column_z
        return Compensation(
            1 + self._correction(self.temp, row_z),
            1 + self._correction(self.magk, column_z),
            1 + self._correction(self.ka, row_z),
            self._correction(self.kv, z))

    def _may_fuse(self) -> bool:
        """Whether the four maps are plain layers that nothing listens to."""
        return self.fused and self.variant == 'unbounded' and not any(
            type(layer) is not nn.Linear or layer._forward_hooks
            or layer._forward_pre_hooks
            for layer in (self.temp, self.magk, self.ka, self.kv))

    def _compensate_at_once(self, z: Tensor) -> Compensation:
        """The four maps as one product; what is one plus a map has the one
        in its bias."""
        layers = (self.temp, self.magk, self.ka, self.kv)
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias + 1 for layer in layers[:3]]
                         + [self.kv.bias])
        sizes = [layer.out_features for layer in layers]
        # (G, N, H*c) -> (G, N, H, c) -> (G, H, N, c)
        return Compensation(*(
            value.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for value in F.linear(z, weight, bias).split(sizes, dim=-1)))

    def _correction(self, layer: nn.Linear, z: Tensor) -> Tensor:
        value = layer(z)
        if self.variant == 'bounded':
            value = value.tanh()
        # (G, N, H*c) -> (G, N, H, c) -> (G, H, N, c)
        return value.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.attend`.

        Three ways lead to the same numbers: groups without a bias never hold
        their logits, windows hold them once, and a graph that leaves PyTorch
        (or drops weights of windows) gets the equations step by step.
        """
        bias = self._bias(q.dtype, layout)
        whole = bias is None and (layout.valid is None or layout.windows == 1)
        dropout = self.attn_drop if self.training else 0.
        if leaves_torch() or not self.fused or (dropout and not whole):
            look = self._look_at_all
        else:
            look = self._look_at_chunks if whole else self._look_at_windows
        row_mean, attention = look(q, k, bias, layout, dropout)

        # Siblings share a row: (G, H, N/s) -> (G, H, N)
        if layout.q_pool > 1:
            row_mean = row_mean.repeat(1, 1, layout.q_pool)
        z = self.describe(x, row_mean)
        row_z = pool_siblings(z, layout, 'mean') if layout.q_pool > 1 else None
        comp = self.compensate(z, row_z, self._cells(z, layout))
        out = attention(comp.temperature, comp.column * v) * comp.public
        own = self._own_values(v, layout)
        if layout.q_pool == 1:
            return torch.addcmul(out, own, comp.private)
        return out + pool_siblings(own * comp.private, layout, 'mean')

    def _cells(self, z: Tensor, layout: TokenLayout) -> Optional[Tensor]:
        """Mean descriptor of the tokens that each key was made of, or None."""
        if (self.sr_ratio or 1) == 1:
            return None
        # (G, N, hidden) -> (G, hidden, h, w) -> (G, M, hidden)
        grid = z.transpose(1, 2).unflatten(2, layout.grid)
        cells = F.avg_pool2d(grid, self.sr_ratio, ceil_mode=True)
        return cells.flatten(2).transpose(1, 2)

    def _own_values(self, v: Tensor, layout: TokenLayout) -> Tensor:
        """Each token's own value: on a reduced map, that of its cell."""
        ratio = self.sr_ratio or 1
        if ratio == 1:
            return v
        height, width = layout.grid
        # (G, H, M, d) -> (G, H, h/sr, w/sr, d) -> (G, H, h, w, d)
        cells = v.unflatten(2, (-1, ceil_div(width, ratio)))
        cells = cells.repeat_interleave(ratio, dim=2)[:, :, :height]
        cells = cells.repeat_interleave(ratio, dim=3)[:, :, :, :width]
        return cells.flatten(2, 3)

    def _bias(self, dtype: torch.dtype,
              layout: TokenLayout) -> Optional[Tensor]:
        """What is added to the logits, (1 or W, H or 1, N, N), or None."""
        bias = self.relative_bias()
        if bias is not None:
            bias = bias[None]  # (1, H, N, N)
        if layout.mask is not None:
            mask = layout.mask[:, None]  # (W, 1, N, N)
            bias = mask if bias is None else bias + mask
        return None if bias is None else bias.to(_at_least_float32(dtype))

    def _look_at_chunks(self, q, k, bias, layout, dropout):
        """Row means, and the attention, in memory that grows with N."""
        keys = k if layout.valid is None else real_columns(k, layout.valid)

        def attention(tau, v):
            if layout.valid is not None:
                v = real_columns(v, layout.valid)
            return tempered_global_attention(q, keys, v, tau, self.scale,
                                             dropout)

        return row_mean(q, keys, self.scale), attention

    def _look_at_windows(self, q, k, bias, layout, dropout):
        """Row means, and the attention, of logits that are held once."""
        windows = layout.windows
        u = shifted_logits(q, k, self.scale, bias, windows)

        def attention(tau, v):
            # (G, H, N, .) -> (B, W, H, N, .) and back
            tau, v = (t.unflatten(0, (-1, windows)) for t in (tau, v))
            hidden = self._hidden(layout)
            return tempered_attention(u, tau, v, hidden).flatten(0, 1)

        return logit_row_mean(u, layout.valid).flatten(0, 1), attention

    def _look_at_all(self, q, k, bias, layout, dropout):
        """Row means, and the attention, by the equations as they stand."""
        logits = (q * self.scale) @ k.transpose(-2, -1)  # (G, H, N/s, N)
        # (G, H, N/s, N) -> (B, W, H, N/s, N)
        windows = layout.windows
        logits = logits.unflatten(0, (-1, windows))
        if bias is not None:
            logits = logits + bias.to(logits.dtype)

        def attention(tau, v):
            weights = compensated_softmax(
                logits, tau.unflatten(0, (-1, windows)),
                self._hidden(layout)).flatten(0, 1)  # (G, H, N/s, N)
            if dropout:
                weights = F.dropout(weights, dropout)
            return weights.to(v.dtype) @ v

        return row_descriptor(logits, layout.valid).flatten(0, 1), attention

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


def _check_option(name: str, value: str, options: Tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f'{name}={value!r} is unknown: choose one of '
                         f'{", ".join(map(repr, options))}')
