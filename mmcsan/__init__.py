"""CSaN and Pola attention as backbones of the OpenMMLab codebases."""
from .version import __version__, check_requirements

check_requirements()

from .compat import install_mmcv_ops_fallback  # noqa: E402

install_mmcv_ops_fallback()

__all__ = ['__version__']
