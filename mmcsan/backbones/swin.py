"""Swin Transformer with an attention of one's choice in every block.

Not a subclass of mmpretrain's: that one computes masks anew in each forward,
lets windows see padding, and has no place for an attention that also acts on
the merged map. Stem, FFN and drop path are mmcv's.
"""
from collections import OrderedDict
from functools import partial
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.transformer import FFN, PatchEmbed
from mmengine.model import BaseModule, ModuleList
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmcsan.arguments import NONE, integer, list_of, one_of, per_stage, sides
from mmcsan.attentions import BaseAttention, attention_class, build_attention
from mmcsan.attentions.graphs import open_sizes
from mmcsan.registry import MODELS
from .attention_config import spread_attention
from .base import (BaseBackbone, hidden_width, kept_plan, pair, per_block,
                   resolve_arch, whole_patches)
from .windows import WindowGrid, pad_map, window_grid

_HEADS = {96: [3, 6, 12, 24], 64: [2, 4, 8, 16], 128: [4, 8, 16, 32]}


def _arch(embed_dims: int, depths: List[int]) -> dict:
    return dict(
        embed_dims=embed_dims, depths=depths, num_heads=_HEADS[embed_dims])


SWIN_ARCHS = {
    'swin-min': _arch(96, [1, 1, 1, 1]),
    'swin-micro': _arch(96, [1, 2, 2, 2]),
    'swin-tiny-slim': _arch(64, [2, 2, 6, 2]),
    'swin-tiny': _arch(96, [2, 2, 6, 2]),
    'swin-small': _arch(96, [2, 2, 18, 2]),
    'swin-base': _arch(128, [2, 2, 18, 2]),
}
"""Embedding width, blocks and heads of each stage, by the papers' names."""

_ARCH = dict(
    embed_dims=integer(),
    depths=list_of(integer()),
    num_heads=list_of(integer()))

DEFAULT_WINDOW = 7
"""Side of the windows of attentions whose cost is quadratic."""

FFN_KINDS = ('mlp', 'attention')
"""What may follow the attention of a block."""

Window = Union[int, Tuple[int, int]]


class PatchMerging(BaseModule):
    """Halve a map: join 2x2 neighbours, normalise, project to 2C.

    Not mmcv's, which unfolds (slower, and in another order of channels than
    the released weights: here (row, column) = (0,0), (1,0), (0,1), (1,1)).

    Args:
        dim (int): Number of channels C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), 2C)."""
        height, width = x.shape[1:3]
        if open_sizes((height, width)) or height % 2 or width % 2:
            x = pad_map(x, height % 2, width % 2)
        x = torch.cat([
            x[:, row::2, col::2]
            for row, col in ((0, 0), (1, 0), (0, 1), (1, 1))
        ], -1)  # (B, H/2, W/2, 4C)
        return self.reduction(self.norm(x))


