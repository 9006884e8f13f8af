"""PolaPP: polarity-aware linear attention with exponential features.

PolaFormer++ sharpens the positive and negative parts of q and k with an
exponential, turns the features by 2-D rotary angles in the numerator, and
lets each half of the value channels have query features of its own.

Of the 2d features of a token, the first d are turned by its row and the other
d by its column. With R the turn that all tokens of a line share,

``sum_n (R f_n) v_n^T = R (sum_n f_n v_n^T)`` and
``(R f_n) . M = f_n . (R^T M)``,

so that one small matrix a line is turned in place of its tokens. Only where
lines are so short that these would be larger, features are multiplied by
cosines and by sines.
"""
import functools
import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
from torch import Tensor

from mmcsan.registry import ATTENTIONS
from .base import BaseAttention, TokenLayout
from .first_order import first_order
from .graphs import in_graph
from .softmax import Softmax

EPS = 1e-6
"""What is added to the denominators."""

Angles = Tuple[Tensor, Tensor]
"""Cosines and sines, one row for each line of a map."""

_first_order = first_order(
    'PolaPP cannot be differentiated twice: its gradients are written by '
    'hand, and there is no other form of it')


@functools.lru_cache(maxsize=64)
def _cached_angles(length: int, pairs: int, device: torch.device,
                   dtype: torch.dtype) -> Angles:
    # Tables made under inference_mode could not be used in training.
    with torch.inference_mode(False):
        return _make_angles(length, pairs, device, dtype)


def _make_angles(length: int, pairs: int, device: torch.device,
                 dtype: torch.dtype) -> Angles:
    # The frequencies are float32 numbers in the released code: part of what
    # its weights were trained with.
    exponents = torch.linspace(0, 1, pairs, dtype=torch.float32, device='cpu')
    frequencies = (1 / 10000**exponents).double()
    lines = torch.arange(length, dtype=torch.float64, device='cpu')
    angles = lines[:, None] * frequencies
    return tuple(
        t.to(device=device, dtype=dtype) for t in (angles.cos(), angles.sin()))


def rotary_angles(length: int, pairs: int, device: torch.device,
                  dtype: torch.dtype) -> Angles:
    """Cosines and sines that turn pairs of features, line by line.

    Line i turns pair j of features by ``i * 10000^(-j / (pairs - 1))``.
    Tables are kept, a bounded number of them.

    Args:
        length (int): Number of lines.
        pairs (int): Number of pairs of features.
        device (torch.device): Where they are to live.
        dtype (torch.dtype): float32 or float64.

    Returns:
        tuple[Tensor, Tensor]: Cosines and sines, each (length, pairs).
    """
    # While a graph is traced, tensors are no real ones and must not be kept.
    make = _make_angles if in_graph() else _cached_angles
    return make(length, pairs, device, dtype)


