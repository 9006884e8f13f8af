"""Every format that is recognised; ``base.py`` says how to add one."""
from . import hiera, polaformer_pp, pvt, swin, vision_transformer
from .base import (Format, Renamed, Rule, conv_to_linear, cut, linear_to_conv,
                   unfold_to_slices)

FORMATS = (
    *swin.FORMATS,
    *polaformer_pp.FORMATS,
    *pvt.FORMATS,
    *vision_transformer.FORMATS,
    *hiera.FORMATS,
)
"""All formats, of all families."""

__all__ = [
    'FORMATS', 'Format', 'Renamed', 'Rule', 'conv_to_linear', 'cut',
    'linear_to_conv', 'unfold_to_slices'
]
