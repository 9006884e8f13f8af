"""Necks that the codebases lack, registered in ``MODELS``."""
from .simple_feature_pyramid import LayerNorm2d, SimpleFeaturePyramid

__all__ = ['LayerNorm2d', 'SimpleFeaturePyramid']
