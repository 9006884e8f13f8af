"""Learning rates that fall from layer to layer towards the stem.

Every backbone that can tell the depth of its parameters is served, wherever it
sits in a classifier, segmentor or detector; no table of class names is kept.
"""
import inspect
import logging
from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch.nn as nn
from mmengine.logging import MMLogger, print_log
from mmengine.optim import DefaultOptimWrapperConstructor

from mmcsan.registry import OPTIM_WRAPPER_CONSTRUCTORS, unknown_name

RATE = 'layer_decay_rate'

KNOWN_OPTIONS = (RATE, 'custom_keys', 'bias_lr_mult', 'bias_decay_mult',
                 'norm_decay_mult', 'flat_decay_mult', 'dwconv_decay_mult',
                 'dcn_offset_lr_mult', 'bypass_duplicate')
"""What ``paramwise_cfg`` may hold: mmengine's rules, and the rate."""

_MULTIPLIERS = ('lr_mult', 'decay_mult')
_WRAPPERS = ('module', '_orig_mod')


class _Row(NamedTuple):
    """A line of the table that is logged."""

    depth: int
    lr: float
    weight_decay: Optional[float]


def _tells_depth(module: nn.Module) -> bool:
    """Whether a module is a backbone that knows depths.

    Classifiers of mmpretrain have a method of that name too, which asks their
    backbone and takes no prefix.
    """
    # Wrappers may pass on attributes of what they wrap, but not the names.
    own = 'get_layer_depth' in {*dir(type(module)), *vars(module)}
    return own and 'prefix' in inspect.signature(
        module.get_layer_depth).parameters


def _class_name(module: nn.Module) -> str:
    return f'{type(module).__module__}.{type(module).__qualname__}'


def find_backbones(model: nn.Module) -> Dict[str, nn.Module]:
    """Every backbone of a model that tells the depth of its parameters.

    Args:
        model (nn.Module): A model, or a backbone itself.

    Returns:
        dict[str, nn.Module]: Outermost modules with a method
        ``get_layer_depth(param_name, prefix)``, by what stands before the
        names of their parameters, such as ``'backbone.'``.

    Raises:
        TypeError: If there is none, or a module that is called ``backbone``
            neither has the method nor holds a module that has it; the error
            names its class.
    """
    found, backbones = {}, {}
    for name, module in model.named_modules():
        prefix = f'{name}.' if name else ''
        if any(prefix.startswith(outer) for outer in found):
            continue
        parts = [p for p in name.split('.') if p not in _WRAPPERS]
        if parts[-1] == 'backbone':
            backbones[prefix] = module
        if _tells_depth(module):
            found[prefix] = module
    for prefix, module in backbones.items():
        if not any(inner.startswith(prefix) for inner in found):
            _refuse(module)
    if not found:
        _refuse(model)
    return found


def _refuse(module: nn.Module) -> None:
    while any(hasattr(module, name) for name in _WRAPPERS):
        module = next(
            getattr(module, n) for n in _WRAPPERS if hasattr(module, n))
    raise TypeError(
        f'layer-wise decay needs a backbone with a method get_layer_depth('
        f'param_name, prefix), and {_class_name(module)} has none: use a '
        'backbone of mmcsan, wrap one of a known kind in '
        'mmcsan.PluggedBackbone, or add the method')


