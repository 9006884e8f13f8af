"""Answers for ``mmcv._ext`` where mmcv was installed without it.

mmcv's wheels without compiled operators lack the module ``mmcv._ext``, and
then neither ``mmcv.ops`` nor ``mmdet.models`` can be imported. The finder
below stands at the very end of ``sys.meta_path``, so a compiled module, if
there is one, is always found first, and nothing is loaded before somebody
imports ``mmcv._ext``.
"""
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

_MODULE = 'mmcv._ext'


class _FallbackLoader(Loader):
    """Fills an empty ``mmcv._ext`` from :mod:`mmcsan.compat.mmcv_ops`."""

    def create_module(self, spec):
        """Let Python make the module."""
        return None

    def exec_module(self, module):
        """Give ``module`` the served ops and a named error for all others."""
        # Here, not at the top: this imports torch and torchvision.
        from . import mmcv_ops
        for name in mmcv_ops.__all__:
            setattr(module, name, getattr(mmcv_ops, name))
        module.__getattr__ = mmcv_ops.missing_op
        mmcv_ops.log_once()


class _FallbackFinder(MetaPathFinder):
    """Answers for ``mmcv._ext`` alone, and only where it can be served.

    An mmcv without ``mmcv.ops`` (mmcv-lite) or an environment without
    torchvision is left as it is: mmengine asks for ``mmcv._ext`` to learn
    whether ``mmcv.ops`` can be imported.
    """

    def find_spec(self, fullname, path=None, target=None):
        """Return a spec for ``mmcv._ext``, None for every other module."""
        if fullname != _MODULE:
            return None
        has_ops = any(
            os.path.isdir(os.path.join(p, 'ops')) for p in path or ())
        if not has_ops or find_spec('torchvision') is None:
            return None
        return ModuleSpec(fullname, _FallbackLoader(), origin='torchvision')


def install_mmcv_ops_fallback() -> None:
    """Serve mmcv's missing compiled module from torchvision's operators.

    Box NMS, soft-NMS and RoIAlign (average pooling, with gradients) give the
    compiled operators' results; calling any other operator raises an error
    that names it and tells how to build the compiled ones. Nothing changes
    where mmcv has its compiled module.

    The call imports nothing and may be repeated: the finder is installed
    once.
    """
    if not any(isinstance(f, _FallbackFinder) for f in sys.meta_path):
        sys.meta_path.append(_FallbackFinder())
