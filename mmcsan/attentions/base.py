"""What every attention shares: its interface, and the relative bias table.

An attention sees groups of tokens that lie on a grid and knows nothing of how
a backbone made the groups (shifted windows, one global group, ...).
"""
from copy import deepcopy
from dataclasses import dataclass
from typing import Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor

from mmcsan.registry import ATTENTIONS


@dataclass(frozen=True)
class TokenLayout:
    """How the tokens of each group lie, and which of them may be seen.

    The groups of a batch are ordered image-major: group ``b * W + w`` is
    window ``w`` of image ``b``.

    Args:
        grid (tuple[int, int]): Height and width of a group, in tokens.
        mask (Tensor, optional): Additive mask of shape (W, N, N), 0 where a
            query may see a key and a negative number where not.
        valid (Tensor, optional): Boolean (W, N), False for padding. None
            means that every token is real.
        valid_map (Tensor, optional): Boolean (H, W, 1), the same for the
            merged map, used by what runs after the groups are merged.
    """

    grid: Tuple[int, int]
    mask: Optional[Tensor] = None
    valid: Optional[Tensor] = None
    valid_map: Optional[Tensor] = None


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
    passes ``dim``, ``num_heads``, ``grid_size`` and ``qkv_bias``; everything
    else comes from the user's config.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads H; divides ``dim``.
        grid_size (tuple[int, int], optional): Height and width of the groups,
            in tokens. If given, a learned relative-position bias is added to
            the logits (Swin). Defaults to None.
        qkv_bias (bool): Whether q, k and v have a bias. Defaults to True.
        attn_drop (float): Dropout rate of the attention weights.
            Defaults to 0.
        proj_drop (float): Dropout rate of the output. Defaults to 0.
        init_cfg (dict, optional): Initialization config. Defaults to None.

    Raises:
        ValueError: If ``num_heads`` does not divide ``dim``.
    """

    def __init__(self,
                 dim: int,
                 num_heads: int,
                 grid_size: Optional[Tuple[int, int]] = None,
                 qkv_bias: bool = True,
                 attn_drop: float = 0.,
                 proj_drop: float = 0.,
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        if num_heads < 1 or dim % num_heads:
            raise ValueError(
                f'num_heads={num_heads} does not divide dim={dim}')
        for name, rate in (('attn_drop', attn_drop), ('proj_drop', proj_drop)):
            if not 0 <= rate < 1:
                raise ValueError(f'{name}={rate} is not in [0, 1)')
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.grid_size = None if grid_size is None else tuple(grid_size)
        self.attn_drop = attn_drop

        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if self.grid_size is not None:
            height, width = self.grid_size
            self.relative_position_bias_table = nn.Parameter(
                torch.zeros((2 * height - 1) * (2 * width - 1), num_heads))
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
        if self.grid_size is not None:
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
        if self.grid_size is None:
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
            Tensor: (G, N, C).

        Raises:
            ValueError: If ``x`` does not fit the layout, or the layout the
                grid that the bias table was built for.
        """
        self._check_layout(x, layout)
        groups, num_tokens, dim = x.shape
        # (G, N, 3C) -> (G, N, 3, H, d) -> 3 x (G, H, N, d)
        q, k, v = self.qkv(x).view(groups, num_tokens, 3, self.num_heads,
                                   self.head_dim).permute(2, 0, 3, 1, 4)
        out = self.attend(q, k, v, x, layout)
        # (G, H, N, d) -> (G, N, C)
        out = out.transpose(1, 2).reshape(groups, num_tokens, dim)
        return self.proj_drop(self.proj(out))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """The attention itself.

        Args:
            q (Tensor): Queries (G, H, N, d), not yet scaled.
            k (Tensor): Keys (G, H, N, d).
            v (Tensor): Values (G, H, N, d).
            x (Tensor): The tokens they come from, (G, N, C).
            layout (TokenLayout): How the N tokens lie.

        Returns:
            Tensor: (G, H, N, d).
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
        if x.dim() != 3 or x.shape[1] != height * width:
            raise ValueError(
                f'{type(self).__name__} got tokens of shape {tuple(x.shape)} '
                f'for a grid of {height}x{width}: expected (groups, '
                f'{height * width}, {self.dim})')
        if self.grid_size is not None and self.grid_size != (height, width):
            raise ValueError(
                f'{type(self).__name__} has a relative-position table for '
                f'grid_size={self.grid_size} but got groups of '
                f'{(height, width)}')


def build_attention(cfg: Union[str, dict], **kwargs) -> BaseAttention:
    """Build a registered attention from a name or a config.

    Args:
        cfg (str | dict): ``'CSaN'`` or ``dict(type='CSaN', ...)``.
        **kwargs: What the backbone decides: ``dim``, ``num_heads``,
            ``grid_size``, ``qkv_bias``.

    Returns:
        BaseAttention: The module.

    Raises:
        KeyError: If no attention has that name; lists the known ones.
        TypeError: If ``cfg`` is neither, or sets what the backbone decides.
    """
    if isinstance(cfg, str):
        cfg = dict(type=cfg)
    if not isinstance(cfg, dict) or 'type' not in cfg:
        raise TypeError('attention must be a name or a dict with "type", '
                        f'but got {cfg!r}')
    clash = sorted(set(cfg) & set(kwargs))
    if clash:
        raise TypeError(f'attention={cfg!r} sets {", ".join(clash)}, which '
                        'the backbone decides')
    return ATTENTIONS.build({**deepcopy(dict(cfg)), **kwargs})
