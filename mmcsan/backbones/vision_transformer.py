"""Vision Transformer with an attention of one's choice in every block.

Not a subclass of mmpretrain's: that one has one size of positions to a
forward, no windows, no registers and no place for an attention that knows the
grid. Stem, FFN, layer scale and drop path are mmcv's.
"""
from collections import OrderedDict
from dataclasses import dataclass
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

from mmcsan.arguments import (FLAG, NONE, integer, list_of, number, one_of,
                              sides)
from mmcsan.attentions import TokenLayout, build_attention
from mmcsan.attentions.positions import resize_positions
from mmcsan.registry import MODELS
from .attention_config import spread_attention
from .base import (BaseBackbone, hidden_width, kept_plan, pair, resolve_arch,
                   whole_patches)
from .windows import WindowGrid, window_grid


def _arch(embed_dims: int, depth: int, num_heads: int) -> dict:
    return dict(embed_dims=embed_dims, depth=depth, num_heads=num_heads)


VIT_ARCHS = {
    'vit-tiny': _arch(192, 12, 3),
    'vit-small': _arch(384, 12, 6),
    'vit-base-slim': _arch(512, 12, 8),
    'vit-base': _arch(768, 12, 12),
    'vit-large': _arch(1024, 24, 16),
    'vit-huge': _arch(1280, 32, 16),
}
"""Width, blocks and heads, by the papers' names."""

_ARCH = dict(embed_dims=integer(), depth=integer(), num_heads=integer())

OUT_TYPES = ('featmap', 'cls_token', 'avg_featmap', 'raw')
"""What a backbone may return of each block, as in mmpretrain."""

EPS = 1e-6
"""Of every LayerNorm inside of the blocks."""