class SwinBlock(BaseModule):
    """Attention in windows, then an FFN, each with a residual.

    In a stack of pure attention a second attention in the same windows, with
    parameters of its own, stands where the FFN does.

    Args:
        dim (int): Number of channels.
        num_heads (int): Number of heads.
        window (tuple[int, int], optional): Height and width of the windows;
            None for the whole map.
        native (tuple[int, int]): Height and width of the maps of pretraining.
        shifted (bool): Whether windows are shifted by half their size.
        attention (str | dict): The attention.
        mlp_ratio (float): Hidden width of the FFN in terms of ``dim``.
        qkv_bias (bool): Whether q, k and v have a bias.
        drop_rate (float): Dropout rate of both branches.
        attn_drop_rate (float): Dropout rate of the attention weights.
        drop_path (float): Stochastic depth rate of the FFN branch; that of
            the attention branch is the attention's own function of it.
        ffn (str): One of ``FFN_KINDS``.
    """

    def __init__(self, dim: int, num_heads: int,
                 window: Optional[Tuple[int, int]], native: Tuple[int, int],
                 shifted: bool, attention: Union[str, dict], mlp_ratio: float,
                 qkv_bias: bool, drop_rate: float, attn_drop_rate: float,
                 drop_path: float, ffn: str) -> None:
        super().__init__()
        self.window = window
        self.shift = tuple(
            w // 2 for w in window) if shifted and window else (0, 0)
        self.norm1 = nn.LayerNorm(dim)
        build = partial(
            build_attention,
            attention,
            dim=dim,
            num_heads=num_heads,
            grid_size=window or native,
            rel_pos_bias=window is not None,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop_rate,
            proj_drop=drop_rate)
        self.attn = build()
        self.drop_path = DropPath(
            self.attn.branch_drop_path(drop_path, 'window'))
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = build() if ffn == 'attention' else FFN(
            dim,
            hidden_width(dim, mlp_ratio),
            act_cfg=dict(type='GELU'),
            ffn_drop=drop_rate,
            dropout_layer=dict(type='DropPath', drop_prob=drop_path))

    def forward(self, x: Tensor, grid: WindowGrid) -> Tensor:
        """(B, H, W, C) to the same shape.

        Args:
            x (Tensor): The map.
            grid (WindowGrid): The windows of maps of its size.
        """
        x = self._attend(self.attn, self.norm1, x, grid)
        if isinstance(self.ffn, BaseAttention):
            return self._attend(self.ffn, self.norm2, x, grid)
        return self.ffn(self.norm2(x), identity=x)

    def _attend(self, attention: BaseAttention, norm: nn.Module, x: Tensor,
                grid: WindowGrid) -> Tensor:
        out = attention(grid.split(norm(x)), grid.layout)
        out = attention.forward_map(grid.merge(out), grid.layout)
        return x + self.drop_path(grid.restore(out))


class SwinStage(BaseModule):
    """Patch merging (but in the first stage), then blocks; odd ones shift.

    Args:
        dim (int): Number of channels after merging.
        blocks (list[dict]): Arguments of each :class:`SwinBlock`.
        downsample (bool): Whether to merge patches first.
        with_cp (bool): Whether to recompute blocks in backward.
    """

    max_cached = 8
    """Map sizes whose windows are kept; multi-scale training sees many."""

    def __init__(self, dim: int, blocks: List[dict], downsample: bool,
                 with_cp: bool) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.downsample = PatchMerging(dim // 2) if downsample else None
        self.blocks = ModuleList(
            SwinBlock(dim=dim, shifted=index % 2 == 1, **block)
            for index, block in enumerate(blocks))
        self._grids = OrderedDict()

    def grid(self, size: Tuple[int, int], block: SwinBlock,
             device: torch.device) -> WindowGrid:
        """The windows of a block on maps of one size, made once.

        Args:
            size (tuple[int, int]): H and W of the map, in tokens.
            block (SwinBlock): A block of this stage.
            device (torch.device): Where masks are to live.

        Returns:
            WindowGrid: The windows.
        """
        plan = (block.window, block.shift, device, block.attn.shift_regions)
        return kept_plan(self._grids, size, plan, 2 * self.max_cached,
                         lambda: window_grid(size, *plan))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), 2C); the first stage
        keeps the shape."""
        if self.downsample is not None:
            x = self.downsample(x)
        size = tuple(x.shape[1:3])
        for block in self.blocks:
            grid = self.grid(size, block, x.device)
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(block, x, grid, use_reentrant=False)
            else:
                x = block(x, grid)
        return x


@MODELS.register_module()
class SwinTransformer(BaseBackbone):
    """Swin Transformer (https://arxiv.org/abs/2103.14030) with any attention.

    Takes images of any size. Maps are padded to whole windows; no real token
    sees padding.

    Args:
        arch (str | dict): ``'swin-min'``, ``'swin-micro'``,
            ``'swin-tiny-slim'``, ``'swin-tiny'``, ``'swin-small'``,
            ``'swin-base'`` (``'swin-'`` may be left out), or a dict with
            ``embed_dims`` (int), ``depths`` and ``num_heads`` (an int for
            each stage). Defaults to ``'swin-tiny'``.
        attention (str | dict | list): A registered attention by name or
            config; or a list with one for each stage, which may be a list
            with one for each block. Defaults to ``'CSaN'``.
        img_size (int | tuple[int, int], optional): Height and width of the
            classifier's images. If given, a stage whose map at that size is
            no larger than the window has a window as large as the map, as
            in released classifiers. Encodings of whole maps are made for
            that size. Defaults to None: windows as given, encodings for 224.
        patch_size (int): Stride of the stem. Defaults to 4.
        in_channels (int): Channels of the images. Defaults to 3.
        window_size (int | list, optional): Side of the windows; or a list
            with a side, a (height, width) or None for each stage, each of
            which may be a list with one for each block. None is 7, but the
            whole map where the attention's cost is linear. Defaults to None.
        mlp_ratio (float): Hidden width of the FFNs. Defaults to 4.
        ffn (str): ``'mlp'``; or ``'attention'``, which replaces each FFN by
            one more attention, for a stack of pure attention.
            Defaults to ``'mlp'``.
        qkv_bias (bool): Whether q, k, v have a bias. Defaults to True.
        drop_rate (float): Dropout rate. Defaults to 0.
        attn_drop_rate (float): Dropout rate of attention weights.
            Defaults to 0.
        drop_path_rate (float): Stochastic depth rate of the last block, from
            0 in the first. Defaults to 0.1.
        out_indices (Sequence[int], optional): Stages to return, ascending;
            those behind the last one are not built. Defaults to all.
        frozen_stages (int): -1 freezes nothing, 0 the stem, k the stem and
            the first k stages with their output norms. Defaults to -1.
        norm_eval (bool): Whether batch norms stay in evaluation mode.
            Defaults to False.
        norm_cfg (dict, optional): Norm of each returned map; None returns
            the stages' raw maps. Defaults to ``dict(type='LN')``.
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
        >>> from mmcsan.backbones import SwinTransformer
        >>> model = SwinTransformer('swin-tiny', attention='CSaN')
        >>> maps = model(torch.rand(1, 3, 97, 131))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 25, 33), (1, 192, 13, 17), (1, 384, 7, 9), (1, 768, 4, 5)]
    """

    arguments = dict(
        img_size=NONE | sides(),
        window_size=per_stage(NONE | sides(), pairs=True),
        ffn=one_of(*FFN_KINDS))

    def __init__(self,
                 arch: Union[str, dict] = 'swin-tiny',
                 attention: Union[str, dict, list] = 'CSaN',
                 img_size: Optional[Window] = None,
                 patch_size: int = 4,
                 in_channels: int = 3,
                 window_size: Union[int, Sequence, None] = None,
                 mlp_ratio: float = 4.,
                 ffn: str = 'mlp',
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 out_indices: Optional[Sequence[int]] = None,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 norm_cfg: Optional[dict] = dict(type='LN'),
                 with_cp: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        arch = resolve_arch(arch, SWIN_ARCHS, _ARCH, 'swin-')
        depths = list(arch['depths'])
        if out_indices is None:
            out_indices = range(len(depths))
        super().__init__(out_indices, len(depths), frozen_stages, norm_eval,
                         with_cp, init_cfg)
        self.depths = depths
        self.stage_channels = [
            arch['embed_dims'] * 2**i for i in range(len(depths))
        ]
        self.patch_embed = PatchEmbed(
            in_channels=in_channels,
            embed_dims=arch['embed_dims'],
            kernel_size=patch_size,
            stride=patch_size,
            norm_cfg=dict(type='LN'))
        self.drop_after_pos = nn.Dropout(drop_rate)
        self._build_stages(
            arch['num_heads'],
            spread_attention(attention, depths),
            per_block(window_size, depths, 'window_size', pairs=True),
            None if img_size is None else pair(img_size),
            patch_size,
            drop_path_rate,
            mlp_ratio=mlp_ratio,
            ffn=ffn,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate)
        self.build_output_norms(norm_cfg)
        self.reset_linear_layers()
        self.freeze()

    def _build_stages(self, heads: List[int], attentions: List[list],
                      windows: List[list], img_size: Optional[Tuple[int, int]],
                      patch_size: int, drop_path_rate: float,
                      **block) -> None:
        # In float32, as the released code computes them.
        rates = torch.linspace(
            0, drop_path_rate, sum(self.depths), device='cpu').tolist()
        native = [-(-s // patch_size) for s in img_size or (224, 224)]
        self.stages = ModuleList()
        # Stages that no map is taken from would have unused parameters.
        for index in range(self.out_indices[-1] + 1):
            blocks = [
                dict(
                    num_heads=heads[index],
                    window=_block_window(windows[index][i],
                                         attentions[index][i],
                                         img_size and native),
                    native=tuple(native),
                    attention=attentions[index][i],
                    drop_path=rates.pop(0),
                    **block) for i in range(self.depths[index])
            ]
            self.stages.append(
                SwinStage(self.stage_channels[index], blocks, index > 0,
                          self.with_cp))
            native = [-(-s // 2) for s in native]

    def stem_modules(self) -> List[nn.Module]:
        """See :meth:`BaseBackbone.stem_modules`."""
        return [self.patch_embed, self.drop_after_pos]

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to maps.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple[Tensor]: For each of ``out_indices`` a contiguous map
            (B, C_i, H_i, W_i); stage 0 has stride ``patch_size``, each next
            one twice the stride; sizes are rounded up.
        """
        x, size = self.patch_embed(whole_patches(self.patch_embed, x))
        # (B, H*W, C) -> (B, H, W, C)
        x = self.drop_after_pos(x).unflatten(1, size)
        outs = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in self.out_indices:
                norm = self.output_norm(index)
                out = x if norm is None else norm(x)
                outs.append(out.permute(0, 3, 1, 2).contiguous())
        return tuple(outs)


def _block_window(window: Optional[Window], attention: Union[str, dict],
                  native: Optional[List[int]]) -> Optional[Tuple[int, int]]:
    """Height and width of the windows of a block; None for the whole map.

    Args:
        window (int | tuple[int, int], optional): What the user wants.
        attention (str | dict): The block's attention.
        native (list[int], optional): The map of pretraining, if windows are
            to be no larger.
    """
    if window is None:
        if attention_class(attention).linear:
            return None
        window = DEFAULT_WINDOW
    window = pair(window)
    if native and min(native) <= min(window):
        return (min(native), ) * 2
    return window
