"""Hiera with an attention of one's choice in every block.

The original keeps tokens in an order in which mask units and the siblings of
a pooled query are strided views, fixed for one image size. An order is all
that is: here blocks work on maps (B, H, W, C) of any size and cut the same
units out of them. Stem, FFN, layer scale and drop path are mmcv's.
"""
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.scale import LayerScale
from mmcv.cnn.bricks.transformer import FFN, PatchEmbed
from mmengine.model import BaseModule, ModuleList
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmcsan.arguments import FLAG, NONE, integer, list_of, number, sides
from mmcsan.attentions import TokenLayout, build_attention, pool_siblings
from mmcsan.attentions.graphs import ceil_div, open_sizes
from mmcsan.attentions.positions import resize_positions
from mmcsan.registry import MODELS
from .attention_config import spread_attention
from .base import BaseBackbone, hidden_width, kept_plan, pair, resolve_arch
from .windows import crop_map, pad_map

Pair = Tuple[int, int]


def _arch(embed_dims: int, depths: List[int], num_heads: int) -> dict:
    return dict(embed_dims=embed_dims, depths=depths, num_heads=num_heads)


HIERA_ARCHS = {
    'hiera-tiny': _arch(96, [1, 2, 7, 2], 1),
    'hiera-tiny-plus': _arch(96, [1, 2, 7, 2], 3),
    'hiera-small': _arch(96, [1, 2, 11, 2], 1),
    'hiera-base-slim': _arch(72, [2, 3, 16, 3], 1),
    'hiera-base': _arch(96, [2, 3, 16, 3], 1),
    'hiera-base-plus': _arch(112, [2, 3, 16, 3], 2),
    'hiera-large': _arch(144, [2, 6, 36, 4], 2),
    'hiera-huge': _arch(256, [2, 6, 36, 4], 4),
}
"""Width, blocks of each stage and heads of the first, by the papers' names.
"""

_ARCH = dict(
    embed_dims=integer(), depths=list_of(integer()), num_heads=integer())

EPS = 1e-6
"""Of every LayerNorm."""