@dataclass(frozen=True)
class TokenGroups:
    """How the tokens of an image are grouped for attention.

    Without windows all tokens are one group. With windows, each sees the
    tokens of the prefix beside its own; they come out once a window and are
    averaged. So a map of one window fares as without windows.

    Args:
        size (tuple[int, int]): H and W of the map, in patches.
        layout (TokenLayout): What the attention needs to know.
        windows (WindowGrid, optional): The windows. Defaults to None.
    """

    size: Tuple[int, int]
    layout: TokenLayout
    windows: Optional[WindowGrid] = None

    def split(self, x: Tensor) -> Tensor:
        """Tokens (B, P + H*W, C) to groups (B * W, P + N, C)."""
        if self.windows is None:
            return x
        prefix = x[:, :self.layout.prefix]
        # (B, H*W, C) -> (B, H, W, C) -> (B*W, N, C)
        patches = x[:, self.layout.prefix:].unflatten(1, self.size)
        groups = self.windows.split(patches)
        if not self.layout.prefix:
            return groups
        copies = groups.shape[0] // x.shape[0]
        # (B, P, C) -> (B*W, P, C)
        prefix = prefix.repeat_interleave(copies, dim=0)
        return torch.cat([prefix, groups], dim=1)

    def merge(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """Groups to the prefix (B, P, C) and the map (B, Hp, Wp, C), with
        padding if there are windows."""
        prefix = x[:, :self.layout.prefix]
        patches = x[:, self.layout.prefix:]
        if self.windows is None:
            return prefix, patches.unflatten(1, self.size)
        # (B*W, N, C) -> (B, Hp, Wp, C)
        patches = self.windows.merge(patches)
        # (B*W, P, C) -> (B, W, P, C) -> (B, P, C)
        prefix = prefix.unflatten(0, (patches.shape[0], -1)).mean(dim=1)
        return prefix, patches

    def join(self, prefix: Tensor, patches: Tensor) -> Tensor:
        """Prefix and map to tokens (B, P + H*W, C)."""
        if self.windows is not None:
            patches = self.windows.restore(patches)
        patches = patches.flatten(1, 2)
        return torch.cat([prefix, patches], dim=1) if prefix.shape[1] else (
            patches)


def token_groups(size: Tuple[int, int], prefix: int,
                 window: Optional[Tuple[int, int]],
                 device: torch.device) -> TokenGroups:
    """Plan the groups of maps of one size.

    Args:
        size (tuple[int, int]): H and W of the map, in patches.
        prefix (int): Tokens in front of the patches.
        window (tuple[int, int], optional): Height and width of the windows;
            None makes all tokens one group.
        device (torch.device): Where masks are to live.

    Returns:
        TokenGroups: The plan.
    """
    if window is None:
        return TokenGroups(size, TokenLayout(size, prefix=prefix))
    windows = window_grid(size, window, (0, 0), device)
    valid = windows.layout.valid
    if valid is not None:
        # (W, N) -> (W, P + N); every window has a real token
        front = valid.new_ones(valid.shape[0], prefix)
        valid = torch.cat([front, valid], dim=1)
    layout = TokenLayout(
        window,
        valid=valid,
        valid_map=windows.layout.valid_map,
        prefix=prefix)
    return TokenGroups(size, layout, windows)


class ViTBlock(BaseModule):
    """Attention, then an FFN, each with a residual and a layer scale.

    Args:
        dim (int): Number of channels.
        num_heads (int): Number of heads.
        grid_size (tuple[int, int]): Height and width of the groups that the
            classifier has.
        attention (str | dict): The attention.
        prefix (int): Tokens that lie on no grid.
        mlp_ratio (float): Hidden width of the FFN in terms of ``dim``.
        qkv_bias (bool): Whether q, k and v have a bias.
        qk_norm (bool): Whether q and k are normalised.
        init_values (float, optional): Initial layer scale; None for none.
        drop_rate (float): Dropout rate of both branches.
        attn_drop_rate (float): Dropout rate of the attention weights.
        drop_path (float): Stochastic depth rate of the FFN branch; that of
            the attention branch is the attention's own function of it.
    """

    def __init__(self, dim: int, num_heads: int, grid_size: Tuple[int, int],
                 attention: Union[str, dict], prefix: int, mlp_ratio: float,
                 qkv_bias: bool, qk_norm: bool, init_values: Optional[float],
                 drop_rate: float, attn_drop_rate: float,
                 drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = build_attention(
            attention,
            needs=('prefix', ) if prefix else (),
            dim=dim,
            num_heads=num_heads,
            grid_size=grid_size,
            rel_pos_bias=False,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            attn_drop=attn_drop_rate,
            proj_drop=drop_rate)
        self.ls1 = nn.Identity() if init_values is None else LayerScale(
            dim, scale=init_values)
        self.drop_path = DropPath(
            self.attn.branch_drop_path(drop_path, 'global'))
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.ffn = FFN(
            dim,
            hidden_width(dim, mlp_ratio),
            act_cfg=dict(type='GELU'),
            ffn_drop=drop_rate,
            dropout_layer=dict(type='DropPath', drop_prob=drop_path),
            layer_scale_init_value=init_values or 0.)

    def forward(self, x: Tensor, groups: TokenGroups) -> Tensor:
        """(B, P + H*W, C) to the same shape.

        Args:
            x (Tensor): The tokens.
            groups (TokenGroups): How they are grouped.
        """
        out = self.attn(groups.split(self.norm1(x)), groups.layout)
        prefix, patches = groups.merge(out)
        patches = self.attn.forward_map(patches, groups.layout)
        out = groups.join(prefix, patches)
        x = x + self.drop_path(self.ls1(out))
        return self.ffn(self.norm2(x), identity=x)


@MODELS.register_module()
class VisionTransformer(BaseBackbone):
    """ViT (https://arxiv.org/abs/2010.11929) with any attention.

    Takes images of any size: they are padded to whole patches, and learned
    positions are resized in 2-D, bicubic, to the map at hand. For large maps
    blocks can attend within windows, but for some that see all
    (https://arxiv.org/abs/2203.16527); no real token sees their padding.

    Each returned map has a norm of its own, as each level of a decoder has
    weights of its own; that of the last block takes a classifier's final norm.
    A classifier that normalises the pooled token has that norm in its head.

    Args:
        arch (str | dict): ``'vit-tiny'``, ``'vit-small'``,
            ``'vit-base-slim'``, ``'vit-base'``, ``'vit-large'``,
            ``'vit-huge'`` (``'vit-'`` may be left out), or a dict with
            ``embed_dims``, ``depth`` and ``num_heads``, all int.
            Defaults to ``'vit-base'``.
        attention (str | dict | list): A registered attention by name or
            config; or a list with one for each block. Defaults to ``'CSaN'``.
        img_size (int | tuple[int, int]): Height and width of the images that
            the learned positions are of. Defaults to 224.
        patch_size (int): Side of the patches. Defaults to 16.
        in_channels (int): Channels of the images. Defaults to 3.
        class_token (bool): Whether a class token precedes the patches.
            Defaults to True.
        reg_tokens (int): Register tokens behind it. Defaults to 0.
        no_embed_class (bool): Whether the tokens in front of the patches have
            no learned positions. Defaults to False.
        mlp_ratio (float): Hidden width of the FFNs. Defaults to 4.
        qkv_bias (bool): Whether q, k, v have a bias. Defaults to True.
        qk_norm (bool): Whether q and k are normalised. Defaults to False.
        init_values (float, optional): Initial layer scale. Defaults to None:
            no layer scale.
        window_size (int | tuple[int, int], optional): Height and width of the
            windows, in patches. Defaults to None: every block sees all.
        global_blocks (Sequence[int], optional): Blocks that see all despite
            ``window_size``. Defaults to the last of each quarter.
        drop_rate (float): Dropout rate. Defaults to 0.
        attn_drop_rate (float): Dropout rate of attention weights.
            Defaults to 0.
        drop_path_rate (float): Stochastic depth rate of the last block, from
            0 in the first. Defaults to 0.1.
        out_indices (Sequence[int], optional): Blocks to return, ascending;
            those behind the last one are not built. Defaults to the last.
        out_type (str): ``'featmap'``, maps; ``'cls_token'`` and
            ``'avg_featmap'``, a vector (B, C), for classifiers; ``'raw'``,
            all tokens (B, N, C). Defaults to ``'featmap'``.
        frozen_stages (int): -1 freezes nothing, 0 the stem (with learned
            positions and tokens), k the stem and the first k blocks with
            their output norms. Defaults to -1.
        norm_eval (bool): Whether batch norms stay in evaluation mode.
            Defaults to False.
        norm_cfg (dict, optional): Norm of what each block returns; None
            returns it raw. Defaults to ``dict(type='LN', eps=1e-6)``.
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
        >>> from mmcsan.backbones import VisionTransformer
        >>> model = VisionTransformer('vit-tiny', out_indices=(5, 11))
        >>> maps = model(torch.rand(1, 3, 97, 131))
        >>> [tuple(m.shape) for m in maps]
        [(1, 192, 7, 9), (1, 192, 7, 9)]
    """

    max_cached = 8
    """Map sizes whose windows are kept; multi-scale training sees many."""

    arguments = dict(
        class_token=FLAG,
        reg_tokens=integer(0),
        no_embed_class=FLAG,
        qk_norm=FLAG,
        init_values=NONE | number(above=0),
        window_size=NONE | sides(),
        global_blocks=NONE | list_of(integer(0), least=0),
        out_type=one_of(*OUT_TYPES))

    def __init__(self,
                 arch: Union[str, dict] = 'vit-base',
                 attention: Union[str, dict, list] = 'CSaN',
                 img_size: Union[int, Tuple[int, int]] = 224,
                 patch_size: int = 16,
                 in_channels: int = 3,
                 class_token: bool = True,
                 reg_tokens: int = 0,
                 no_embed_class: bool = False,
                 mlp_ratio: float = 4.,
                 qkv_bias: bool = True,
                 qk_norm: bool = False,
                 init_values: Optional[float] = None,
                 window_size: Union[int, Tuple[int, int], None] = None,
                 global_blocks: Optional[Sequence[int]] = None,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 out_indices: Optional[Sequence[int]] = None,
                 out_type: str = 'featmap',
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 norm_cfg: Optional[dict] = dict(type='LN', eps=EPS),
                 with_cp: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        arch = resolve_arch(arch, VIT_ARCHS, _ARCH, 'vit-')
        depth = arch['depth']
        if out_type == 'cls_token' and not class_token:
            raise ValueError("out_type='cls_token' needs class_token=True")
        super().__init__((depth - 1, ) if out_indices is None else out_indices,
                         depth, frozen_stages, norm_eval, with_cp, init_cfg)
        self.depths = [depth]
        self.embed_dims = arch['embed_dims']
        self.stage_channels = [self.embed_dims] * depth
        self.out_type = out_type
        self.class_token = class_token
        self.windows = _block_windows(window_size, global_blocks, depth)
        self._groups = OrderedDict()
        self._build_stem(
            [-(-s // patch_size) for s in pair(img_size)], patch_size,
            in_channels, reg_tokens, no_embed_class)
        self.drop_after_pos = nn.Dropout(drop_rate)
        self._build_blocks(
            attention,
            drop_path_rate,
            num_heads=arch['num_heads'],
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            init_values=init_values,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate)
        self.build_output_norms(norm_cfg)
        self.reset_linear_layers()
        self.freeze()

    def _build_stem(self, grid: List[int], patch_size: int, in_channels: int,
                    reg_tokens: int, no_embed_class: bool) -> None:
        dim = self.embed_dims
        self.patch_embed = PatchEmbed(
            in_channels=in_channels,
            embed_dims=dim,
            kernel_size=patch_size,
            stride=patch_size)
        self.cls_token = self.reg_token = None
        if self.class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
            nn.init.normal_(self.cls_token, std=1e-6)
        if reg_tokens:
            self.reg_token = nn.Parameter(torch.zeros(1, reg_tokens, dim))
            nn.init.normal_(self.reg_token, std=1e-6)
        self.num_prefix = int(self.class_token) + reg_tokens
        self.pos_prefix = 0 if no_embed_class else self.num_prefix
        self.pos_grid = tuple(grid)
        self.pos_embed = nn.Parameter(
            torch.zeros(1, self.pos_prefix + grid[0] * grid[1], dim))
        trunc_normal_(self.pos_embed, std=0.02)

    def _build_blocks(self, attention, drop_path_rate: float,
                      **block) -> None:
        attentions = spread_attention(attention, [1] * self.num_stages)
        # In float32, as the released code computes them.
        rates = torch.linspace(
            0, drop_path_rate, self.num_stages, device='cpu').tolist()
        # Blocks that no map is taken from would have unused parameters.
        self.blocks = ModuleList(
            ViTBlock(
                dim=self.embed_dims,
                grid_size=self.windows[index] or self.pos_grid,
                attention=attentions[index][0],
                prefix=self.num_prefix,
                drop_path=rates[index],
                **block) for index in range(self.out_indices[-1] + 1))

    @property
    def position_grids(self) -> dict:
        """Height and width of the tables of positions, by their names."""
        return dict(pos_embed=self.pos_grid)

    @property
    def left_out(self) -> Tuple[str, ...]:
        """Weights of a classifier that this one was told to do without."""
        return () if self.class_token else ('cls_token', )

    @property
    def stages(self) -> ModuleList:
        """The blocks: each is a stage of its own here."""
        return self.blocks

    def stem_modules(self) -> List[nn.Module]:
        """See :meth:`BaseBackbone.stem_modules`."""
        return [self.patch_embed, self.drop_after_pos]

    def freeze(self) -> None:
        """See :meth:`BaseBackbone.freeze`; tokens and positions too."""
        super().freeze()
        if self.frozen_stages >= 0:
            for param in (self.pos_embed, self.cls_token, self.reg_token):
                if param is not None:
                    param.requires_grad = False

    def get_layer_depth(self,
                        param_name: str,
                        prefix: str = '') -> Tuple[int, int]:
        """See :meth:`BaseBackbone.get_layer_depth`."""
        num_layers = self.num_stages + 2
        parts = param_name[len(prefix):].split('.')
        outside = not param_name.startswith(prefix)
        if outside or parts[0].startswith('norm'):
            return num_layers - 1, num_layers
        if parts[0] == 'blocks':
            return int(parts[1]) + 1, num_layers
        return 0, num_layers

    def groups(self, size: Tuple[int, int], window: Optional[Tuple[int, int]],
               device: torch.device) -> TokenGroups:
        """The groups of maps of one size, made once.

        Args:
            size (tuple[int, int]): H and W of the map, in patches.
            window (tuple[int, int], optional): Height and width of the
                windows of a block.
            device (torch.device): Where masks are to live.

        Returns:
            TokenGroups: The groups.
        """
        return kept_plan(
            self._groups, size, (window, device), 2 * self.max_cached,
            lambda: token_groups(size, self.num_prefix, window, device))

    def embed(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """Images to tokens with positions.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple[Tensor, tuple[int, int]]: Tokens (B, P + h*w, C), and h, w.
        """
        x = whole_patches(self.patch_embed, x)
        x, size = self.patch_embed(x)  # (B, h*w, C)
        split = self.pos_prefix
        # (1, h0*w0, C) -> (1, h0, w0, C) -> (1, h*w, C)
        grid = self.pos_embed[:, split:].unflatten(1, self.pos_grid)
        x = x + resize_positions(grid, size).flatten(1, 2)
        prefix = [t for t in (self.cls_token, self.reg_token) if t is not None]
        if prefix:
            prefix = torch.cat(prefix, dim=1)  # (1, P, C)
            if split:
                prefix = prefix + self.pos_embed[:, :split]
            prefix = prefix.expand(x.shape[0], -1, -1).to(x.dtype)
            x = torch.cat([prefix, x], dim=1)
        return self.drop_after_pos(x), size

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to maps.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple[Tensor]: For each of ``out_indices`` a contiguous map
            (B, C, H', W') of stride ``patch_size``, sizes rounded up; or
            what ``out_type`` says.
        """
        x, size = self.embed(x)
        outs = []
        for index, block in enumerate(self.blocks):
            groups = self.groups(size, self.windows[index], x.device)
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(block, x, groups, use_reentrant=False)
            else:
                x = block(x, groups)
            if index in self.out_indices:
                norm = self.output_norm(index)
                outs.append(
                    self._format(x if norm is None else norm(x), size))
        return tuple(outs)

    def _format(self, x: Tensor, size: Tuple[int, int]) -> Tensor:
        if self.out_type == 'raw':
            return x
        if self.out_type == 'cls_token':
            return x[:, 0]
        patches = x[:, self.num_prefix:]
        if self.out_type == 'avg_featmap':
            return patches.mean(dim=1)
        # (B, h*w, C) -> (B, C, h*w) -> (B, C, h, w)
        return patches.transpose(1, 2).unflatten(2, size).contiguous()


def _block_windows(window_size, global_blocks: Optional[Sequence[int]],
                   depth: int) -> List[Optional[Tuple[int, int]]]:
    """Height and width of the windows of each block; None sees all."""
    if window_size is None:
        if global_blocks is not None:
            raise ValueError(f'global_blocks={global_blocks} needs a '
                             'window_size; without one every block sees all')
        return [None] * depth
    if global_blocks is None:
        global_blocks = [-(-depth * part // 4) - 1 for part in (1, 2, 3, 4)]
    if max(global_blocks, default=0) >= depth:
        raise ValueError(f'global_blocks={tuple(global_blocks)} must lie '
                         f'within the {depth} blocks 0 to {depth - 1}')
    window = pair(window_size)
    return [
        None if index in set(global_blocks) else window
        for index in range(depth)
    ]