def quarter_turn(x: Tensor) -> Tensor:
    """Turn pairs of rows of matrices by 90 degrees.

    Args:
        x (Tensor): (..., 2 * pairs, e).

    Returns:
        Tensor: Rows (a, b) become (-b, a); the same shape.
    """
    # (..., 2p, e) -> (..., p, 2, e) -> 2 x (..., p, e)
    first, second = x.unflatten(-2, (-1, 2)).unbind(dim=-2)
    return torch.stack([-second, first], dim=-2).flatten(-3, -2)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of rows of matrices by given angles.

    Args:
        x (Tensor): (..., 2 * pairs, e).
        cos (Tensor): Cosines, (..., pairs).
        sin (Tensor): Sines, of the same shape.

    Returns:
        Tensor: Rows (a, b) become (a cos - b sin, b cos + a sin); the
        broadcast shape.
    """
    cos, sin = cos.unsqueeze(-1), sin.unsqueeze(-1)
    # (..., 2p, e) -> (..., p, 2, e) -> 2 x (..., p, e)
    first, second = x.unflatten(-2, (-1, 2)).unbind(dim=-2)
    return torch.stack(
        [first * cos - second * sin, second * cos + first * sin],
        dim=-2).flatten(-3, -2)


def _headroom(dtype: torch.dtype) -> float:
    """Exponents up to here are taken as they are: 17.7 in float32.

    A product of two features is then at most max**0.4, max being the largest
    number.
    """
    return math.log(torch.finfo(dtype).max) / 5


class _SignedExponential(torch.autograd.Function):
    """``exp(|x| w) - 1`` of one sign and of the other, and their unit.

    The weight of positive numbers is ``mean + gap``, of negative ones
    ``mean - gap``. Features are expressed in the unit ``exp(shift)``, which
    is 1 unless the largest exponent exceeds the headroom. A quotient that is
    linear in the features does not depend on it, so that it has no gradient.
    One exponential serves both signs, and the result serves backward.
    """

    @staticmethod
    def forward(x: Tensor, mean: Optional[Tensor], gap: Optional[Tensor],
                flip: bool,
                dims: Tuple[int, ...]) -> Tuple[Tensor, Tensor, Tensor]:
        # New memory costs more than arithmetic: the results are all there is.
        size = torch.empty_like(x, memory_format=torch.contiguous_format)
        cols = torch.empty_like(size)
        size.copy_(x).abs_()
        if mean is not None:
            size.mul_(mean).addcmul_(x, gap)
        shift = size.amax(dims, keepdim=True).sub_(_headroom(x.dtype))
        shift.clamp_(min=0)
        values = size.sub_(shift).exp_().sub_(shift.neg().exp_())
        values.mul_(cols.copy_(x).sign_())  # nothing at zero
        if flip:
            values.neg_()
        # (G, H, h, w, d) -> (G, H, w, h, d)
        turned = values.transpose(2, 3)
        cols = cols.flatten(2, 3).unflatten(2, turned.shape[2:4])
        cols = cols.copy_(turned).neg_().relu_()
        return values.relu_(), cols, shift

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, mean, gap, ctx.flip, _ = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, mean, gap, *output)

    @staticmethod
    @_first_order
    def backward(ctx, grad_rows, grad_cols, _):
        x, mean, gap, rows, cols, shift = ctx.saved_tensors
        # exp(|x| w) in its unit is the derivative of both.
        slope = (rows + cols.transpose(2, 3)).add_(shift.neg().exp_())
        first = x < 0 if ctx.flip else x > 0
        grad = torch.where(first, grad_rows, grad_cols.transpose(2, 3))
        sign = x.sign()
        grad = grad.mul_(slope).mul_(sign)
        if mean is None:
            return grad, None, None, None, None
        # (G, H, h, w, d) -> (H, 1, 1, d)
        grad_mean, grad_gap = (
            torch.mul(grad, t, out=slope).sum((0, 2, 3))[:, None, None]
            for t in (x, x.abs()))
        return (grad.mul_(torch.addcmul(mean, gap, sign)), grad_mean,
                grad_gap, None, None)


class _Quotient(torch.autograd.Function):
    """Numerators over their denominator, with a bounded gradient.

    As numerators alone are turned, they may be large where the denominator
    vanishes. Values, at most max**0.4 / max**-0.5, and gradients, at most
    max**0.35 before they are multiplied by two features, stay numbers there;
    elsewhere no bound is met.
    """

    @staticmethod
    def forward(both: Tensor, eps: Tensor) -> Tuple[Tensor, Tensor]:
        # Far below its range epsilon no longer tells, but 0/0 must not be.
        floor = torch.finfo(both.dtype).max**-0.5
        below = both[..., -1:] + eps.clamp(min=floor)
        return both[..., :-1] / below, below

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @_first_order
    def backward(ctx, grad, _):
        out, below = ctx.saved_tensors
        bound = torch.finfo(out.dtype).max**0.35
        above = (grad / below).clamp_(-bound, bound)
        down = (above * out).clamp_(-bound, bound).sum(dim=-1, keepdim=True)
        return torch.cat([above, -down], dim=-1), None


def _long(features: Tensor) -> bool:
    """Whether lines are so long that a matrix each, of d x d, costs less than
    turned copies of their tokens; on short ones it would need more memory."""
    return 4 * features.shape[-2] >= features.shape[-1]


def sum_turned(features: Tensor, values: Tensor, angles: Angles) -> Tensor:
    """Products of turned features and values, summed over all tokens.

    Args:
        features (Tensor): (G, H, L, M, d): L lines of M tokens.
        values (Tensor): (G, H, L, M, e).
        angles (tuple[Tensor, Tensor]): Those of the lines, each (L, d / 2).

    Returns:
        Tensor: (G, H, d, e).
    """
    cos, sin = map(_each_feature, angles)  # (L, d, 1)
    if _long(features):
        lines = features.transpose(-2, -1) @ values  # (G, H, L, d, e)
        along, across = ((lines * t).sum(dim=2) for t in (cos, sin))
    else:
        values = values.flatten(2, 3)  # (G, H, N, e)
        # (G, H, L, M, d) -> (G, H, d, N)
        along, across = (
            (features * t.transpose(-2, -1)).flatten(2, 3).transpose(
                -2, -1) @ values for t in (cos, sin))
    return along + quarter_turn(across)


def read_turned(features: Tensor, matrix: Tensor, plain: Tensor,
                angles: Angles) -> Tensor:
    """Let turned features read a matrix, and plain ones a column.

    Args:
        features (Tensor): (G, H, L, M, d): L lines of M tokens.
        matrix (Tensor): (G, H, d, e), for the turned features.
        plain (Tensor): (G, H, d, 1), for the features as they are.
        angles (tuple[Tensor, Tensor]): Those of the lines, each (L, d / 2).

    Returns:
        Tensor: (G, H, L, M, e + 1), the column last.
    """
    cos, sin = map(_each_feature, angles)  # (L, d, 1)
    # What is turned, the other way, is the matrix.
    across = -quarter_turn(matrix)
    if _long(features):
        # (G, H, L, d, e); the column stays as it is
        turned = (cos * matrix.unsqueeze(2)).addcmul(
            sin, across.unsqueeze(2))
        column = plain.unsqueeze(2).expand(-1, -1, cos.shape[0], -1, -1)
        return features @ torch.cat([turned, column], dim=-1)
    along, across = (
        (features * t.transpose(-2, -1)).flatten(2, 3) @ part
        for t, part in ((cos, matrix), (sin, across)))
    column = features.flatten(2, 3) @ plain
    # (G, H, N, e + 1) -> (G, H, L, M, e + 1)
    return torch.cat([along + across, column], dim=-1).unflatten(
        2, features.shape[2:4])


def _each_feature(table: Tensor) -> Tensor:
    """(L, pairs) to (L, 2 * pairs, 1): one entry a feature."""
    return table.repeat_interleave(2, dim=-1).unsqueeze(-1)


def polarity_exponential_attention(q: Tensor,
                                   k: Tensor,
                                   v: Tensor,
                                   same: Tensor,
                                   opposite: Tensor,
                                   counts: Optional[Tensor] = None) -> Tensor:
    """The linear attention of PolaFormer++.

    With ``phi(x) = exp(x) - 1``, keys ``K = phi([k+, k-])`` and queries
    ``Q = phi(same * [q+, q-])`` for the first half of the values,
    ``phi(opposite * [q-, q+])`` for the second,

    ``out = rope(Q) (rope(K)^T v / n) / (Q mean_n(K) + 1e-6)``.

    Features are expressed in units that keep them finite, one for each query
    and one for the keys of each head; the quotient, with 1e-6 in the same
    units, does not depend on them.

    Args:
        q (Tensor): Queries (G, H, h, w, d), float32 or float64, d even.
        k (Tensor): Keys of that shape, zero for padding.
        v (Tensor): Values of that shape.
        same (Tensor): Weights of the first half's queries, (H, 1, 1, 2d).
        opposite (Tensor): Weights of the second half's, of that shape.
        counts (Tensor, optional): Real tokens of each group, (G, 1, 1, 1).
            Defaults to None: all.

    Returns:
        Tensor: (G, H, h, w, d).
    """
    height, width, dim = q.shape[2:]
    if counts is None:
        counts = height * width
    by_row, by_col = (
        rotary_angles(length, dim // 2, q.device, q.dtype)
        for length in (height, width))
    rows, cols, key_shift = _SignedExponential.apply(k, None, None, False,
                                                     (2, 3, 4))
    row_matrix = sum_turned(rows, v, by_row) / counts  # (G, H, d, d)
    col_matrix = sum_turned(cols, v.transpose(2, 3), by_col) / counts
    # Mean keys: (G, H, d, 1)
    row_mean, col_mean = (
        t.sum((2, 3)).unsqueeze(-1) / counts for t in (rows, cols))

    halves = []
    for half, (weight, flip) in enumerate(((same, False), (opposite, True))):
        # Weights of the first and of the second features of this half
        pair = weight.chunk(2, dim=-1)
        mean, gap = (pair[0] + pair[1]) / 2, (pair[flip] - pair[not flip]) / 2
        rows, cols, shift = _SignedExponential.apply(q, mean, gap, flip,
                                                     (-1, ))
        channels = slice(half * dim // 2, (half + 1) * dim // 2)
        both = read_turned(rows, row_matrix[..., channels], row_mean, by_row)
        both += read_turned(cols, col_matrix[..., channels], col_mean,
                            by_col).transpose(2, 3)
        # (G, H, h, w, d/2 + 1) -> (G, H, h, w, d/2)
        eps = EPS * (-shift - key_shift).exp()
        halves.append(_Quotient.apply(both, eps)[0])
    return torch.cat(halves, dim=-1)


class _GatedAttention(BaseAttention):
    """``proj((attention + lepe(v)) * gate)`` on a grid: what both share.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads H.
        **kwargs: Those of :class:`BaseAttention`. Positions are told by
            rotary angles, so that there is no relative-position bias.

    Raises:
        ValueError: If keys and values are to come from a reduced map, or a
            head has too few channels for the angles.
    """

    head_multiple = 2

    refusals = dict(
        prefix='its positions are rows and columns of a grid.',
        q_pool='its depthwise convolution needs the whole grid.',
        sr_ratio='it turns queries and keys by their places on one grid.')

    def __init__(self, dim: int, num_heads: int, *args, **kwargs) -> None:
        kwargs['rel_pos_bias'] = False
        super().__init__(dim, num_heads, *args, **kwargs)
        name = type(self).__name__
        if self.sr_ratio is not None:
            raise ValueError(f'sr_ratio={self.sr_ratio}: {name} projects '
                             'queries, keys and values together')
        if self.head_dim % self.head_multiple:
            raise ValueError(
                f'{name} turns pairs of features by row and column: dim='
                f'{self.dim_out} / num_heads={num_heads} = {self.head_dim} '
                f'is no multiple of {self.head_multiple}')
        self.lepe = nn.Conv2d(
            self.dim_out, self.dim_out, 5, padding=2, groups=self.dim_out)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.forward`."""
        self._check_layout(x, layout)
        q, k, v, gate = self.project(x, layout)
        q, k = self.prepare_queries_and_keys(
            self.split_heads(q), self.split_heads(k), layout)
        if layout.valid is not None:
            # (W, N) -> (G, N, 1), groups are image-major
            images = x.shape[0] // layout.valid.shape[0]
            padding = ~layout.valid.repeat(images, 1).unsqueeze(-1)
            v = v.masked_fill(padding, 0)
            k = k.masked_fill(padding.unsqueeze(1), 0)
        out = self.attend(q, k, self.split_heads(v), x, layout)
        # (G, H, N, d) -> (G, N, C)
        out = out.transpose(1, 2).flatten(2).to(v.dtype)
        out = (out + self.local(v, layout)) * gate
        return self.proj_drop(self.proj(out))

    def local(self, v: Tensor, layout: TokenLayout) -> Tensor:
        """The depthwise convolution of the values on their grid.

        Args:
            v (Tensor): Values (G, N, C).
            layout (TokenLayout): How the tokens lie.

        Returns:
            Tensor: (G, N, C).
        """
        # (G, N, C) -> (G, C, h, w) -> (G, N, C)
        grid = v.transpose(1, 2).unflatten(2, layout.grid)
        return self.lepe(grid).flatten(2).transpose(1, 2)

    def _check_layout(self, x: Tensor, layout: TokenLayout) -> None:
        super()._check_layout(x, layout)
        if layout.prefix or layout.q_pool > 1 or layout.order is not None:
            raise ValueError(
                f'{type(self).__name__} needs tokens that lie row by row on '
                'a grid: no class token, no pooled queries, no other order')