@contextmanager
def _without_lines_per_parameter() -> Iterator[None]:
    """Hide mmengine's line for each parameter: it tells rates without decay.
    """

    def passes(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not (message.startswith('paramwise_options --')
                    or 'is skipped since its requires_grad' in message)

    logger = MMLogger.get_current_instance()
    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with learning rates decayed layer by layer.

    A parameter at depth ``l`` of ``n`` has its learning rate multiplied by
    ``layer_decay_rate ** (n - 1 - l)``: the stem's is the smallest, that of
    necks and heads stays whole. Depths are those that the backbone tells by
    ``get_layer_depth(param_name, prefix)``; it is found wherever it sits in
    the model, also inside of wrappers for distributed training.

    All of mmengine's rules hold as usual, and the decay multiplies what they
    yield. Parameters without gradient stay out, a parameter that is used in
    several places enters once, and parameters of equal settings share a
    group. The outcome is logged as one table.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper, with the
            optimizer's under ``optimizer``, which sets ``lr``.
        paramwise_cfg (dict): ``layer_decay_rate`` (float, above 0 and at
            most 1), and any of ``custom_keys`` (with ``lr_mult`` and
            ``decay_mult``), ``norm_decay_mult``, ``bias_decay_mult``,
            ``flat_decay_mult``, ``dwconv_decay_mult``, ``bias_lr_mult``,
            ``dcn_offset_lr_mult``; see mmengine.

    Raises:
        ValueError: If the rate is missing or out of range, or the optimizer
            has no ``lr``.
        TypeError: If ``paramwise_cfg`` holds an unknown option; when called,
            if a backbone cannot tell depths, naming its class.

    Examples:
        >>> optim_wrapper = dict(
        ...     type='OptimWrapper',
        ...     optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        ...     constructor='mmcsan.LayerDecayOptimWrapperConstructor',
        ...     paramwise_cfg=dict(layer_decay_rate=0.8, norm_decay_mult=0.))
    """

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        for key in self.paramwise_cfg:
            if key not in KNOWN_OPTIONS:
                raise TypeError(
                    unknown_name('option of paramwise_cfg', key,
                                 KNOWN_OPTIONS))
        rate = self.paramwise_cfg.get(RATE)
        if rate is None or not 0 < rate <= 1:
            raise ValueError(f'paramwise_cfg must set {RATE}, above 0 and at '
                             f'most 1, but it is {rate}')
        if self.base_lr is None:
            raise ValueError('optimizer must set lr, which layers get a part '
                             'of')

    def add_params(self,
                   params: List[dict],
                   module: nn.Module,
                   prefix: str = '',
                   is_dcn_module: Optional[Union[int, float]] = None) -> None:
        """Add the parameters of a module by mmengine's rules, then decay.

        Args:
            params (list[dict]): Parameter groups, extended in place.
            module (nn.Module): The model, or a part of it.
            prefix (str): Name of the part. Defaults to '': the whole model.
            is_dcn_module (int | float, optional): mmengine's own.
        """
        if prefix:
            super().add_params(params, module, prefix, is_dcn_module)
            return
        backbones = find_backbones(module)
        with _without_lines_per_parameter():
            super().add_params(params, module, prefix, is_dcn_module)
        params[:] = self._decay(params, module, backbones)

    def _decay(self, params: List[dict], model: nn.Module,
               backbones: Dict[str, nn.Module]) -> List[dict]:
        """Groups of one parameter each to decayed and merged groups."""
        names = {id(param): name for name, param in model.named_parameters()}
        rate = self.paramwise_cfg[RATE]
        merged, table, seen = {}, {}, set()
        for group in params:
            param, = group.pop('params')
            if id(param) in seen:
                continue
            seen.add(id(param))
            name = names[id(param)]
            depth, num_layers = _depth(name, backbones)
            for key in _MULTIPLIERS:
                group.pop(key, None)
            scale = rate**(num_layers - 1 - depth)
            group['lr'] = group.get('lr', self.base_lr) * scale
            if self.base_wd is not None:
                group.setdefault('weight_decay', self.base_wd)
            key = tuple(sorted((k, repr(v)) for k, v in group.items()))
            merged.setdefault(key, dict(group, params=[]))
            merged[key]['params'].append(param)
            row = _Row(depth, group['lr'], group.get('weight_decay'))
            table.setdefault(row, []).append((name, param.numel()))
        frozen = sum(not p.requires_grad for p in model.parameters())
        print_log(_render(table, rate, frozen), logger='current')
        return list(merged.values())


def _depth(name: str, backbones: Dict[str, nn.Module]) -> Tuple[int, int]:
    """Depth of a parameter, the greatest outside of backbones, of how many.
    """
    first = next(iter(backbones))
    prefix = next((p for p in backbones if name.startswith(p)), first)
    return backbones[prefix].get_layer_depth(name, prefix)


def _render(table: Dict[_Row, list], rate: float, frozen: int) -> str:
    lines = [
        f'Layer-wise decay of the learning rate by {rate}; {frozen} frozen '
        'tensors are left out.',
        f'{"depth":>5}  {"lr":>10}  {"decay":>8}  {"tensors":>7}  '
        f'{"values":>11}  first'
    ]
    for row in sorted(table, key=lambda r: (r.depth, r.lr, str(r[2]))):
        entries = table[row]
        decay = '-' if row.weight_decay is None else f'{row.weight_decay:.3g}'
        lines.append(f'{row.depth:>5}  {row.lr:>10.3e}  {decay:>8}  '
                     f'{len(entries):>7}  {sum(n for _, n in entries):>11}  '
                     f'{entries[0][0]}')
    return '\n'.join(lines)
