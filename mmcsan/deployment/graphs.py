"""A classifier, segmentor or detector as a plain function of images."""
from copy import deepcopy
from typing import Callable, Dict, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model.utils import revert_sync_batchnorm
from torch import Tensor

from mmcsan.attentions.graphs import ceil_div


class AdaptivePooling(nn.Module):
    """Adaptive average pooling to a fixed size, as two products.

    Its bins depend on the size of the map. Exporters know that operator for
    one size of map only; the products they know for any.

    Args:
        size (tuple[int, int]): Height and width of the result.
    """

    def __init__(self, size: Tuple[int, int]) -> None:
        super().__init__()
        self.size = tuple(size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, h, w)."""
        rows, cols = (
            _bins(length, bins, x)
            for length, bins in zip(x.shape[2:], self.size))
        # (h, H) @ (B, C, H, W) @ (W, w)
        return rows @ x @ cols.transpose(0, 1)


def _bins(length: int, bins: int, like: Tensor) -> Tensor:
    """Weights of the places of an axis in each bin: (bins, length)."""
    place = torch.arange(length, device=like.device)
    index = torch.arange(bins, device=like.device)[:, None]
    start = index * length // bins
    end = ceil_div((index + 1) * length, bins)
    within = ((place >= start) & (place < end)).to(like.dtype)
    return within / within.sum(dim=1, keepdim=True)


def _replace_pooling(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.AdaptiveAvgPool2d):
            size = child.output_size
            size = (size, size) if isinstance(size, int) else tuple(size)
            if size != (1, 1):
                setattr(module, name, AdaptivePooling(size))
        else:
            _replace_pooling(child)


def _classify(model: nn.Module, x: Tensor) -> Tensor:
    """Probabilities (B, classes)."""
    return model(x, mode='tensor').softmax(dim=1)


def _segment(model: nn.Module, x: Tensor) -> Tensor:
    """Scores of each class at each pixel, (B, classes, H, W)."""
    scores = model.decode_head(model.extract_feat(x))
    return F.interpolate(
        scores,
        size=x.shape[2:],
        mode='bilinear',
        align_corners=model.decode_head.align_corners)


def _features(model: nn.Module, x: Tensor) -> Tuple[Tensor, ...]:
    """The maps that backbone and neck give, one a level."""
    return tuple(model.extract_feat(x))


TASKS: Dict[str, Tuple[Callable, str]] = {
    'mmpretrain': (_classify, 'scores (B, classes), which sum to one'),
    'mmseg': (_segment, 'scores (B, classes, H, W); the label is the largest'),
    'mmdet': (_features, 'the maps of backbone and neck, one a level'),
}
"""By the codebase: what is exported, and what comes out of it, in words."""


CONVERSIONS = ('to_rgb', '_channel_conversion', 'channel_conversion')
"""Attributes of data preprocessors that tell that BGR becomes RGB."""


class ExportedModel(nn.Module):
    """What is exported of a model: from images to scores or maps.

    Args:
        model (nn.Module): The model, in evaluation mode.
        scope (str): Its codebase, a key of ``TASKS``.
    """

    def __init__(self, model: nn.Module, scope: str) -> None:
        super().__init__()
        self.model = model
        self.function = TASKS[scope][0]
        given = model.data_preprocessor
        # Without conversion a model sees images as OpenCV reads them: BGR.
        self.bgr = not any(
            getattr(given, name, False) for name in CONVERSIONS)
        for name, neutral in (('mean', 0.), ('std', 1.)):
            value = getattr(given, name, torch.full((3, ), neutral))
            value = value.detach().float().view(3, 1, 1)
            self.register_buffer(name, value, persistent=False)

    def forward(self, images: Tensor):
        """Images (B, 3, H, W), RGB, float32 of 0 to 255, to the outputs."""
        if self.bgr:
            images = images.flip(1)
        return self.function(self.model, (images - self.mean) / self.std)


def make_exportable(model: nn.Module, scope: str) -> ExportedModel:
    """A copy of a model that graphs for images of any size can be made of.

    Args:
        model (nn.Module): A classifier of mmpretrain, a segmentor of mmseg or
            a detector of mmdet. It stays as it is.
        scope (str): ``'mmpretrain'``, ``'mmseg'`` or ``'mmdet'``.

    Returns:
        ExportedModel: In evaluation mode, on the CPU.
    """
    model = revert_sync_batchnorm(deepcopy(model).cpu()).eval()
    _replace_pooling(model)
    return ExportedModel(model, scope).eval().requires_grad_(False)
