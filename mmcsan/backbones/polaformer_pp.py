"""PolaFormer++: convolutional stem, linear attention first, softmax later."""
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmcsan.arguments import (NONE, NORM, built, integer, list_of, number,
                              per_stage)
from mmcsan.attentions import TokenLayout, build_attention
from mmcsan.registry import MODELS
from .attention_config import spread_attention
from .base import BaseBackbone, hidden_width, per_block, resolve_arch


def _arch(embed_dims: List[int], depths: List[int], num_heads: List[int],
          layer_scale: Sequence[float] = (1, 1, 1, 1)) -> dict:
    return dict(
        embed_dims=embed_dims,
        depths=depths,
        num_heads=num_heads,
        layer_scale=list(layer_scale))


POLAFORMER_PP_ARCHS = {
    'b0': _arch([32, 64, 128, 384], [2, 2, 2, 2], [1, 2, 4, 12]),
    'b1': _arch([32, 64, 192, 384], [2, 2, 4, 2], [1, 2, 6, 12]),
    'b2': _arch([64, 128, 256, 512], [2, 2, 6, 2], [1, 2, 4, 8]),
    'b3': _arch([64, 128, 320, 512], [3, 5, 9, 3], [1, 2, 5, 8]),
    'b4': _arch([96, 192, 384, 512], [4, 6, 12, 6], [1, 2, 6, 8],
                [1, 1, 1e-6, 1e-6]),
    'b5': _arch([96, 192, 448, 640], [4, 7, 19, 8], [1, 2, 7, 10], [1e-6] * 4),
}
"""Width, blocks, heads and first layer scale of each stage."""

_ARCH = dict(
    embed_dims=list_of(integer()),
    depths=list_of(integer()),
    num_heads=list_of(integer()),
    layer_scale=list_of(NONE | number(above=0)))

_ATTENTIONS = ('PolaPP', 'PolaPP', 'PolaPPSoftmax', 'PolaPPSoftmax')


def _conv_on_map(conv: nn.Module, x: Tensor) -> Tensor:
    """Run a convolution on a map with channels last, (B, H, W, C)."""
    return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ConvNorm(BaseModule):
    """3x3 convolution with bias, batch norm and, if asked for, GELU.

    Not mmcv's ConvModule, which warns of the bias that released weights have.

    Args:
        in_channels (int): Channels of the map.
        out_channels (int): Channels of the result.
        stride (int): Stride.
        norm_cfg (dict): The norm.
        act (bool): Whether GELU follows.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int,
                 norm_cfg: dict, act: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, 3, stride=stride, padding=1)
        self.norm = built('conv_norm_cfg', norm_cfg, build_norm_layer,
                          out_channels)[1]
        self.act = nn.GELU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        return self.act(self.norm(self.conv(x)))


class ConvFFN(BaseModule):
    """FFN with a 3x3 depthwise convolution of the hidden map, added to it.

    mmcv's FFN takes tokens that lie nowhere.

    Args:
        dim (int): Number of channels C.
        hidden (int): Number of hidden channels.
        drop (float): Dropout rate of the hidden map and of the output.
    """

    def __init__(self, dim: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to the same shape."""
        x = self.drop(self.act(self.fc1(x)))
        x = x + _conv_on_map(self.dwconv, x)
        return self.drop(self.fc2(x))