@dataclass(frozen=True)
class UnitGrid:
    """The mask units of maps of one size; made by :func:`unit_grid`.

    Args:
        size (tuple[int, int]): H and W of the map, in tokens.
        padded (tuple[int, int]): H and W after padding to whole units.
        stride (tuple[int, int]): Rows and columns of siblings that one
            pooled query stands for; (1, 1) pools nothing.
        layout (TokenLayout): What the attention needs to know; its grid is
            that of a unit.
    """

    size: Pair
    padded: Pair
    stride: Pair
    layout: TokenLayout

    def split(self, x: Tensor) -> Tensor:
        """Map (B, H, W, C) to units (B * W, N, C), siblings N / s apart."""
        if self.layout.valid is not None:
            rows, cols = (p - s for p, s in zip(self.padded, self.size))
            x = pad_map(x, rows, cols)
        (height, width), (s, t) = self.layout.grid, self.stride
        # (B, H, W, C) -> (B, H/h, h/s, s, W/w, w/t, t, C)
        #   -> (B, H/h, W/w, s, t, h/s, w/t, C) -> (B*W, N, C)
        x = x.unflatten(2, (-1, width // t, t))
        x = x.unflatten(1, (-1, height // s, s))
        x = x.permute(0, 1, 4, 3, 6, 2, 5, 7)
        return x.reshape(-1, height * width, x.shape[-1])

    def merge(self, x: Tensor) -> Tensor:
        """Units with pooled queries (B * W, N / s, C) to the pooled map
        (B, Hp / s, Wp / t, C), with padding."""
        height, width = self._pooled(self.layout.grid)
        rows, cols = self._pooled(self.padded)
        # (B*W, N/s, C) -> (B, H/h, W/w, h/s, w/t, C)
        x = x.view(-1, rows // height, cols // width, height, width,
                   x.shape[-1])
        return x.transpose(2, 3).reshape(-1, rows, cols, x.shape[-1])

    def crop(self, x: Tensor) -> Tensor:
        """Cut the padding off a pooled map: (B, H/s, W/t, C), rounded up."""
        if self.layout.valid is None:
            return x
        return crop_map(x, self._pooled(self.size))

    def _pooled(self, size: Pair) -> Pair:
        return tuple(map(ceil_div, size, self.stride))


def unit_grid(size: Pair, window: Optional[Pair], stride: Pair,
              device: torch.device) -> UnitGrid:
    """Plan the mask units of maps of one size.

    Args:
        size (tuple[int, int]): H and W of the map, in tokens.
        window (tuple[int, int], optional): Height and width of a unit,
            multiples of the stride; None makes the whole map one.
        stride (tuple[int, int]): Rows and columns of siblings.
        device (torch.device): Where masks are to live.

    Returns:
        UnitGrid: The plan, with its masks.
    """
    size = tuple(size)
    steps = stride if window is None else window
    padded = tuple(ceil_div(n, step) * step for n, step in zip(size, steps))
    window = padded if window is None else tuple(window)
    siblings = stride[0] * stride[1]
    order = None
    if siblings > 1:
        tokens = torch.arange(window[0] * window[1], device=device)
        # (N,) -> (s, t, h/s, w/t) -> (h/s, s, w/t, t): places row by row
        tokens = tokens.view(*stride, window[0] // stride[0], -1)
        order = tokens.permute(2, 0, 3, 1).flatten()
    layout = TokenLayout(window, q_pool=siblings, order=order)
    # Steps of one place leave nothing to be padded, whatever the size.
    may_pad = open_sizes(size) and any(step != 1 for step in steps)
    if may_pad or padded != size:
        rows, cols = (
            torch.arange(p, device=device) < s for p, s in zip(padded, size))
        real = (rows[:, None] & cols)[None, ..., None]  # (1, Hp, Wp, 1)
        whole = UnitGrid(padded, padded, tuple(stride), layout)
        layout = replace(
            layout,
            valid=whole.split(real)[..., 0],  # (W, N)
            valid_map=real[0, ::stride[0], ::stride[1]])
    return UnitGrid(size, padded, tuple(stride), layout)


class HieraBlock(BaseModule):
    """Attention in mask units, then an FFN, each with a residual.

    Where the width grows, the residual of the attention is projected from the
    normalised map and, where queries are pooled, max-pooled as they are.

    Args:
        dim (int): Number of channels that come in.
        dim_out (int): Number of channels that go out.
        num_heads (int): Number of heads.
        window (tuple[int, int], optional): Height and width of the mask
            units; None for the whole map.
        native (tuple[int, int]): Height and width of the maps of pretraining.
        stride (tuple[int, int]): Rows and columns of siblings whose queries
            are pooled.
        attention (str | dict): The attention.
        use_expand_proj (bool): Whether the residual is projected to a greater
            width; otherwise it is the maximum beside the mean of the map.
        mlp_ratio (float): Hidden width of the FFN in terms of ``dim_out``.
        qkv_bias (bool): Whether q, k and v have a bias.
        init_values (float, optional): Initial layer scale; None for none.
        drop_rate (float): Dropout rate of both branches.
        attn_drop_rate (float): Dropout rate of the attention weights.
        drop_path (float): Stochastic depth rate of the FFN branch; that of
            the attention branch is the attention's own function of it.
    """

    def __init__(self, dim: int, dim_out: int, num_heads: int,
                 window: Optional[Pair], native: Pair, stride: Pair,
                 attention: Union[str, dict], use_expand_proj: bool,
                 mlp_ratio: float, qkv_bias: bool,
                 init_values: Optional[float], drop_rate: float,
                 attn_drop_rate: float, drop_path: float) -> None:
        super().__init__()
        self.window = window
        self.stride = stride
        self.expands = dim != dim_out
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.proj = nn.Linear(
            dim, dim_out) if self.expands and use_expand_proj else None
        self.attn = build_attention(
            attention,
            needs=('q_pool', ) if stride != (1, 1) else (),
            dim=dim,
            num_heads=num_heads,
            grid_size=window or native,
            rel_pos_bias=False,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop_rate,
            proj_drop=drop_rate,
            dim_out=dim_out)
        self.ls1 = nn.Identity() if init_values is None else LayerScale(
            dim_out, scale=init_values)
        self.drop_path = DropPath(
            self.attn.branch_drop_path(drop_path, 'mask_unit'))
        self.norm2 = nn.LayerNorm(dim_out, eps=EPS)
        self.ffn = FFN(
            dim_out,
            hidden_width(dim_out, mlp_ratio),
            act_cfg=dict(type='GELU'),
            ffn_drop=drop_rate,
            dropout_layer=dict(type='DropPath', drop_prob=drop_path),
            layer_scale_init_value=init_values or 0.)

    def forward(self, x: Tensor, grid: UnitGrid) -> Tensor:
        """(B, H, W, C) to (B, H / s, W / t, C_out), sizes rounded up.

        Args:
            x (Tensor): The map.
            grid (UnitGrid): The mask units of maps of its size.
        """
        units = grid.split(self.norm1(x))
        out = grid.merge(self.attn(units, grid.layout))
        out = grid.crop(self.attn.forward_map(out, grid.layout))
        if self.expands:
            x = grid.crop(grid.merge(self._expand(x, units, grid)))
        x = x + self.drop_path(self.ls1(out))
        return self.ffn(self.norm2(x), identity=x)

    def _expand(self, x: Tensor, units: Tensor, grid: UnitGrid) -> Tensor:
        """The wider residual, in units: (B * W, N / s, C_out)."""
        if self.proj is not None:
            return pool_siblings(self.proj(units), grid.layout, 'max')
        units = grid.split(x)
        return torch.cat(
            [pool_siblings(units, grid.layout, how) for how in ('max', 'mean')
             ], dim=-1)


class HieraStage(BaseModule):
    """Blocks of one width; the first may widen and pool.

    Args:
        blocks (list[dict]): Arguments of each :class:`HieraBlock`.
        with_cp (bool): Whether to recompute blocks in backward.
    """

    max_cached = 8
    """Map sizes whose units are kept; multi-scale training sees many."""

    def __init__(self, blocks: List[dict], with_cp: bool) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.blocks = ModuleList(HieraBlock(**block) for block in blocks)
        self._grids = OrderedDict()

    def grid(self, size: Pair, block: HieraBlock,
             device: torch.device) -> UnitGrid:
        """The mask units of a block on maps of one size, made once.

        Args:
            size (tuple[int, int]): H and W of the map, in tokens.
            block (HieraBlock): A block of this stage.
            device (torch.device): Where masks are to live.

        Returns:
            UnitGrid: The units.
        """
        plan = (block.window, block.stride, device)
        return kept_plan(self._grids, size, plan, 3 * self.max_cached,
                         lambda: unit_grid(size, *plan))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H / s, W / t, C_out), sizes rounded up."""
        for block in self.blocks:
            grid = self.grid(tuple(x.shape[1:3]), block, x.device)
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(block, x, grid, use_reentrant=False)
            else:
                x = block(x, grid)
        return x


@MODELS.register_module()
class Hiera(BaseBackbone):
    """Hiera (https://arxiv.org/abs/2306.00989) with any attention.

    Takes images of any size. Maps are padded to whole mask units; no real
    token sees padding, nor does a pooled query. Learned positions are resized
    in 2-D, bicubic, to the map at hand.

    The first block of a stage works on the map of the stage before, within
    that stage's mask units, and pools its queries. A released classifier
    normalises the pooled token: that norm is its head's, and the norms of the
    returned maps are new.

    Args:
        arch (str | dict): ``'hiera-tiny'``, ``'hiera-tiny-plus'``,
            ``'hiera-small'``, ``'hiera-base-slim'``, ``'hiera-base'``,
            ``'hiera-base-plus'``, ``'hiera-large'``, ``'hiera-huge'``
            (``'hiera-'`` may be left out), or a dict with ``embed_dims``
            (int), ``depths`` (an int for each stage) and ``num_heads`` (of
            the first stage; width and heads double from stage to stage).
            Defaults to ``'hiera-base'``.
        attention (str | dict | list): A registered attention by name or
            config; or a list with one for each stage, which may be a list
            with one for each block. Defaults to ``'CSaN'``.
        img_size (int | tuple[int, int]): Height and width of the images that
            the learned positions are of. Defaults to 224.
        patch_kernel (int | tuple[int, int]): Kernel of the stem.
            Defaults to 7.
        patch_stride (int | tuple[int, int]): Its stride. Defaults to 4.
        patch_padding (int | tuple[int, int]): Its padding. Defaults to 3.
        in_channels (int): Channels of the images. Defaults to 3.
        q_pool (int): Stages, from the second on, that begin with pooled
            queries. Defaults to 3.
        q_stride (int | tuple[int, int]): Rows and columns that a pooled query
            stands for. Defaults to 2.
        window_size (Sequence): Side or (height, width) of the mask units of
            each stage, in tokens; None for the whole map.
            Defaults to (8, 4, None, None); for large images (8, 4, 14, 7)
            costs less, with some ``global_blocks``.
        global_blocks (Sequence[int]): Numbers of blocks, counted over all
            stages, that see the whole map despite ``window_size``.
            Defaults to none.
        use_expand_proj (bool): Whether the residual is projected to a greater
            width; otherwise it is the maximum beside the mean of the map.
            Defaults to True.
        abs_win_pos_embed (bool): Whether learned positions have a part within
            mask units of the first stage, repeated over the map, and one over
            the map (https://arxiv.org/abs/2311.05613). Defaults to False.
        abs_pos_size (int | tuple[int, int]): Height and width of the part
            over the map. Defaults to 14.
        mlp_ratio (float): Hidden width of the FFNs. Defaults to 4.
        qkv_bias (bool): Whether q, k, v have a bias. Defaults to True.
        init_values (float, optional): Initial layer scale. Defaults to None:
            no layer scale.
        drop_rate (float): Dropout rate. Defaults to 0.
        attn_drop_rate (float): Dropout rate of attention weights.
            Defaults to 0.
        drop_path_rate (float): Stochastic depth rate of the last block, from
            0 in the first. Defaults to 0.1.
        out_indices (Sequence[int], optional): Stages to return, ascending;
            those behind the last one are not built. Defaults to all.
        frozen_stages (int): -1 freezes nothing, 0 the stem with the learned
            positions, k the stem and the first k stages with their output
            norms. Defaults to -1.
        norm_eval (bool): Whether batch norms stay in evaluation mode.
            Defaults to False.
        norm_cfg (dict, optional): Norm of each returned map; None returns
            the stages' raw maps. Defaults to ``dict(type='LN', eps=1e-6)``.
        with_cp (bool): Whether to recompute blocks in backward to save
            memory. Defaults to False.
        init_cfg (dict, optional): Initialization config, such as
            ``dict(type='mmcsan.PretrainedClassifier', checkpoint=...)``.

    Raises:
        KeyError: If arch or attention is unknown; lists the known ones.
        TypeError: If there is no such argument.
        ValueError: If an argument is not what it may be, or arguments
            contradict each other.

    Examples:
        >>> import torch
        >>> from mmcsan.backbones import Hiera
        >>> model = Hiera('hiera-tiny', attention='CSaN')
        >>> maps = model(torch.rand(1, 3, 97, 131))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 25, 33), (1, 192, 13, 17), (1, 384, 7, 9), (1, 768, 4, 5)]
    """

    arguments = dict(
        patch_kernel=sides(),
        patch_stride=sides(),
        patch_padding=sides(least=0),
        q_pool=integer(0),
        q_stride=sides(),
        window_size=list_of(NONE | sides()),
        global_blocks=list_of(integer(0), least=0),
        use_expand_proj=FLAG,
        abs_win_pos_embed=FLAG,
        abs_pos_size=sides(),
        init_values=NONE | number(above=0))

    def __init__(self,
                 arch: Union[str, dict] = 'hiera-base',
                 attention: Union[str, dict, list] = 'CSaN',
                 img_size: Union[int, Pair] = 224,
                 patch_kernel: Union[int, Pair] = 7,
                 patch_stride: Union[int, Pair] = 4,
                 patch_padding: Union[int, Pair] = 3,
                 in_channels: int = 3,
                 q_pool: int = 3,
                 q_stride: Union[int, Pair] = 2,
                 window_size: Sequence[Union[int, Pair, None]] = (8, 4, None,
                                                                  None),
                 global_blocks: Sequence[int] = (),
                 use_expand_proj: bool = True,
                 abs_win_pos_embed: bool = False,
                 abs_pos_size: Union[int, Pair] = 14,
                 mlp_ratio: float = 4.,
                 qkv_bias: bool = True,
                 init_values: Optional[float] = None,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 out_indices: Optional[Sequence[int]] = None,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 norm_cfg: Optional[dict] = dict(type='LN', eps=EPS),
                 with_cp: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        arch = resolve_arch(arch, HIERA_ARCHS, _ARCH, 'hiera-')
        depths = list(arch['depths'])
        _check_numbers(depths, q_pool, global_blocks)
        if out_indices is None:
            out_indices = range(len(depths))
        super().__init__(out_indices, len(depths), frozen_stages, norm_eval,
                         with_cp, init_cfg)
        self.depths = depths
        self.stage_channels = [
            arch['embed_dims'] * 2**i for i in range(len(depths))
        ]
        q_stride = pair(q_stride)
        self.strides = [
            q_stride if 0 < i <= q_pool else (1, 1) for i in range(len(depths))
        ]
        self.windows = _stage_windows(window_size, self.strides)
        stem = dict(
            kernel_size=pair(patch_kernel),
            stride=pair(patch_stride),
            padding=pair(patch_padding))
        self.patch_embed = PatchEmbed(
            in_channels=in_channels, embed_dims=arch['embed_dims'], **stem)
        self.pos_grid = _stem_size(pair(img_size), **stem)
        self._build_positions(abs_win_pos_embed, pair(abs_pos_size))
        self.drop_after_pos = nn.Dropout(drop_rate)
        self._build_stages(
            arch['num_heads'],
            spread_attention(attention, depths),
            set(global_blocks),
            drop_path_rate,
            use_expand_proj=use_expand_proj,
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            init_values=init_values,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate)
        self.build_output_norms(norm_cfg)
        self.reset_linear_layers()
        self.freeze()

    def _build_positions(self, abs_win: bool, abs_size: Pair) -> None:
        dim = self.stage_channels[0]
        self.pos_embed_win = None
        if abs_win:
            if self.windows[0] is None:
                raise ValueError('abs_win_pos_embed=True needs mask units in '
                                 'the first stage: set window_size[0]')
            self.pos_embed = nn.Parameter(torch.zeros(1, dim, *abs_size))
            self.pos_embed_win = nn.Parameter(
                torch.zeros(1, dim, *self.windows[0]))
            trunc_normal_(self.pos_embed_win, std=0.02)
        else:
            height, width = self.pos_grid
            self.pos_embed = nn.Parameter(torch.zeros(1, height * width, dim))
        trunc_normal_(self.pos_embed, std=0.02)

    def _build_stages(self, num_heads: int, attentions: List[list],
                      global_blocks: set, drop_path_rate: float,
                      **block) -> None:
        # In float32, as the released code computes them.
        rates = torch.linspace(
            0, drop_path_rate, sum(self.depths), device='cpu').tolist()
        native = self.pos_grid
        number = 0
        self.stages = ModuleList()
        # Stages that no map is taken from would have unused parameters.
        for index in range(self.out_indices[-1] + 1):
            blocks = []
            for i in range(self.depths[index]):
                # The first block sees the map that the stage before left.
                before = index - 1 if index and not i else index
                window = self.windows[before]
                stride = self.strides[index] if not i else (1, 1)
                blocks.append(
                    dict(
                        dim=self.stage_channels[before],
                        dim_out=self.stage_channels[index],
                        num_heads=num_heads * 2**index,
                        window=None if number in global_blocks else window,
                        native=native,
                        stride=stride,
                        attention=attentions[index][i],
                        drop_path=rates[number],
                        **block))
                native = tuple(-(-n // s) for n, s in zip(native, stride))
                number += 1
            self.stages.append(HieraStage(blocks, self.with_cp))

    @property
    def position_grids(self) -> dict:
        """Height and width of the tables of positions, by their names."""
        if self.pos_embed_win is None:
            return dict(pos_embed=self.pos_grid)
        return dict(
            pos_embed=tuple(self.pos_embed.shape[2:]),
            pos_embed_win=tuple(self.pos_embed_win.shape[2:]))

    def stem_modules(self) -> List[nn.Module]:
        """See :meth:`BaseBackbone.stem_modules`."""
        return [self.patch_embed, self.drop_after_pos]

    def freeze(self) -> None:
        """See :meth:`BaseBackbone.freeze`; learned positions too."""
        super().freeze()
        if self.frozen_stages >= 0:
            for param in (self.pos_embed, self.pos_embed_win):
                if param is not None:
                    param.requires_grad = False

    def positions(self, size: Pair) -> Tensor:
        """The learned positions of a map.

        Args:
            size (tuple[int, int]): H and W of the map, in tokens.

        Returns:
            Tensor: (1, H, W, C).
        """
        if self.pos_embed_win is None:
            # (1, h*w, C) -> (1, h, w, C)
            table = self.pos_embed.unflatten(1, self.pos_grid)
            return resize_positions(table, size)
        # (1, C, h, w) -> (1, h, w, C)
        table = self.pos_embed.permute(0, 2, 3, 1)
        window = self.pos_embed_win.permute(0, 2, 3, 1)
        times = map(ceil_div, size, window.shape[1:3])
        tiled = window.repeat(1, *times, 1)[:, :size[0], :size[1]]
        return resize_positions(table, size, antialias=True) + tiled

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to maps.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple[Tensor]: For each of ``out_indices`` a contiguous map
            (B, C_i, H_i, W_i); stage 0 has the stride of the stem, each that
            pools ``q_stride`` times the stride; sizes are rounded up.
        """
        x, size = self.patch_embed(x)
        # (B, H*W, C) -> (B, H, W, C)
        x = x.unflatten(1, size) + self.positions(size)
        x = self.drop_after_pos(x)
        outs = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in self.out_indices:
                norm = self.output_norm(index)
                out = x if norm is None else norm(x)
                outs.append(out.permute(0, 3, 1, 2).contiguous())
        return tuple(outs)


def _check_numbers(depths: List[int], q_pool: int,
                   global_blocks: Sequence[int]) -> None:
    if q_pool >= len(depths):
        raise ValueError(f'q_pool={q_pool} must lie within 0 to '
                         f'{len(depths) - 1}: the first of {len(depths)} '
                         'stages does not pool')
    if max(global_blocks, default=0) >= sum(depths):
        raise ValueError(f'global_blocks={tuple(global_blocks)} must lie '
                         f'within the {sum(depths)} blocks 0 to '
                         f'{sum(depths) - 1}')


def _stem_size(size: Pair, kernel_size: Pair, stride: Pair,
               padding: Pair) -> Pair:
    """Height and width of the stem's map."""
    if any(n + 2 * p < k for n, k, p in zip(size, kernel_size, padding)):
        raise ValueError(f'img_size={size} with patch_padding={padding} is '
                         f'less than patch_kernel={kernel_size}')
    return tuple((n + 2 * p - k) // s + 1
                 for n, k, s, p in zip(size, kernel_size, stride, padding))


def _stage_windows(window_size, strides: List[Pair]) -> List[Optional[Pair]]:
    """Height and width of the mask units of each stage; None for the map."""
    if len(window_size) != len(strides):
        raise ValueError(f'window_size={window_size!r} must have one entry '
                         f'for each of {len(strides)} stages')
    windows = [None if w is None else pair(w) for w in window_size]
    for index, (window, stride) in enumerate(zip(windows, strides[1:])):
        if window and any(w % s for w, s in zip(window, stride)):
            raise ValueError(
                f'window_size[{index}]={window} is no multiple of q_stride='
                f'{stride}, by which the next stage pools within it')
    return windows
