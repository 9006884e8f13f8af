"""Pola: linear attention that keeps the negative half of q and k.

A linear attention replaces softmax(q k) by a product of non-negative features
of q and of k, so that keys and values are summed up once for all queries. Pola
(PolaFormer, ICLR 2025) takes the positive and the negative parts of q and k
as separate features, sharpened by a learned power. Pairs of equal sign go to
the first half of the value channels, pairs of opposite sign to the second.

Both flows and both denominators are one product here. With P and N the
features of the positive and negative parts of the queries, the rows

``R = P [A+ | B- | k+ | k-] + N [A- | B+ | k- | k+]``

hold the first half's numerator (A+-: positive, negative keys times values),
the second half's (B+-), and the two denominators (k+-: mean keys).
"""
from typing import List, NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmcsan.registry import ATTENTIONS
from .base import BaseAttention, TokenLayout, pool_siblings
from .first_order import first_order
from .graphs import ceil_div, in_graph, leaves_torch
from .positions import resize_positions

EPS = 1e-6
"""What is added to the denominators."""


CHUNK = 2**19
"""Entries of q that are worked on at a time: few megabytes stay in caches."""


class Features(NamedTuple):
    """Sharpened parts of queries or keys, in units of their channel's largest.

    Args:
        pos (Tensor): Features of the positive part, (G, H, N, d), in [0, 1].
        neg (Tensor): Those of the negative part; where one of them is not
            zero, the other is.
    """

    pos: Tensor
    neg: Tensor


class Summary(NamedTuple):
    """What queries need to know of keys and values.

    Args:
        pos (Tensor): Factor of the queries' positive features,
            (G, H, d, d + 2); see the module's docstring.
        neg (Tensor): Factor of the negative ones, of the same shape.
        column (Tensor): Weight of each channel over the number of tokens,
            (G, H, d, 1). The weight is the product of the units of queries
            and keys, relative to the greatest.
        eps (Tensor): ``EPS`` in that unit, (G, H, 1, 1).
    """

    pos: Tensor
    neg: Tensor
    column: Tensor
    eps: Tensor


def _magnitude(x: Tensor) -> Tensor:
    """|x|, at least the smallest normal number, so that it has a logarithm."""
    return x.abs().clamp_min_(torch.finfo(x.dtype).tiny)


def log_peak(x: Tensor) -> Tensor:
    """Logarithm of the largest |x| of each channel: (G, H, 1, d)."""
    # Neither needs a copy of x, as its absolute values would.
    peak = torch.maximum(
        x.amax(dim=2, keepdim=True), -x.amin(dim=2, keepdim=True))
    return _magnitude(peak).log_()


def polarity_features(x: Tensor, power: Tensor, peak: Tensor) -> Features:
    """``relu(x)^p`` and ``relu(-x)^p``, relative to each channel's peak.

    One logarithm and one exponential serve both. In units of the largest |x|
    of the channel no power overflows, however large x is; the units cancel in
    the quotient that linear attention is, but for its epsilon, which
    :func:`summarize` converts.

    Args:
        x (Tensor): Queries or keys (G, H, N, d), float32 or float64.
        power (Tensor): p, broadcastable to x.
        peak (Tensor): Output of :func:`log_peak`.

    Returns:
        Features: The features.
    """
    signed = _magnitude(x).log_().sub_(peak).mul_(power).exp_()
    signed.mul_(x.sign())
    return Features(signed.relu(), signed.neg_().relu_())


