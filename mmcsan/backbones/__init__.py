"""Backbones: one file each, registered in ``MODELS``."""
from .base import BaseBackbone
from .hiera import Hiera
from .polaformer_pp import PolaFormerPP
from .pvt import PyramidVisionTransformer
from .swin import SwinTransformer
from .vision_transformer import VisionTransformer

__all__ = [
    'BaseBackbone', 'Hiera', 'PolaFormerPP', 'PyramidVisionTransformer',
    'SwinTransformer', 'VisionTransformer'
]
