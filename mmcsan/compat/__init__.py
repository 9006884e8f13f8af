"""What keeps mmcsan usable on the installations its users really have.

Importing this package imports neither torch nor any OpenMMLab package.
"""
from .mmcv_ops_finder import install_mmcv_ops_fallback

__all__ = ['install_mmcv_ops_fallback']