def _chunks(x: Tensor) -> List[slice]:
    """Slices of the N tokens of (G, H, N, d) to work on one after the other.
    """
    tokens = x.shape[2]
    if in_graph():
        return [slice(0, tokens)]  # a graph must not depend on N
    step = max(CHUNK * tokens // max(x.numel(), 1), 64)
    return [
        slice(start, min(start + step, tokens))
        for start in range(0, tokens, step)
    ]


def _key_features(k: Tensor, power: Tensor, peak: Tensor,
                  valid: Optional[Tensor], part: slice) -> Features:
    """Features of some of the keys; those of padding are zero."""
    key = polarity_features(k[:, :, part].contiguous(), power, peak)
    if valid is None:
        return key
    return Features(key.pos * valid[:, :, part], key.neg * valid[:, :, part])


def _count(k: Tensor, valid: Optional[Tensor]) -> Tensor:
    """Real tokens of each group, at least one: (G or 1, 1, 1, 1)."""
    if valid is None:
        return k.new_full((1, 1, 1, 1), k.shape[2])
    return valid.sum(dim=2, keepdim=True).clamp_min(1)


def summarize(k: Tensor, v: Tensor, power: Tensor, log_scale: Tensor,
              peaks: Tuple[Tensor, Tensor],
              valid: Optional[Tensor]) -> Summary:
    """Sum keys and values up for all queries.

    Args:
        k (Tensor): Keys (G, H, M, d).
        v (Tensor): Values (G, H, M, d).
        power (Tensor): p, broadcastable to (G, H, 1, d).
        log_scale (Tensor): Logarithm of what queries and keys are divided
            by, broadcastable to (G, H, 1, d).
        peaks (tuple[Tensor, Tensor]): :func:`log_peak` of queries and keys.
        valid (Tensor, optional): (G, 1, M, 1), 0 for padding.

    Returns:
        Summary: The factors of the queries' features.
    """
    sums = None
    for part in _chunks(k):
        key = _key_features(k, power, peaks[1], valid, part)
        values = v[:, :, part].contiguous()
        new = (key.pos.transpose(-2, -1) @ values,
               key.neg.transpose(-2, -1) @ values, key.pos.sum(dim=2),
               key.neg.sum(dim=2))
        sums = _add(sums, new)

    log_unit = power * (peaks[0] + peaks[1] - 2 * log_scale)
    # Never below one: small numbers need no help, and epsilon stays finite.
    log_ref = log_unit.amax(dim=-1, keepdim=True).clamp_min(0)
    weight = (log_unit - log_ref).exp().transpose(-2, -1)  # (G, H, d, 1)
    column = weight / _count(k, valid)
    # Far below float's range epsilon no longer tells, but 0/0 must not be.
    floor = torch.finfo(v.dtype).tiny**0.8
    eps = (EPS * (-log_ref).exp()).clamp_min(floor)

    half = v.shape[-1] // 2
    a_pos, b_pos = (sums[0] * column).split(half, dim=-1)
    a_neg, b_neg = (sums[1] * column).split(half, dim=-1)
    k_pos, k_neg = (mean.unsqueeze(-1) * column for mean in sums[2:])
    return Summary(
        torch.cat([a_pos, b_neg, k_pos, k_neg], dim=-1),
        torch.cat([a_neg, b_pos, k_neg, k_pos], dim=-1), column, eps)


def _two_products(a: Tensor, b: Tensor, plus: Tensor, c: Tensor) -> Tensor:
    """``a @ b + plus @ c`` of (G, H, ., .) tensors, without a temporary."""
    shape = (*a.shape[:3], b.shape[-1])
    a, b, plus, c = (t.flatten(0, 1) for t in (a, b, plus, c))
    return torch.baddbmm(torch.bmm(a, b), plus, c).view(shape)


def query_summary(query: Features, summary: Summary) -> Tuple[Tensor, Tensor]:
    """Let queries read the summary.

    Args:
        query (Features): Features of the queries.
        summary (Summary): Output of :func:`summarize`.

    Returns:
        tuple[Tensor, Tensor]: The output (G, H, N, 2, d / 2), by halves, and
        the denominator of each half (G, H, N, 2, 1).
    """
    rows = _two_products(query.pos, summary.pos, query.neg, summary.neg)
    numerators, denominators = rows.split((rows.shape[-1] - 2, 2), dim=-1)
    denominators = (denominators + summary.eps).unsqueeze(-1)
    return numerators.unflatten(-1, (2, -1)) / denominators, denominators


def _empty_tokens(x: Tensor) -> Tensor:
    """An empty (G, H, N, d) whose memory has a token's heads side by side."""
    groups, heads, tokens, dim = x.shape
    return x.new_empty(groups, tokens, heads, dim).transpose(1, 2)


def _attention(q, k, v, power, log_scale, valid):
    """The output (G, H, N, d), and the peaks of queries and keys."""
    peaks = log_peak(q), log_peak(k)
    summary = summarize(k, v, power, log_scale, peaks, valid)
    parts = _chunks(q)
    out = None if len(parts) == 1 else _empty_tokens(q)
    for part in parts:
        query = polarity_features(q[:, :, part].contiguous(), power, peaks[0])
        result = query_summary(query, summary)[0].flatten(-2)
        if out is None:
            return result, peaks
        out[:, :, part] = result
    return out, peaks


class _PolarityAttention(torch.autograd.Function):
    """The attention with a backward of its own.

    It keeps its inputs, makes the features anew and never takes a power's
    derivative by itself: of a feature f = |x|^p the gradient is that of log f,
    which is the same in every unit, ``g = f * df``, times ``p / x`` for x and
    ``log |x|`` for p.
    """

    @staticmethod
    def forward(q, k, v, power, log_scale, valid):
        out, peaks = _attention(q, k, v, power, log_scale, valid)
        return (out, *peaks)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, *peaks = output
        ctx.mark_non_differentiable(*peaks)
        ctx.save_for_backward(*inputs, *peaks)

    @staticmethod
    @first_order(
        'Pola cannot be differentiated twice: its gradients are written by '
        'hand, and there is no other form of it')
    def backward(ctx, grad, *_):
        q, k, v, power, log_scale, valid, *peaks = ctx.saved_tensors
        summary = summarize(k, v, power, log_scale, peaks, valid)
        q_grad, factors, q_power = _query_gradients(
            q, grad, power, log_scale, peaks[0], summary)
        k_grad, v_grad, k_power = _key_gradients(
            k, v, power, log_scale, peaks[1], valid,
            _regroup(*(f * summary.column for f in factors)))
        # (G, H, 1, d) summed over groups: (1, H, 1, d)
        power_grad, log_sum = (
            (a + b).sum(dim=0, keepdim=True)
            for a, b in zip(q_power, k_power))
        return q_grad, k_grad, v_grad, power_grad, -power * log_sum, None


def _add(total, new):
    return new if total is None else tuple(map(torch.add, total, new))


def _query_gradients(q, grad, power, log_scale, peak, summary):
    """Gradients of the queries, of the summary's factors, of the powers."""
    q_grad, factors, powers = _empty_tokens(q), None, None
    for part in _chunks(q):
        x = q[:, :, part].contiguous()
        query = polarity_features(x, power, peak)
        rows = _grad_rows(grad[:, :, part], *query_summary(query, summary))
        factors = _add(factors, (query.pos.transpose(-2, -1) @ rows,
                                 query.neg.transpose(-2, -1) @ rows))
        log_grad = _grad_log(query, rows @ summary.pos.transpose(-2, -1),
                             rows @ summary.neg.transpose(-2, -1))
        q_grad[:, :, part], new = _grad_inputs(x, log_grad, power, log_scale)
        powers = _add(powers, new)
    return q_grad, factors, powers


def _key_gradients(k, v, power, log_scale, peak, valid, factors):
    """Gradients of the keys, of the values, of the powers.

    ``factors`` are those of :func:`_regroup`, (G, H, d, d + 1) each.
    """
    k_grad, v_grad, powers = _empty_tokens(k), _empty_tokens(v), None
    values, means = zip(*(f.split((f.shape[-1] - 1, 1), -1) for f in factors))
    for part in _chunks(k):
        x, y = k[:, :, part].contiguous(), v[:, :, part].contiguous()
        key = _key_features(k, power, peak, valid, part)
        v_grad[:, :, part] = _two_products(key.pos, values[0], key.neg,
                                           values[1])
        log_grad = _grad_log(key, *(
            (y @ value.transpose(-2, -1)).add_(mean.transpose(-2, -1))
            for value, mean in zip(values, means)))
        k_grad[:, :, part], new = _grad_inputs(x, log_grad, power, log_scale)
        powers = _add(powers, new)
    return k_grad, v_grad, powers


def _grad_rows(grad: Tensor, out: Tensor, denominators: Tensor) -> Tensor:
    """Gradient of the rows R of the module's docstring: (G, H, N, d + 2)."""
    # (G, H, N, d) -> (G, H, N, 2, d/2)
    numerators = grad.unflatten(-1, (2, -1)) / denominators
    products = (numerators * out).sum(dim=-1).neg_()
    return torch.cat([numerators.flatten(-2), products], dim=-1)


def _grad_log(x: Features, pos: Tensor, neg: Tensor) -> Tensor:
    """Gradient of the logarithm of the features; overwrites its input."""
    return pos.mul_(x.pos).add_(neg.mul_(x.neg))


def _regroup(pos: Tensor, neg: Tensor) -> Tuple[Tensor, Tensor]:
    """From what each part of the queries reads to what each part of the keys
    gave: (G, H, d, d + 1), the halves of the values and the mean."""
    half = (pos.shape[-1] - 2) // 2
    a_pos, b_neg, mean_pp, mean_pn = pos.split((half, half, 1, 1), dim=-1)
    a_neg, b_pos, mean_nn, mean_np = neg.split((half, half, 1, 1), dim=-1)
    return (torch.cat([a_pos, b_pos, mean_pp + mean_np], dim=-1),
            torch.cat([a_neg, b_neg, mean_pn + mean_nn], dim=-1))


def _grad_inputs(
        x: Tensor, log_grad: Tensor, power: Tensor,
        log_scale: Tensor) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:
    """Gradient of x; of the powers and, summed, of log f: (G, H, 1, d)."""
    size = _magnitude(x)
    x_grad = (log_grad * power).mul_(x.sign()).div_(size)
    power_grad = size.log_().sub_(log_scale).mul_(log_grad)
    return x_grad, (power_grad.sum(dim=2, keepdim=True),
                    log_grad.sum(dim=2, keepdim=True))


def polarity_attention(q: Tensor,
                       k: Tensor,
                       v: Tensor,
                       power: Tensor,
                       scale: Tensor,
                       valid: Optional[Tensor] = None) -> Tensor:
    """Polarity-aware linear attention (PolaFormer, eq. 7 and 8).

    Memory and time grow with N. Tokens are worked on in chunks, so that
    besides inputs and outputs nothing grows at all.

    Args:
        q (Tensor): Queries (G, H, N, d), float32 or float64.
        k (Tensor): Keys (G, H, M, d), with their positional encoding.
        v (Tensor): Values (G, H, M, d), d even.
        power (Tensor): p >= 1 of each head and channel, (1, H, 1, d).
        scale (Tensor): What q and k are divided by, (1, H, 1, d), positive.
        valid (Tensor, optional): (G, 1, M, 1) of the dtype of k: 0 for
            padding, whose q and k should be 0, else 1.

    Returns:
        Tensor: (G, H, N, d).
    """
    args = (q, k, v, power, scale.log(), valid)
    trained = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in args)
    if trained and not leaves_torch():
        return _PolarityAttention.apply(*args)[0]
    return _attention(*args)[0]


