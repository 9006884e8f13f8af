"""What every attention shares: its interface, and the relative bias table.

An attention sees groups of tokens that lie on a grid and knows nothing of how
a backbone made the groups (shifted windows, one global group, ...).
"""
from copy import deepcopy
from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor

from mmcsan.registry import ATTENTIONS


@dataclass(frozen=True)
class TokenLayout:
    """How the tokens of each group lie, and which of them may be seen.

    The groups of a batch are ordered image-major: group ``b * W + w`` is
    window ``w`` of image ``b``. N = prefix + height * width tokens.

    Args:
        grid (tuple[int, int]): Height and width of a group, in tokens.
        mask (Tensor, optional): Additive mask of shape (W, N, N), 0 where a
            query may see a key and a negative number where not.
        valid (Tensor, optional): Boolean (W, N), False for padding. None
            means that every token is real. Tokens of the prefix are.
        valid_map (Tensor, optional): Boolean (H, W, 1), the same for the
            merged map, used by what runs after the groups are merged; with
            pooled queries, for the pooled map.
        prefix (int): Tokens in front of those of the grid, which lie nowhere
            (class token, registers). Defaults to 0.
        q_pool (int): Siblings s of a pooled query; token ``i`` of the grid
            is a sibling of ``i + N / s``, ``i + 2 N / s``, ... (Hiera).
            Defaults to 1: no pooling. Not together with a prefix.
        order (Tensor, optional): int64 (height * width,): the token that
            lies at each place of the grid, row by row. None means that they
            lie in order.
    """

    grid: Tuple[int, int]
    mask: Optional[Tensor] = None
    valid: Optional[Tensor] = None
    valid_map: Optional[Tensor] = None
    prefix: int = 0
    q_pool: int = 1
    order: Optional[Tensor] = None

    def __post_init__(self) -> None:
        if self.prefix and self.q_pool > 1:
            raise ValueError(f'q_pool={self.q_pool} with prefix='
                             f'{self.prefix}: what lies nowhere has no '
                             'siblings')

    @property
    def num_tokens(self) -> int:
        """Tokens N of a group."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def windows(self) -> int:
        """Groups W of an image that the layout tells apart, at least 1."""
        for tensor in (self.mask, self.valid):
            if tensor is not None:
                return tensor.shape[0]
        return 1


def pool_siblings(x: Tensor, layout: TokenLayout, how: str) -> Tensor:
    """Pool the tokens that one pooled query stands for (Hiera).

    Padding takes no part. A pooled token whose siblings all are padding is
    padding itself; what it holds is finite and means nothing.

    Args:
        x (Tensor): (G, ..., N, C).
        layout (TokenLayout): How the N tokens lie; ``layout.q_pool`` is s.
        how (str): ``'max'`` or ``'mean'``.

    Returns:
        Tensor: (G, ..., N / s, C).
    """
    siblings = layout.q_pool
    if siblings == 1:
        return x
    x = x.unflatten(-2, (siblings, -1))  # (G, ..., s, N/s, C)
    if layout.valid is None:
        return x.amax(dim=-3) if how == 'max' else x.mean(dim=-3)
    real = layout.valid.unflatten(1, (siblings, -1))  # (W, s, N/s)
    # (G, ..., s, N/s, C) -> (B, W, ..., s, N/s, C)
    x = x.unflatten(0, (-1, real.shape[0]))
    between = (1, ) * (x.dim() - 5)
    real = real.view(real.shape[0], *between, *real.shape[1:], 1)
    if how == 'max':
        # Where nothing is real nothing is hidden, lest infinities go on.
        hidden = ~real & real.any(dim=-3, keepdim=True)
        x = x.masked_fill(hidden, float('-inf')).amax(dim=-3)
    else:
        x = x.masked_fill(~real, 0).sum(dim=-3)
        x = x / real.sum(dim=-3).clamp(min=1)
    return x.flatten(0, 1)


def relative_position_index(height: int, width: int) -> Tensor:
    """Row of the relative-position table for each pair of tokens.

    Args:
        height (int): Height of the grid, in tokens.
        width (int): Width of the grid, in tokens.

    Returns:
        Tensor: int64 (N, N) with N = height * width, entries in
        [0, (2 * height - 1) * (2 * width - 1)).
    """
    rows, cols = torch.meshgrid(
        torch.arange(height), torch.arange(width), indexing='ij')
    rows, cols = rows.flatten(), cols.flatten()
    row_gap = rows[:, None] - rows[None, :] + height - 1
    col_gap = cols[:, None] - cols[None, :] + width - 1
    return row_gap * (2 * width - 1) + col_gap


class BaseAttention(BaseModule):
    """Projections and relative-position bias of a multi-head attention.

    A subclass implements :meth:`attend`. It is built by a backbone, which
    passes what its blocks need of the arguments below; everything else comes
    from the user's config.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads H; divides ``dim_out``.
        grid_size (tuple[int, int], optional): Height and width of the groups
            that it is built for, in tokens. Defaults to None: any.
        rel_pos_bias (bool): Whether a learned relative-position bias is added
            to the logits (Swin), if ``grid_size`` is given; groups then need
            that size. Attentions without logits ignore it. Defaults to True.
        qkv_bias (bool): Whether q, k and v have a bias. Defaults to True.
        attn_drop (float): Dropout rate of the attention weights.
            Defaults to 0.
        proj_drop (float): Dropout rate of the output. Defaults to 0.
        dim_out (int, optional): Channels of q, k, v and of the output.
            Defaults to None: ``dim``.
        sr_ratio (int, optional): If given, keys and values have a projection
            of their own and, above 1, come from the map reduced by a strided
            convolution (PVT). Defaults to None: one projection for all.
        qk_norm (bool): Whether queries and keys are normalised, over the
            channels of a head (ViT). Defaults to False.
        init_cfg (dict, optional): Initialization config. Defaults to None.

    Raises:
        ValueError: If ``num_heads`` does not divide ``dim_out``, or a rate or
            ratio is out of range.
    """

    projections = 'qkv'
    """One letter for each block of C channels that tokens are projected to."""

    reduced_name = 'kv'
    """Name of the projection to keys and values where it is one of its own."""

    linear = False
    """Whether its cost grows with the number of tokens, not its square."""

    refusals: Dict[str, str] = {}
    """What it cannot do, of ``NEEDS``, and why, as one sentence."""

    shift_regions = 'mask'
    """How shifted windows keep apart what a roll made neighbours: ``'mask'``
    rolls and masks logits, ``'apart'`` makes each region its own window."""

    def __init__(self,
                 dim: int,
                 num_heads: int,
                 grid_size: Optional[Tuple[int, int]] = None,
                 rel_pos_bias: bool = True,
                 qkv_bias: bool = True,
                 attn_drop: float = 0.,
                 proj_drop: float = 0.,
                 dim_out: Optional[int] = None,
                 sr_ratio: Optional[int] = None,
                 qk_norm: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        dim_out = dim if dim_out is None else dim_out
        if num_heads < 1 or dim_out % num_heads:
            name = 'dim' if dim_out == dim else 'dim_out'
            raise ValueError(
                f'num_heads={num_heads} does not divide {name}={dim_out}')
        for name, rate in (('attn_drop', attn_drop), ('proj_drop', proj_drop)):
            if not 0 <= rate < 1:
                raise ValueError(f'{name}={rate} is not in [0, 1)')
        if sr_ratio is not None and sr_ratio < 1:
            raise ValueError(f'sr_ratio={sr_ratio} is less than 1')
        self.dim = dim
        self.dim_out = dim_out
        self.num_heads = num_heads
        self.head_dim = dim_out // num_heads
        self.grid_size = None if grid_size is None else tuple(grid_size)
        self.attn_drop = attn_drop
        self.sr_ratio = sr_ratio

        self._build_projections(qkv_bias)
        self.q_norm = self.k_norm = None
        if qk_norm:
            self.q_norm = nn.LayerNorm(self.head_dim, eps=1e-6)
            self.k_norm = nn.LayerNorm(self.head_dim, eps=1e-6)
        self.proj = nn.Linear(dim_out, dim_out)
        self.proj_drop = nn.Dropout(proj_drop)
        self.has_rel_pos_bias = rel_pos_bias and self.grid_size is not None
        if self.has_rel_pos_bias:
            self._build_bias_table()

    def _build_projections(self, bias: bool) -> None:
        """One linear layer for all; or one for what each token has, one for
        what the reduced map has."""
        if self.sr_ratio is None:
            names = (self.projections, )
        else:
            names = (self.projections.replace('kv', ''), 'kv')
        for name in names:
            layer = nn.Linear(self.dim, len(name) * self.dim_out, bias=bias)
            self.add_module(self.reduced_name if name == 'kv' else name, layer)
        if self.sr_ratio is not None and self.sr_ratio > 1:
            self.sr = nn.Conv2d(
                self.dim,
                self.dim,
                kernel_size=self.sr_ratio,
                stride=self.sr_ratio)
            self.norm = nn.LayerNorm(self.dim)

    def _build_bias_table(self) -> None:
        height, width = self.grid_size
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * height - 1) * (2 * width - 1), self.num_heads))
        # Derived from the grid, so it is no part of a checkpoint.
        self.register_buffer(
            'relative_position_index',
            relative_position_index(height, width),
            persistent=False)

    def reset_parameters(self) -> None:
        """Truncated normal (0.02) weights and zero biases, as in Swin."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.has_rel_pos_bias:
            trunc_normal_(self.relative_position_bias_table, std=0.02)

    @staticmethod
    def branch_drop_path(rate: float, grouping: str) -> float:
        """Drop-path rate of the attention branch of a block.

        Args:
            rate (float): The block's rate, which the FFN branch has.
            grouping (str): How the backbone groups tokens: ``'window'``,
                ``'mask_unit'`` or ``'global'``.

        Returns:
            float: The rate of the attention branch.
        """
        return rate

    def relative_bias(self) -> Optional[Tensor]:
        """The bias of the logits: (H, N, N), or None without a table."""
        if not self.has_rel_pos_bias:
            return None
        num_tokens = self.relative_position_index.shape[0]
        bias = self.relative_position_bias_table[
            self.relative_position_index.flatten()]
        # (N*N, H) -> (N, N, H) -> (H, N, N)
        return bias.view(num_tokens, num_tokens, -1).permute(2, 0, 1)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """Let the tokens of each group attend to each other.

        Args:
            x (Tensor): Tokens of shape (G, N, C), G = images * W groups.
            layout (TokenLayout): How the N tokens lie.

        Returns:
            Tensor: (G, N, C_out), or (G, N / s, C_out) with pooled queries.

        Raises:
            ValueError: If ``x`` does not fit the layout, or the layout the
                grid that the bias table was built for.
        """
        self._check_layout(x, layout)
        q, k, v = (self.split_heads(t) for t in self.project(x, layout))
        q, k = self.prepare_queries_and_keys(q, k, layout)
        out = self.attend(q, k, v, x, layout)
        # (G, H, N/s, d) -> (G, N/s, C)
        out = out.transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(out))

    def project(self, x: Tensor, layout: TokenLayout) -> Tuple[Tensor, ...]:
        """The blocks that ``projections`` names, q, k and v first.

        Args:
            x (Tensor): Tokens (G, N, C).
            layout (TokenLayout): How they lie.

        Returns:
            tuple[Tensor]: Each (G, N, C_out); k and v of a reduced map have
            as many tokens as that.
        """
        if self.sr_ratio is None:
            fused = getattr(self, self.projections)(x)
            return fused.split(self.dim_out, dim=-1)
        own = getattr(self, self.projections.replace('kv', ''))(x)
        q, *rest = own.split(self.dim_out, dim=-1)
        reduced = getattr(self, self.reduced_name)(self.reduce_map(x, layout))
        k, v = reduced.split(self.dim_out, dim=-1)
        return (q, k, v, *rest)

    def reduce_map(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """Tokens of the map that keys and values come from.

        Args:
            x (Tensor): Tokens (G, h * w, C).
            layout (TokenLayout): How they lie; maps that the ratio does not
                divide are padded with zeros.

        Returns:
            Tensor: (G, ceil(h / sr) * ceil(w / sr), C).
        """
        if self.sr_ratio == 1:
            return x
        height, width = layout.grid
        # (G, N, C) -> (G, C, h, w)
        x = x.transpose(1, 2).unflatten(2, (height, width))
        x = F.pad(x, (0, -width % self.sr_ratio, 0, -height % self.sr_ratio))
        # (G, C, h/sr, w/sr) -> (G, N/sr^2, C)
        return self.norm(self.sr(x).flatten(2).transpose(1, 2))

    def prepare_queries_and_keys(
            self, q: Tensor, k: Tensor,
            layout: TokenLayout) -> Tuple[Tensor, Tensor]:
        """Normalise both, if asked to, and pool the queries of siblings.

        Args:
            q (Tensor): (G, H, N, d).
            k (Tensor): (G, H, N or M, d).
            layout (TokenLayout): How the tokens lie.

        Returns:
            tuple[Tensor, Tensor]: Queries (G, H, N / s, d) and keys.
        """
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return pool_siblings(q, layout, 'max'), k

    def split_heads(self, x: Tensor) -> Tensor:
        """(G, N, C) to (G, H, N, d)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """The attention itself.

        Args:
            q (Tensor): Queries (G, H, N / s, d), pooled but not yet scaled.
            k (Tensor): Keys (G, H, N, d); of a reduced map fewer.
            v (Tensor): Values (G, H, N, d); of a reduced map fewer.
            x (Tensor): The tokens they come from, (G, N, C).
            layout (TokenLayout): How the N tokens lie.

        Returns:
            Tensor: (G, H, N / s, d).
        """
        raise NotImplementedError

    def forward_map(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """What an attention does to the map of merged groups; the identity.

        Args:
            x (Tensor): Output of :meth:`forward` as one map, (B, H, W, C).
            layout (TokenLayout): The layout the groups had.

        Returns:
            Tensor: (B, H, W, C).
        """
        return x

    def _check_layout(self, x: Tensor, layout: TokenLayout) -> None:
        height, width = layout.grid
        if x.dim() != 3 or x.shape[1] != layout.num_tokens:
            raise ValueError(
                f'{type(self).__name__} got tokens of shape {tuple(x.shape)} '
                f'for a grid of {height}x{width}: expected (groups, '
                f'{layout.num_tokens}, {self.dim})')
        if self.has_rel_pos_bias and self.grid_size != (height, width):
            raise ValueError(
                f'{type(self).__name__} has a relative-position table for '
                f'grid_size={self.grid_size} but got groups of '
                f'{(height, width)}')


NEEDS = {
    'prefix': 'take tokens that lie on no grid',
    'q_pool': 'pool queries',
    'sr_ratio': 'read keys and values off a reduced map',
}
"""What a backbone may need of an attention beyond groups of tokens."""


def _attention_cfg(cfg: Union[str, dict]) -> dict:
    if isinstance(cfg, str):
        return dict(type=cfg)
    if not isinstance(cfg, dict) or 'type' not in cfg:
        raise TypeError('attention must be a name or a dict with "type", '
                        f'but got {cfg!r}')
    return cfg


def attention_class(cfg: Union[str, dict]) -> type:
    """The class of a registered attention, to ask what it is like.

    Args:
        cfg (str | dict): As for :func:`build_attention`.

    Returns:
        type: The class.

    Raises:
        KeyError: If no attention has that name; lists the known ones.
        TypeError: If ``cfg`` is neither a name nor a dict with a type.
    """
    kind = _attention_cfg(cfg)['type']
    return ATTENTIONS.get(kind) if isinstance(kind, str) else kind


def build_attention(cfg: Union[str, dict],
                    needs: Sequence[str] = (),
                    **kwargs) -> BaseAttention:
    """Build a registered attention from a name or a config.

    Args:
        cfg (str | dict): ``'CSaN'`` or ``dict(type='CSaN', ...)``.
        needs (Sequence[str]): What the backbone will ask of it, of
            ``NEEDS``; ``'sr_ratio'`` is understood where that is above 1.
            Defaults to nothing.
        **kwargs: What the backbone decides: ``dim``, ``num_heads``,
            ``grid_size``, ``qkv_bias``.

    Returns:
        BaseAttention: The module.

    Raises:
        KeyError: If no attention has that name; lists the known ones.
        TypeError: If ``cfg`` is neither, or sets what the backbone decides.
        ValueError: If the attention cannot do what the backbone needs.
    """
    cfg = _attention_cfg(cfg)
    clash = sorted(set(cfg) & set(kwargs))
    if clash:
        raise TypeError(f'attention={cfg!r} sets {", ".join(clash)}, which '
                        'the backbone decides')
    if (kwargs.get('sr_ratio') or 1) > 1:
        needs = (*needs, 'sr_ratio')
    cls = attention_class(cfg)
    for need in needs:
        if need in getattr(cls, 'refusals', ()):
            raise ValueError(f'{cls.__name__} cannot {NEEDS[need]}, which '
                             f'this backbone needs: {cls.refusals[need]}')
    return ATTENTIONS.build({**deepcopy(dict(cfg)), **kwargs})
