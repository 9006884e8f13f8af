"""Pyramid Vision Transformer (v1) with an attention of one's choice.

Not mmdet's: that one resizes positions bilinearly, cannot read released
classifiers and has one attention. Stem, FFN and drop path are mmcv's.
"""
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.transformer import FFN, PatchEmbed
from mmengine.model import BaseModule, ModuleList
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmcsan.arguments import NONE, integer, list_of, number, per_stage
from mmcsan.attentions import TokenLayout, attention_class, build_attention
from mmcsan.attentions.positions import resize_positions
from mmcsan.registry import MODELS
from .attention_config import spread_attention
from .base import (BaseBackbone, hidden_width, pair, per_block, resolve_arch,
                   whole_patches)


def _arch(depths: List[int]) -> dict:
    return dict(
        embed_dims=[64, 128, 320, 512],
        depths=depths,
        num_heads=[1, 2, 5, 8],
        mlp_ratios=[8, 8, 4, 4])


PVT_ARCHS = {
    'pvt-tiny': _arch([2, 2, 2, 2]),
    'pvt-small': _arch([3, 4, 6, 3]),
    'pvt-medium': _arch([3, 4, 18, 3]),
    'pvt-large': _arch([3, 8, 27, 3]),
}
"""Width, blocks, heads and hidden width of the FFNs of each stage."""

_ARCH = dict(
    embed_dims=list_of(integer()),
    depths=list_of(integer()),
    num_heads=list_of(integer()),
    mlp_ratios=list_of(number(above=0)))