class PolaFormerPPBlock(BaseModule):
    """Position convolution, attention, FFN; each with a residual.

    Args:
        dim (int): Number of channels C.
        num_heads (int): Number of heads.
        grid_size (tuple[int, int]): Height and width of the maps of
            pretraining, for attentions that learn an encoding of them.
        attention (str | dict): The attention.
        mlp_ratio (float): Hidden width of the FFN in terms of ``dim``.
        qkv_bias (bool): Whether q, k and v have a bias.
        layer_scale (float, optional): First value of what multiplies both
            branches; None builds no layer scale.
        drop_rate (float): Dropout rate of both branches.
        drop_path (float): Stochastic depth rate of the FFN branch; that of
            the attention branch is the attention's own function of it.
    """

    def __init__(self, dim: int, num_heads: int, grid_size: Tuple[int, int],
                 attention: Union[str, dict], mlp_ratio: float, qkv_bias: bool,
                 layer_scale: Optional[float], drop_rate: float,
                 drop_path: float) -> None:
        super().__init__()
        self.pos = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = build_attention(
            attention,
            dim=dim,
            num_heads=num_heads,
            grid_size=grid_size,
            rel_pos_bias=False,
            qkv_bias=qkv_bias,
            proj_drop=drop_rate)
        self.drop_path1 = DropPath(
            self.attn.branch_drop_path(drop_path, 'global'))
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.ffn = ConvFFN(dim, hidden_width(dim, mlp_ratio), drop_rate)
        self.drop_path2 = DropPath(drop_path)
        for name in ('gamma_1', 'gamma_2'):
            value = None if layer_scale is None else nn.Parameter(
                torch.full((dim, ), float(layer_scale)))
            self.register_parameter(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to the same shape."""
        size = tuple(x.shape[1:3])
        layout = TokenLayout(size)
        x = x + _conv_on_map(self.pos, x)
        # (B, H, W, C) -> (B, N, C) and back
        out = self.attn(self.norm1(x).flatten(1, 2), layout)
        out = self.attn.forward_map(out.unflatten(1, size), layout)
        x = x + self.drop_path1(_scaled(out, self.gamma_1))
        out = self.ffn(self.norm2(x))
        return x + self.drop_path2(_scaled(out, self.gamma_2))


def _scaled(x: Tensor, gamma: Optional[Tensor]) -> Tensor:
    return x if gamma is None else x * gamma


class PolaFormerPPStage(BaseModule):
    """Strided convolution (but in the first stage), then blocks.

    Args:
        in_dim (int, optional): Channels of the stage in front, if any.
        dim (int): Number of channels.
        blocks (list[dict]): Arguments of each :class:`PolaFormerPPBlock`.
        conv_norm_cfg (dict): Norm of the convolution.
        with_cp (bool): Whether to recompute blocks in backward.
    """

    def __init__(self, in_dim: Optional[int], dim: int, blocks: List[dict],
                 conv_norm_cfg: dict, with_cp: bool) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.downsample = None if in_dim is None else ConvNorm(
            in_dim, dim, 2, conv_norm_cfg, act=False)
        self.blocks = ModuleList(
            PolaFormerPPBlock(dim=dim, **block) for block in blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), C'); the first stage
        keeps the shape."""
        if self.downsample is not None:
            x = _conv_on_map(self.downsample, x)
        for block in self.blocks:
            if self.with_cp and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x


@MODELS.register_module()
class PolaFormerPP(BaseBackbone):
    """PolaFormer++: linear attention in early stages, softmax in late ones.

    A stem of four convolutions (stride 4), then stages of blocks with a
    position convolution, attention and a convolutional FFN. Takes images of
    any size: convolutions pad by themselves, positions are told by rotary
    angles, and every attention sees its whole map.

    Args:
        arch (str | dict): ``'b0'`` to ``'b5'`` (also ``'polaformer-pp-b0'``),
            or a dict with ``embed_dims``, ``depths``, ``num_heads`` (an int
            for each stage) and ``layer_scale`` (for each stage the first
            value of its layer scale, None for none). Defaults to ``'b2'``.
        attention (str | dict | list): A registered attention by name or
            config; or a list with one for each stage, which may be a list
            with one for each block. Defaults to two stages ``'PolaPP'`` and
            two ``'PolaPPSoftmax'``.
        img_size (int): Side of the classifier's images, for attentions that
            learn an encoding of the whole map. Defaults to 224.
        in_channels (int): Channels of the images. Defaults to 3.
        mlp_ratio (float | list): Hidden width of the FFNs; or one for each
            stage. Defaults to 3.5.
        qkv_bias (bool): Whether q, k, v have a bias. Defaults to True.
        drop_rate (float): Dropout rate. Defaults to 0.
        drop_path_rate (float): Stochastic depth rate of the last block, from
            0 in the first. Defaults to 0.1.
        out_indices (Sequence[int], optional): Stages to return, ascending;
            those behind the last one are not built. Defaults to all.
        frozen_stages (int): -1 freezes nothing, 0 the stem, k the stem and
            the first k stages with their output norms. Defaults to -1.
        norm_eval (bool): Whether batch norms stay in evaluation mode.
            Defaults to False.
        norm_cfg (dict, optional): Norm of each returned map; None returns
            the stages' raw maps. Defaults to ``dict(type='LN', eps=1e-6)``.
        conv_norm_cfg (dict): Norm of the stem's and of strided convolutions,
            such as ``dict(type='SyncBN')``. Defaults to ``dict(type='BN')``.
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
        >>> from mmcsan.backbones import PolaFormerPP
        >>> model = PolaFormerPP('b0').eval()
        >>> maps = model(torch.rand(1, 3, 97, 131))
        >>> [tuple(m.shape) for m in maps]
        [(1, 32, 25, 33), (1, 64, 13, 17), (1, 128, 7, 9), (1, 384, 4, 5)]
    """

    arguments = dict(
        img_size=integer(),
        mlp_ratio=per_stage(number(above=0)),
        conv_norm_cfg=NORM)

    def __init__(self,
                 arch: Union[str, dict] = 'b2',
                 attention: Union[str, dict, Sequence] = _ATTENTIONS,
                 img_size: int = 224,
                 in_channels: int = 3,
                 mlp_ratio: Union[float, Sequence[float]] = 3.5,
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 out_indices: Optional[Sequence[int]] = None,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 norm_cfg: Optional[dict] = dict(type='LN', eps=1e-6),
                 conv_norm_cfg: dict = dict(type='BN'),
                 with_cp: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        if isinstance(arch, str):
            arch = arch.lower().replace('polaformer-pp-', '')
        arch = resolve_arch(arch, POLAFORMER_PP_ARCHS, _ARCH, '')
        if arch['embed_dims'][0] % 2:
            raise ValueError(f'embed_dims={arch["embed_dims"]}: the first '
                             'must be even, as the stem halves it')
        depths = list(arch['depths'])
        if out_indices is None:
            out_indices = range(len(depths))
        super().__init__(out_indices, len(depths), frozen_stages, norm_eval,
                         with_cp, init_cfg)
        self.depths = depths
        self.stage_channels = list(arch['embed_dims'])
        self.patch_embed = self._stem(in_channels, conv_norm_cfg)
        self._build_stages(
            arch, drop_path_rate, conv_norm_cfg,
            attention=spread_attention(attention, depths),
            mlp_ratio=per_block(mlp_ratio, depths, 'mlp_ratio'),
            img_size=img_size,
            common=dict(qkv_bias=qkv_bias, drop_rate=drop_rate))
        self.build_output_norms(norm_cfg)
        self.reset_linear_layers()
        self.freeze()

    def _stem(self, in_channels: int, norm_cfg: dict) -> Sequential:
        width = self.stage_channels[0]
        half = width // 2
        return Sequential(
            ConvNorm(in_channels, half, 2, norm_cfg, act=True),
            ConvNorm(half, half, 1, norm_cfg, act=True),
            ConvNorm(half, half, 1, norm_cfg, act=True),
            ConvNorm(half, width, 2, norm_cfg, act=False))

    def _build_stages(self, arch: dict, drop_path_rate: float,
                      conv_norm_cfg: dict, attention: List[list],
                      mlp_ratio: List[list], img_size: int,
                      common: dict) -> None:
        # In float32, as the released code computes them.
        rates = torch.linspace(
            0, drop_path_rate, sum(self.depths), device='cpu').tolist()
        self.stages = ModuleList()
        # Stages that no map is taken from would have unused parameters.
        for index in range(self.out_indices[-1] + 1):
            side = -(-img_size // (4 * 2**index))
            blocks = [
                dict(
                    grid_size=(side, side),
                    num_heads=arch['num_heads'][index],
                    layer_scale=arch['layer_scale'][index],
                    attention=attention[index][i],
                    mlp_ratio=mlp_ratio[index][i],
                    drop_path=rates.pop(0),
                    **common) for i in range(self.depths[index])
            ]
            self.stages.append(
                PolaFormerPPStage(
                    self.stage_channels[index - 1] if index else None,
                    self.stage_channels[index], blocks, conv_norm_cfg,
                    self.with_cp))

    def stem_modules(self) -> List[nn.Module]:
        """See :meth:`BaseBackbone.stem_modules`."""
        return [self.patch_embed]

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to maps.

        Args:
            x (Tensor): (B, C, H, W).

        Returns:
            tuple[Tensor]: For each of ``out_indices`` a contiguous map
            (B, C_i, H_i, W_i); stage 0 has stride 4, each next one twice the
            stride; sizes are rounded up.
        """
        # (B, C, H, W) -> (B, H, W, C)
        x = self.patch_embed(x).permute(0, 2, 3, 1)
        outs = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in self.out_indices:
                norm = self.output_norm(index)
                out = x if norm is None else norm(x)
                outs.append(out.permute(0, 3, 1, 2).contiguous())
        return tuple(outs)
