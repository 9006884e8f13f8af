"""Which parameters each config exempts from weight decay, one by one."""
import pytest
import torch.nn as nn
from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor, build_optim_wrapper
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm
from test_configs import CONFIGS, build

from mmcsan.attentions import BaseAttention

NORMS = (nn.LayerNorm, nn.GroupNorm, _BatchNorm)
OWN = {
    'Pola': {'positional_encoding', 'scale', 'power'},
    'PolaPP': {'s1', 's2'},
}
"""An attention's own parameters that fine-tuning does not decay."""
POSITIONS = {'Hiera', 'VisionTransformer'}
"""Backbones whose position embeddings fine-tuning does not decay."""


def tables(model):
    """Relative-position tables, by name."""
    return {
        name for name, _ in model.named_parameters()
        if name.rpartition('.')[2] == 'relative_position_bias_table'
    }


def norms(model):
    return {
        f'{owner}.{name}' for owner, module in model.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }


def own(model):
    found = set()
    for owner, module in model.named_modules():
        if isinstance(module, BaseAttention):
            names = OWN.get(type(module).__name__, ())
            assert all(hasattr(module, name) for name in names)
            found |= {f'{owner}.{name}' for name in names}
    return found


def exempt_in_fine_tuning(model):
    """Tables, norms of the backbone, what the attentions say."""
    found = tables(model) | own(model)
    found |= {n for n in norms(model) if n.startswith('backbone.')}
    if type(model.backbone).__name__ in POSITIONS:
        found |= {
            name for name, _ in model.named_parameters()
            if name.rpartition('.')[2].startswith(('pos_embed', 'cls_token'))
        }
    return found


def exempt_in_swins_pretraining(model):
    """Tables and all that is flat: norms, biases, layer scales."""
    return tables(model) | {
        name for name, p in model.named_parameters()
        if p.ndim == 1 or name.endswith('.bias')
    }


def embeddings(model):
    """What Mask2Former's queries start from, and its levels."""
    return {
        name for name, _ in model.named_parameters()
        if any(key in name for key in ('query_', 'level_embed'))
    }


def intended(path, model):
    stem = path.stem
    if 'mask2former' in stem:
        return tables(model) | norms(model) | embeddings(model)
    if 'dino' in stem:
        return tables(model)  # mmdet's, but for these
    if 'retinanet' in stem and 'swin' in stem:
        return set()  # mmdet's SGD, all alike
    if '8xb128' in stem:
        return exempt_in_swins_pretraining(model)
    if 'in1k' in stem or 'digits-cls' in stem:
        return tables(model)  # CSaN's recipe
    found = exempt_in_fine_tuning(model)
    if path.parent.name == 'demo':
        # A norm of the backbone goes with the backbone.
        found -= norms(model)
    return found


def optim_wrapper_of(path):
    wrapper = Config.fromfile(path).optim_wrapper
    # Mixed precision needs a GPU, and is not what is asked.
    wrapper.type = 'OptimWrapper'
    wrapper.pop('dtype', None)
    return wrapper


def param_groups(model, wrapper):
    """The groups that an optimizer would get."""
    options = wrapper.pop('paramwise_cfg', None)
    if options is None:
        decay = wrapper.optimizer.weight_decay
        return [dict(params=[p], weight_decay=decay)
                for p in model.parameters()]
    constructor = DefaultOptimWrapperConstructor(wrapper, options)
    groups = []
    constructor.add_params(groups, model)
    return groups


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_exactly_the_intended_are_exempt(path):
    model, wrapper = build(path), optim_wrapper_of(path)
    base = wrapper.optimizer.weight_decay
    assert base > 0
    decays = {
        id(p): group.get('weight_decay', base)
        for group in param_groups(model, wrapper) for p in group['params']
    }
    names = {n for n, _ in model.named_parameters()}
    found = {n for n, p in model.named_parameters() if decays[id(p)] == 0}
    assert found == intended(path, model)
    decayed = {
        n for n, p in model.named_parameters() if decays[id(p)] == base
    }
    assert found | decayed == names


def smallest_of_each_kind():
    """A small config for each backbone with each optimizer."""
    kinds = {}
    for path in sorted(CONFIGS, key=lambda p: len(list(build(p).modules()))):
        kind = (type(build(path).backbone), str(optim_wrapper_of(path)))
        kinds.setdefault(kind, path)
    return list(kinds.values())


def test_optimizers_get_these_groups():
    paths = smallest_of_each_kind()
    assert len(paths) > 10
    for path in paths:
        model, wrapper = build(path), optim_wrapper_of(path)
        optimizer = build_optim_wrapper(model, wrapper).optimizer
        found = {
            id(p) for group in optimizer.param_groups
            for p in group['params'] if group['weight_decay'] == 0
        }
        assert found == {
            id(p) for n, p in model.named_parameters()
            if n in intended(path, model)
        }, path.stem


def test_pola_is_decayed_in_pretraining():
    for path in CONFIGS:
        if '8xb128' in path.stem and path.parent.name != 'baseline':
            model = build(path)
            assert own(model)
            assert not own(model) & intended(path, model)


def test_every_key_is_somebodys():
    """A key that no network has is a slip of the pen."""
    names = [
        name for path in CONFIGS for name, _ in build(path).named_parameters()
    ]
    for path in CONFIGS:
        options = Config.fromfile(path).optim_wrapper.get('paramwise_cfg', {})
        for key in options.get('custom_keys', {}):
            assert any(key in name for name in names), (path.stem, key)