@ATTENTIONS.register_module()
class PolaPP(_GatedAttention):
    """Linear attention with exponential polarity features (PolaFormer++).

    ``proj((attention + lepe(v)) * g)`` with the attention of
    :func:`polarity_exponential_attention`, weighted by ``sigmoid(s1)`` and
    ``sigmoid(s2)``, a 5x5 depthwise convolution ``lepe`` and a gate g.
    Cost grows with the number of tokens; exponentials, sums over tokens and
    quotients are taken in float32 at least.

    Parameters bear the names of the released code: ``qkvg``, ``s1``, ``s2``,
    ``lepe``, ``proj``.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads H; C / H must be even.
        **kwargs: Those of :class:`BaseAttention`; there are no attention
            weights to drop.

    Raises:
        ValueError: If an argument cannot be honoured.
    """

    projections = 'qkvg'
    linear = True
    shift_regions = 'apart'

    def __init__(self, dim: int, num_heads: int, *args, **kwargs) -> None:
        super().__init__(dim, num_heads, *args, **kwargs)
        if self.attn_drop:
            raise ValueError(f'attn_drop={self.attn_drop}: PolaPP has no '
                             'attention weights to drop; use proj_drop')
        shape = (1, num_heads, 1, 2 * self.head_dim)
        self.s1 = nn.Parameter(torch.zeros(shape))
        self.s2 = nn.Parameter(torch.zeros(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Truncated normal (0.02) projections; weights of one half."""
        super().reset_parameters()
        nn.init.zeros_(self.s1)
        nn.init.zeros_(self.s2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.attend`; in float32 under autocast."""
        if layout.mask is not None:
            raise ValueError('PolaPP has no logits that a mask could be '
                             'added to: regions need windows of their own')
        counts = None
        if layout.valid is not None:
            images = q.shape[0] // layout.valid.shape[0]
            counts = layout.valid.sum(1).clamp(min=1).repeat(images)
        with torch.autocast(q.device.type, enabled=False):
            q, k, v, same, opposite = map(_at_least_float32,
                                          (q, k, v, self.s1, self.s2))
            # (G, H, N, d) -> (G, H, h, w, d)
            q, k, v = (
                t.unflatten(2, layout.grid) for t in (q, k, v.contiguous()))
            if counts is not None:
                counts = counts.to(q.dtype).view(-1, 1, 1, 1)
            # (1, H, 1, 2d) -> (H, 1, 1, 2d)
            same, opposite = (
                t[0].unsqueeze(1).sigmoid() for t in (same, opposite))
            out = polarity_exponential_attention(q, k, v, same, opposite,
                                                 counts)
        return out.flatten(2, 3)


@ATTENTIONS.register_module()
class PolaPPSoftmax(_GatedAttention, Softmax):
    """Softmax attention with rotary positions and a gate (PolaFormer++).

    ``proj((softmax(rope(q) rope(k)^T / sqrt(d)) v + lepe(v)) * o)``: what
    PolaFormer++ has in its later stages.

    Parameters bear the names of the released code: ``qkvo``, ``lepe``,
    ``proj``.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads H; C / H must be a multiple of 4.
        **kwargs: Those of :class:`BaseAttention`.

    Raises:
        ValueError: If an argument cannot be honoured.
    """

    projections = 'qkvo'
    head_multiple = 4

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.attend`."""
        dtype = _at_least_float32(q).dtype
        height, width = layout.grid
        tables = zip(*(
            rotary_angles(length, self.head_dim // 4, q.device, dtype)
            for length in (height, width)))
        # Rows first, then columns: 2 x (N, d / 2)
        cos, sin = (
            torch.cat([
                row[:, None].expand(-1, width, -1),
                col[None].expand(height, -1, -1)
            ], dim=-1).flatten(0, 1) for row, col in tables)
        # (G, H, N, d) -> (G, H, N, d, 1) and back
        q, k = (
            turn(t.unsqueeze(-1), cos, sin).squeeze(-1).to(v.dtype)
            for t in (q, k))
        return super().attend(q, k, v, x, layout)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