@ATTENTIONS.register_module()
class Pola(BaseAttention):
    """Polarity-aware linear attention with a gate (PolaFormer, ICLR 2025).

    ``proj((attention + local) * g)``, where local is a depthwise convolution
    of the values on their grid whose kernel all heads share, and g a gate of
    C channels projected from the tokens. Keys carry a learned positional
    encoding of ``grid_size``, which is resized in 2-D for other grids.

    Powers, sums over tokens and quotients are taken in float32 at least.

    Parameters bear the names of the released code: ``qkvg`` (or ``qg`` and
    ``kv``), ``positional_encoding``, ``scale``, ``power``, ``dwc``, ``proj``.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads H; C / H must be even.
        grid_size (tuple[int, int]): Height and width of the groups of
            pretraining, in tokens (after reduction by ``sr_ratio``).
        alpha (float): The power is ``1 + alpha * sigmoid(power)``.
            Defaults to 4.
        kernel_size (int): Side of the local convolution, odd. Defaults to 5.
        hard_shift_mask (bool): Keep apart the regions that the shift of
            windows made neighbours. False mixes them, as released windowed
            models were trained. Defaults to True.
        **kwargs: Those of :class:`BaseAttention`. There are no logits to
            bias, and no attention weights to drop.

    Raises:
        ValueError: If an argument is out of range or cannot be honoured.
    """

    projections = 'qkvg'
    linear = True

    def __init__(self,
                 dim: int,
                 num_heads: int,
                 grid_size: Tuple[int, int],
                 *,
                 alpha: float = 4.,
                 kernel_size: int = 5,
                 hard_shift_mask: bool = True,
                 **kwargs) -> None:
        kwargs['rel_pos_bias'] = False
        if grid_size is None:
            raise ValueError('Pola needs grid_size: its positional encoding '
                             'is made for a grid of pretraining')
        super().__init__(dim, num_heads, grid_size, **kwargs)
        if self.head_dim % 2:
            raise ValueError(
                f'Pola halves the channels of a head: dim={self.dim_out} / '
                f'num_heads={num_heads} = {self.head_dim} is odd')
        if self.attn_drop:
            raise ValueError(f'attn_drop={self.attn_drop}: Pola has no '
                             'attention weights to drop; use proj_drop')
        if alpha < 0:
            raise ValueError(f'alpha={alpha} is negative')
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size={kernel_size} is not odd')
        self.alpha = alpha
        self.shift_regions = 'apart' if hard_shift_mask else 'mask'
        self.power = nn.Parameter(
            torch.zeros(1, num_heads, 1, self.head_dim))
        self.scale = nn.Parameter(torch.zeros(1, 1, self.dim_out))
        self.positional_encoding = nn.Parameter(
            torch.zeros(1, self.grid_size[0] * self.grid_size[1],
                        self.dim_out))
        self.dwc = nn.Conv2d(
            self.head_dim,
            self.head_dim,
            kernel_size,
            padding=kernel_size // 2,
            groups=self.head_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Truncated normal (0.02) projections; power 1 + alpha / 2."""
        super().reset_parameters()
        for param in (self.power, self.scale, self.positional_encoding):
            nn.init.zeros_(param)

    def exponent(self) -> Tensor:
        """The powers p, (1, H, 1, d)."""
        return 1 + self.alpha * self.power.sigmoid()

    def encoding(self, size: Tuple[int, int]) -> Tensor:
        """The positional encoding of keys on a grid.

        Args:
            size (tuple[int, int]): Height and width of the keys' grid.

        Returns:
            Tensor: (1, height * width, C).
        """
        # (1, h*w, C) -> (1, h, w, C) -> (1, H, W, C) -> (1, H*W, C)
        table = self.positional_encoding.unflatten(1, self.grid_size)
        return resize_positions(table, size).flatten(1, 2)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.forward`.

        Raises:
            ValueError: If the layout masks pairs of tokens, which needs
                logits, or marks padding of a map that is reduced.
        """
        self._check_layout(x, layout)
        q, k, v, gate = self.project(x, layout)
        q, k = self._norm(q, self.q_norm), self._norm(k, self.k_norm)
        valid = self._valid(x, layout)
        k = k + self._token_encoding(layout).to(k.dtype)
        if valid is not None:
            # Padding must not even set the unit that others are measured in.
            q, k, v = (t * valid.to(t.dtype) for t in (q, k, v))
        out = self.attend_tokens(pool_siblings(q, layout, 'max'), k, v, valid)
        local = pool_siblings(self.local(v, layout), layout, 'mean')
        gate = pool_siblings(gate, layout, 'mean')
        return self.proj_drop(self.proj((out.to(v.dtype) + local) * gate))

    def attend_tokens(self, q: Tensor, k: Tensor, v: Tensor,
                      valid: Optional[Tensor]) -> Tensor:
        """The attention, in float32 at least even under autocast.

        Args:
            q (Tensor): Queries (G, N, C).
            k (Tensor): Keys (G, M, C), encoded.
            v (Tensor): Values (G, M, C).
            valid (Tensor, optional): (G, M, 1), 0 for padding.

        Returns:
            Tensor: (G, N, C).
        """
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (
                self.split_heads(_at_least_float32(t)) for t in (q, k, v))
            if valid is not None:
                valid = valid.unsqueeze(1).to(k.dtype)  # (G, 1, M, 1)
            scale = F.softplus(_at_least_float32(self.scale))
            # (1, 1, C) -> (1, H, 1, d)
            scale = self.split_heads(scale)
            out = polarity_attention(q, k, v,
                                     _at_least_float32(self.exponent()),
                                     scale, valid)
        # (G, H, N, d) -> (G, N, C)
        return out.transpose(1, 2).flatten(2)

    def local(self, v: Tensor, layout: TokenLayout) -> Tensor:
        """The depthwise convolution of the values on their grid.

        Args:
            v (Tensor): Values (G, M, C), 0 for padding; those of a reduced
                map are first interpolated, linearly along the flattened
                tokens, to N.
            layout (TokenLayout): How the tokens lie. Those in front of the
                grid have no neighbours and get nothing.

        Returns:
            Tensor: (G, N, C).
        """
        height, width = layout.grid
        v = v[:, layout.prefix:]
        if layout.order is not None:
            v = v[:, layout.order]
        v = v.transpose(1, 2)  # (G, C, M)
        if v.shape[2] != height * width:
            v = F.interpolate(v, size=height * width, mode='linear')
        # One kernel for all heads; (G, N, C) in memory is a map with
        # channels last, which the convolution takes as it is.
        out = F.conv2d(
            v.unflatten(2, (height, width)),
            self.dwc.weight.repeat(self.num_heads, 1, 1, 1),
            self.dwc.bias.repeat(self.num_heads),
            padding=self.dwc.padding,
            groups=self.dim_out)
        return self._to_tokens(out.flatten(2).transpose(1, 2), layout)

    def _token_encoding(self, layout: TokenLayout) -> Tensor:
        """The encoding of each key: (1, M, C), zero in front of the grid."""
        ratio = self.sr_ratio or 1
        size = tuple(ceil_div(s, ratio) for s in layout.grid)
        return self._to_tokens(self.encoding(size), layout)

    @staticmethod
    def _to_tokens(places: Tensor, layout: TokenLayout) -> Tensor:
        """From places of the grid, row by row, to tokens as they lie."""
        if layout.order is not None:
            places = places[:, layout.order.argsort()]
        if layout.prefix:
            places = F.pad(places, (0, 0, layout.prefix, 0))
        return places

    def _norm(self, x: Tensor, norm: Optional[nn.Module]) -> Tensor:
        """Normalise the channels of each head of (G, N, C)."""
        if norm is None:
            return x
        return norm(x.unflatten(-1, (self.num_heads, -1))).flatten(2)

    def _valid(self, x: Tensor, layout: TokenLayout) -> Optional[Tensor]:
        """Which tokens are real, for each group: (G, N, 1)."""
        if layout.valid is None:
            return None
        images = x.shape[0] // layout.valid.shape[0]
        return layout.valid.repeat(images, 1).unsqueeze(-1).to(x.dtype)

    def _check_layout(self, x: Tensor, layout: TokenLayout) -> None:
        super()._check_layout(x, layout)
        if layout.mask is not None and self.shift_regions == 'apart':
            raise ValueError('Pola has no logits to mask: groups must be '
                             'regions of their own (shift_regions="apart"), '
                             'or hard_shift_mask=False mixes them')
        if layout.valid is not None and (self.sr_ratio or 1) > 1:
            raise ValueError(f'sr_ratio={self.sr_ratio} reduces maps, which '
                             'cannot leave out padding')


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
