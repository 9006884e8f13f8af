"""What docs/attentions.md shows works."""
import re

import pytest
import torch

from mmcsan.registry import ATTENTIONS, MODELS


@pytest.fixture(scope='module')
def shown(root):
    text = (root / 'docs' / 'attentions.md').read_text()
    names = {}
    for block in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
        exec(block, names)
    yield names
    ATTENTIONS.module_dict.pop('CosineAttention', None)


def test_own_attention_works_in_backbones_and_plugged(shown):
    small = dict(embed_dims=16, depths=[2, 2], num_heads=[1, 2])
    attention = dict(type='CosineAttention', sharpness=5.)
    swin = MODELS.build(
        dict(
            type='mmcsan.SwinTransformer',
            arch=small,
            attention=attention,
            window_size=4))
    vit = MODELS.build(
        dict(
            type='mmcsan.VisionTransformer',
            arch=dict(embed_dims=16, depth=2, num_heads=2),
            attention=attention))
    cfg = shown['model']['backbone']
    cfg.pop('_delete_')
    plugged = MODELS.build(dict(cfg, attention=attention))
    for model in (swin, vit, plugged):
        maps = model(torch.rand(2, 3, 61, 90))
        sum(out.square().mean() for out in maps).backward()
        assert all(out.isfinite().all() for out in maps)


def test_the_plugged_backbone_is_plugged(shown):
    kinds = {type(m).__name__ for m in shown['backbone'].modules()}
    assert 'PluggedCSaN' in kinds and 'WindowMSA' not in kinds


def test_the_optimizer_config_works(shown):
    from mmengine.optim import build_optim_wrapper
    wrapper = build_optim_wrapper(shown['backbone'], shown['optim_wrapper'])
    rates = {group['lr'] for group in wrapper.optimizer.param_groups}
    assert len(rates) == 10 and max(rates) == 1e-4
