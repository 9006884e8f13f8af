"""A feature pyramid out of one map, for detectors on plain backbones."""
import math
from typing import Sequence, Tuple, Union

import torch.nn as nn
import torch.nn.functional as F
from mmcv.cnn import ConvModule, build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor

from mmcsan.arguments import (INIT, NORM, CheckedArguments, built, integer,
                              list_of, number)
from mmcsan.registry import MODELS


@MODELS.register_module('LN2d')
class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of maps (B, C, H, W).

    mmdet has none, and mmpretrain's would make detectors need mmpretrain.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@MODELS.register_module()
class SimpleFeaturePyramid(CheckedArguments, BaseModule):
    """Maps of several strides from the one map of a plain backbone.

    Each level comes from the last map alone, by transposed convolutions or
    max pooling, then a 1x1 and a 3x3 convolution, each with a norm; levels do
    not exchange anything (ViTDet, https://arxiv.org/abs/2203.16527).

    Args:
        in_channels (int): Channels of the map; divisible by the greatest
            scale.
        out_channels (int): Channels of each level. Defaults to 256.
        scales (Sequence[float]): Size of each level in terms of the map's,
            powers of two, descending. Defaults to (4, 2, 1, 0.5): strides 4
            to 32 of a map of stride 16.
        num_outs (int): Number of levels; those beyond ``scales`` are each
            half of the one before, subsampled. Defaults to 5.
        norm_cfg (dict): Config of the norms.
            Defaults to ``dict(type='mmcsan.LN2d', eps=1e-6)``.
        init_cfg (dict, optional): Initialization config. Defaults to None.

    Raises:
        ValueError: If scales are no descending powers of two, or do not fit
            ``in_channels`` or ``num_outs``.
    """

    arguments = dict(
        in_channels=integer(),
        out_channels=integer(),
        scales=list_of(number(above=0)),
        num_outs=integer(),
        norm_cfg=NORM,
        init_cfg=INIT)

    def __init__(self,
                 in_channels: int,
                 out_channels: int = 256,
                 scales: Sequence[float] = (4, 2, 1, 0.5),
                 num_outs: int = 5,
                 norm_cfg: dict = dict(type='mmcsan.LN2d', eps=1e-6),
                 init_cfg: Union[dict, None] = None) -> None:
        super().__init__(init_cfg)
        if num_outs < len(scales):
            raise ValueError(f'num_outs={num_outs} is less than the number of '
                             f'scales={tuple(scales)}')
        if list(scales) != sorted(set(scales), reverse=True):
            raise ValueError(f'scales={tuple(scales)} must descend')
        self.num_outs = num_outs
        self.levels = ModuleList()
        for scale in scales:
            steps = _steps(scale, in_channels)
            self.levels.append(
                built('norm_cfg', norm_cfg, _level, in_channels, out_channels,
                      steps))

    def forward(self, inputs: Union[Tensor, Sequence[Tensor]]
                ) -> Tuple[Tensor, ...]:
        """The map to all levels.

        Args:
            inputs (Tensor | Sequence[Tensor]): (B, C, H, W), alone or as the
                only one of a sequence.

        Returns:
            tuple[Tensor]: For each scale s a map (B, C_out, s H, s W), sizes
            rounded up, and the extra levels.

        Raises:
            ValueError: If there are several maps.
        """
        if not isinstance(inputs, Tensor):
            if len(inputs) != 1:
                raise ValueError(
                    'SimpleFeaturePyramid takes one map but got '
                    f'{len(inputs)}: give the backbone one of out_indices')
            inputs = inputs[0]
        outs = [level(inputs) for level in self.levels]
        while len(outs) < self.num_outs:
            outs.append(F.max_pool2d(outs[-1], 1, stride=2))
        return tuple(outs)


def _steps(scale: float, in_channels: int) -> int:
    """Doublings that a scale means, negative for halvings."""
    steps = math.log2(scale)
    if steps != int(steps):
        raise ValueError(f'scales: {scale} is no power of two')
    if steps > 0 and in_channels % 2**int(steps):
        raise ValueError(f'in_channels={in_channels} is not divisible by '
                         f'{scale}, which is one of scales')
    return int(steps)


def _level(norm_cfg: dict, in_channels: int, out_channels: int,
           steps: int) -> Sequential:
    """Layers from the map to one level."""
    channels = in_channels // 2**max(steps, 0)
    return Sequential(
        *_resampling(in_channels, steps, norm_cfg),
        ConvModule(
            channels, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None),
        ConvModule(
            out_channels,
            out_channels,
            3,
            padding=1,
            norm_cfg=norm_cfg,
            act_cfg=None))


def _resampling(channels: int, steps: int, norm_cfg: dict) -> list:
    """Layers that double a map, halving its channels; or that halve it."""
    layers = []
    for step in range(steps):
        if step:
            norm = build_norm_layer(norm_cfg, channels)[1]
            layers += [norm, nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, 2))
        channels //= 2
    # Rounding up, so that no map vanishes.
    layers += [nn.MaxPool2d(2, 2, ceil_mode=True) for _ in range(-steps)]
    return layers