class PositionedPatchEmbed(PatchEmbed):
    """Patches of a map, and where they lie.

    Args:
        in_channels (int): Channels of the map.
        embed_dims (int): Channels of a patch.
        patch_size (int): Side of a patch; maps are padded to whole ones.
        grid_size (tuple[int, int]): Height and width, in patches, that the
            positions are made for. They are resized in 2-D for others.
        drop_rate (float): Dropout rate of the result.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int,
                 grid_size: Tuple[int, int], drop_rate: float) -> None:
        super().__init__(
            in_channels=in_channels,
            embed_dims=embed_dims,
            kernel_size=patch_size,
            stride=patch_size,
            norm_cfg=dict(type='LN'))
        self.grid_size = tuple(grid_size)
        self.pos_embed = nn.Parameter(
            torch.zeros(1, self.grid_size[0] * self.grid_size[1], embed_dims))
        trunc_normal_(self.pos_embed, std=0.02)
        self.drop = nn.Dropout(drop_rate)

    @property
    def position_grids(self) -> dict:
        """On which grid a table of positions lies."""
        return dict(pos_embed=self.grid_size)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """Map to patches.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple: Patches (B, h * w, C'), and (h, w), rounded up.
        """
        x, size = super().forward(whole_patches(self, x))
        # (1, N, C) -> (1, h, w, C) -> (1, h', w', C) -> (1, N', C)
        table = self.pos_embed.unflatten(1, self.grid_size)
        positions = resize_positions(table, size).flatten(1, 2)
        return self.drop(x + positions.to(x.dtype)), size


class PVTBlock(BaseModule):
    """Attention, then an FFN, each with a residual.

    Args:
        dim (int): Number of channels.
        num_heads (int): Number of heads.
        grid_size (tuple[int, int]): Height and width of the maps of
            pretraining, in tokens.
        attention (str | dict): The attention.
        sr_ratio (int): By how much the map is reduced for keys and values.
        mlp_ratio (float): Hidden width of the FFN in terms of ``dim``.
        qkv_bias (bool): Whether q, k and v have a bias.
        drop_rate (float): Dropout rate of both branches.
        drop_path (float): Stochastic depth rate of the FFN branch; that of
            the attention branch is the attention's own function of it.
    """

    def __init__(self, dim: int, num_heads: int, grid_size: Tuple[int, int],
                 attention: Union[str, dict], sr_ratio: int, mlp_ratio: float,
                 qkv_bias: bool, drop_rate: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        # Where nothing is reduced, one that projects all together fits too.
        together = sr_ratio == 1 and 'sr_ratio' in attention_class(
            attention).refusals
        self.attn = build_attention(
            attention,
            dim=dim,
            num_heads=num_heads,
            grid_size=tuple(-(-side // sr_ratio) for side in grid_size),
            rel_pos_bias=False,
            sr_ratio=None if together else sr_ratio,
            qkv_bias=qkv_bias,
            proj_drop=drop_rate)
        self.drop_path = DropPath(
            self.attn.branch_drop_path(drop_path, 'global'))
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.ffn = FFN(
            dim,
            hidden_width(dim, mlp_ratio),
            act_cfg=dict(type='GELU'),
            ffn_drop=drop_rate,
            dropout_layer=dict(type='DropPath', drop_prob=drop_path))

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """(B, N, C) to the same shape.

        Args:
            x (Tensor): Tokens of a map.
            layout (TokenLayout): How they lie.
        """
        out = self.attn(self.norm1(x), layout)
        # (B, N, C) -> (B, H, W, C) and back
        out = self.attn.forward_map(out.unflatten(1, layout.grid), layout)
        x = x + self.drop_path(out.flatten(1, 2))
        return self.ffn(self.norm2(x), identity=x)


class PVTStage(BaseModule):
    """Patches of the map in front (but in the first stage), then blocks.

    Args:
        downsample (PositionedPatchEmbed, optional): What makes the patches.
        blocks (list[dict]): Arguments of each :class:`PVTBlock`.
        with_cp (bool): Whether to recompute blocks in backward.
    """

    def __init__(self, downsample: Optional[PositionedPatchEmbed],
                 blocks: List[dict], with_cp: bool) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.downsample = downsample
        self.blocks = ModuleList(PVTBlock(**block) for block in blocks)

    def forward(self, x: Tensor, size: Tuple[int, int]) -> Tensor:
        """Tokens in, map out.

        Args:
            x (Tensor): What the stem made, (B, N, C), in the first stage; in
                others the map in front, (B, C, H, W).
            size (tuple[int, int]): Height and width of the tokens of the
                first stage; not read in others.

        Returns:
            Tensor: (B, C', H', W'), contiguous.
        """
        if self.downsample is not None:
            x, size = self.downsample(x)
        layout = TokenLayout(tuple(size))
        for block in self.blocks:
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(block, x, layout, use_reentrant=False)
            else:
                x = block(x, layout)
        # (B, N, C) -> (B, C, H, W)
        return x.transpose(1, 2).unflatten(2, layout.grid).contiguous()


@MODELS.register_module()
class PyramidVisionTransformer(BaseBackbone):
    """PVT v1 (https://arxiv.org/abs/2102.12122) with any attention.

    Takes images of any size: patches are padded to whole ones, and positions
    are resized in 2-D, bicubic, where the map is not that of pretraining.
    There is no class token, and by default no norm of the returned maps.

    Args:
        arch (str | dict): ``'pvt-tiny'``, ``'pvt-small'``, ``'pvt-medium'``,
            ``'pvt-large'`` (``'pvt-'`` may be left out), or a dict with
            ``embed_dims``, ``depths``, ``num_heads`` and ``mlp_ratios``, one
            for each stage. Defaults to ``'pvt-tiny'``.
        attention (str | dict | list): A registered attention by name or
            config; or a list with one for each stage, which may be a list
            with one for each block. Defaults to ``'Pola'``.
        sr_ratios (int | Sequence[int], optional): By how much maps are
            reduced for keys and values where the attention's cost is
            quadratic; or one for each stage, which may be a list with one for
            each block. Defaults to None: to the size of the last stage's map,
            which of four stages is (8, 4, 2, 1).
        linear_sr_ratios (int | Sequence[int]): The same where the
            attention's cost is linear. Defaults to 1: not at all.
        img_size (int | tuple[int, int]): Height and width of the images of
            pretraining, that positions are made for. Defaults to 224.
        patch_size (int): Stride of the stem. Defaults to 4.
        in_channels (int): Channels of the images. Defaults to 3.
        qkv_bias (bool): Whether q, k, v have a bias. Defaults to True.
        drop_rate (float): Dropout rate. Defaults to 0.
        drop_path_rate (float): Stochastic depth rate of the last block, from
            0 in the first. Defaults to 0.1.
        out_indices (Sequence[int], optional): Stages to return, ascending;
            those behind the last one are not built. Defaults to all.
        frozen_stages (int): -1 freezes nothing, 0 the stem with its
            positions, k the stem and the first k stages with their output
            norms. Defaults to -1.
        norm_eval (bool): Whether batch norms stay in evaluation mode.
            Defaults to False.
        norm_cfg (dict, optional): Norm of each returned map. Defaults to
            None: the stages' raw maps.
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
        >>> from mmcsan.backbones import PyramidVisionTransformer
        >>> model = PyramidVisionTransformer('pvt-tiny', attention='Pola')
        >>> maps = model(torch.rand(1, 3, 97, 131))
        >>> [tuple(m.shape) for m in maps]
        [(1, 64, 25, 33), (1, 128, 13, 17), (1, 320, 7, 9), (1, 512, 4, 5)]
    """

    arguments = dict(
        sr_ratios=NONE | per_stage(integer()),
        linear_sr_ratios=per_stage(integer()))

    def __init__(self,
                 arch: Union[str, dict] = 'pvt-tiny',
                 attention: Union[str, dict, Sequence] = 'Pola',
                 sr_ratios: Union[int, Sequence[int], None] = None,
                 linear_sr_ratios: Union[int, Sequence[int]] = 1,
                 img_size: Union[int, Tuple[int, int]] = 224,
                 patch_size: int = 4,
                 in_channels: int = 3,
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 out_indices: Optional[Sequence[int]] = None,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 norm_cfg: Optional[dict] = None,
                 with_cp: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        arch = resolve_arch(arch, PVT_ARCHS, _ARCH, 'pvt-')
        depths = list(arch['depths'])
        if out_indices is None:
            out_indices = range(len(depths))
        super().__init__(out_indices, len(depths), frozen_stages, norm_eval,
                         with_cp, init_cfg)
        self.depths = depths
        self.stage_channels = list(arch['embed_dims'])
        attentions = spread_attention(attention, depths)
        if sr_ratios is None:
            sr_ratios = [2**index for index in reversed(range(len(depths)))]
        ratios = _ratios(attentions, sr_ratios, linear_sr_ratios)
        grids = _grids(img_size, patch_size, len(depths))
        self.patch_embed = PositionedPatchEmbed(
            in_channels, self.stage_channels[0], patch_size, grids[0],
            drop_rate)
        self._build_stages(
            arch, attentions, ratios, grids, drop_path_rate,
            qkv_bias=qkv_bias, drop_rate=drop_rate)
        self.build_output_norms(norm_cfg)
        self.reset_linear_layers()
        self.freeze()

    def _build_stages(self, arch: dict, attentions: List[list],
                      ratios: List[list], grids: List[tuple],
                      drop_path_rate: float, **common) -> None:
        # In float32, as the released code computes them.
        rates = torch.linspace(
            0, drop_path_rate, sum(self.depths), device='cpu').tolist()
        self.stages = ModuleList()
        # Stages that no map is taken from would have unused parameters.
        for index in range(self.out_indices[-1] + 1):
            dim = self.stage_channels[index]
            blocks = [
                dict(
                    dim=dim,
                    num_heads=arch['num_heads'][index],
                    mlp_ratio=arch['mlp_ratios'][index],
                    grid_size=grids[index],
                    attention=attentions[index][i],
                    sr_ratio=ratios[index][i],
                    drop_path=rates.pop(0),
                    **common) for i in range(self.depths[index])
            ]
            downsample = None if index == 0 else PositionedPatchEmbed(
                self.stage_channels[index - 1], dim, 2, grids[index],
                common['drop_rate'])
            self.stages.append(PVTStage(downsample, blocks, self.with_cp))

    def stem_modules(self) -> List[nn.Module]:
        """See :meth:`BaseBackbone.stem_modules`."""
        return [self.patch_embed]

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to maps.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple[Tensor]: For each of ``out_indices`` a contiguous map
            (B, C_i, H_i, W_i); stage 0 has stride ``patch_size``, each next
            one twice the stride; sizes are rounded up.
        """
        x, size = self.patch_embed(x)
        outs = []
        for index, stage in enumerate(self.stages):
            x = stage(x, size)
            if index in self.out_indices:
                norm = self.output_norm(index)
                outs.append(x if norm is None else norm(
                    # (B, C, H, W) -> (B, H, W, C) and back
                    x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous())
        return tuple(outs)


def _ratios(attentions: List[list], sr_ratios: Union[int, Sequence[int]],
            linear_sr_ratios: Union[int, Sequence[int]]) -> List[list]:
    """How much each block reduces the map that keys and values come from."""
    depths = [len(stage) for stage in attentions]
    spread = {
        False: per_block(sr_ratios, depths, 'sr_ratios'),
        True: per_block(linear_sr_ratios, depths, 'linear_sr_ratios')
    }
    return [[
        spread[attention_class(attention).linear][index][i]
        for i, attention in enumerate(stage)
    ] for index, stage in enumerate(attentions)]


def _grids(img_size: Union[int, Tuple[int, int]], patch_size: int,
           num_stages: int) -> List[Tuple[int, int]]:
    """Height and width of the maps of pretraining, in tokens."""
    strides = [patch_size * 2**index for index in range(num_stages)]
    return [
        tuple(-(-side // stride) for side in pair(img_size))
        for stride in strides
    ]
