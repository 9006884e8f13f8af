"""Necks that the codebases lack, registered in ``MODELS``."""
from .projected_pooling import ProjectedPooling
from .simple_feature_pyramid import LayerNorm2d, SimpleFeaturePyramid

__all__ = ['LayerNorm2d', 'ProjectedPooling', 'SimpleFeaturePyramid']
