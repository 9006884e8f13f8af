"""Backbones compiled by torch.compile, while the rest of a run stays as is."""
import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.logging import print_log

from mmcsan.registry import HOOKS


def _backbones(model: nn.Module, name: str = '') -> list:
    """Outermost modules that are called backbone, with their names."""
    if name.rpartition('.')[2] == 'backbone':
        return [(name, model)]
    return [
        found for child, module in model.named_children()
        for found in _backbones(module, f'{name}.{child}' if name else child)
    ]


@HOOKS.register_module()
class CompileBackboneHook(Hook):
    """Compile the backbones of a model before it is trained or tested.

    mmengine's ``compile = True`` compiles the whole training step: the
    optimizer, losses that sample, and assigners with it, which stops or makes
    a graph for each batch. A backbone is where the time goes, and is a plain
    function of images. It is compiled in place, so that names of parameters,
    checkpoints and wrappers are what they are without.

    Args:
        options: Arguments of :func:`torch.compile`, such as ``backend`` or
            ``mode``. By default ``dynamic=True``: one graph for images of any
            size, instead of one for each.

    Examples:
        >>> custom_hooks = [dict(type='mmcsan.CompileBackboneHook')]
    """

    priority = 'VERY_LOW'  # after hooks that copy or wrap the model

    def __init__(self, **options) -> None:
        self.options = dict(dict(dynamic=True), **options)

    def before_run(self, runner) -> None:
        """Compile; the graphs are made when the first images come.

        Args:
            runner (Runner): The runner of the training or test.

        Raises:
            ValueError: If the model has no backbone.
        """
        backbones = _backbones(runner.model)
        if not backbones:
            raise ValueError(
                f'{type(runner.model).__name__} has no module that is called '
                'backbone, so CompileBackboneHook has nothing to compile')
        for name, backbone in backbones:
            backbone.compile(**self.options)
            print_log(
                f'{name} is compiled ({self.options}); the first iterations '
                'take longer',
                logger='current')
