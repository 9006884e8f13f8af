"""CSaN and Pola attention as backbones of the OpenMMLab codebases."""
from .version import __version__, check_requirements

check_requirements()

from .compat import install_mmcv_ops_fallback  # noqa: E402

install_mmcv_ops_fallback()

__all__ = ['__version__', 'plug_attention']


def __getattr__(name: str):
    # Only when asked for, as it needs torch.
    if name == 'plug_attention':
        from .plugging import plug_attention
        return plug_attention
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
