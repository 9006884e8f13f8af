"""Backbones: one file each, registered in ``MODELS``."""
from .base import BaseBackbone
from .swin import SwinTransformer

__all__ = ['BaseBackbone', 'SwinTransformer']
