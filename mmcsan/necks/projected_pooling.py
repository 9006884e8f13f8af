"""The end of a classifier that projects its last map before it is pooled."""
from typing import Tuple

import torch.nn as nn
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor

from mmcsan.arguments import (ACTIVATION, INIT, NORM, CheckedArguments, built,
                              integer)
from mmcsan.registry import MODELS


@MODELS.register_module()
class ProjectedPooling(CheckedArguments, BaseModule):
    """1x1 convolution, norm and activation of the last map, then its mean.

    What stands between PolaFormer++ and its linear classifier. mmpretrain's
    necks for pooled features act behind the mean, which is not the same.

    Args:
        in_channels (int): Channels of the last map.
        out_channels (int): Channels of the result.
        norm_cfg (dict): The norm. Defaults to ``dict(type='BN')``.
        act_cfg (dict): The activation. Defaults to ``dict(type='SiLU')``.
        init_cfg (dict, optional): Initialization config. Defaults to None.

    Examples:
        >>> import torch
        >>> from mmcsan.necks import ProjectedPooling
        >>> neck = ProjectedPooling(8, 32)
        >>> [tuple(out.shape) for out in neck((torch.rand(2, 8, 5, 7), ))]
        [(2, 32)]
    """

    arguments = dict(
        in_channels=integer(),
        out_channels=integer(),
        norm_cfg=NORM,
        act_cfg=ACTIVATION,
        init_cfg=INIT)

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 norm_cfg: dict = dict(type='BN'),
                 act_cfg: dict = dict(type='SiLU'),
                 init_cfg: dict = None) -> None:
        super().__init__(init_cfg)
        # Not mmcv's ConvModule, which warns of a bias in front of a norm.
        self.conv = nn.Conv2d(in_channels, out_channels, 1)
        self.norm = built('norm_cfg', norm_cfg, build_norm_layer,
                          out_channels)[1]
        self.act = built('act_cfg', act_cfg, build_activation_layer)

    def forward(self, maps: Tuple[Tensor, ...]) -> Tuple[Tensor]:
        """Maps to features.

        Args:
            maps (tuple[Tensor]): The last is (B, C, H, W).

        Returns:
            tuple[Tensor]: (B, C'), as mmpretrain's heads expect it.
        """
        out = self.act(self.norm(self.conv(maps[-1])))
        return (out.mean((2, 3)), )
