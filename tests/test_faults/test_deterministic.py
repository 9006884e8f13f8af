"""One seed, one outcome: two runs are equal bit for bit."""
import sys

import faulty_runs  # noqa: F401  puts the tools on the path
import pytest
import torch
import train as tool
from tiny import CODEBASES, write_config, write_images

ITERATIONS = 5
SETTINGS = f"""
model['backbone'] = dict(
    type='mmcsan.SwinTransformer', window_size=2, drop_path_rate=.5,
    drop_rate=.1,
    arch=dict(embed_dims=24, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2]))
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters={ITERATIONS}, val_interval=100)
train_dataloader['sampler'] = dict(type='InfiniteSampler', shuffle=True)
val_cfg = val_dataloader = val_evaluator = None
optim_wrapper['optimizer'] = dict(type='AdamW', lr=1e-3)
default_hooks['checkpoint'].update(by_epoch=False, interval={ITERATIONS})
log_processor = dict(by_epoch=False)
custom_hooks = [dict(type='mmcsan.ExactResumeHook')]
"""
HEADS = dict(
    mmpretrain="model['head']['in_channels'] = 192",
    mmseg="model['decode_head'].update(in_channels=192, dropout_ratio=.5)",
    mmdet="model['neck']['in_channels'] = [24, 48, 96, 192]")


@pytest.fixture
def deterministic_for_now():
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize('scope', CODEBASES)
def test_equal_bit_for_bit(scope, tmp_path, monkeypatch,
                           deterministic_for_now):
    import mmengine.runner.runner
    monkeypatch.setattr(mmengine.runner.runner, 'collect_env', dict)
    write_images(tmp_path)
    config = write_config(tmp_path / 'run.py', tmp_path, scope)
    text = config.read_text().replace('prob=0.)', 'prob=0.5)')
    config.write_text(text + SETTINGS + HEADS[scope])
    found = []
    for name, seed in (('one', 3), ('two', 3), ('other', 4)):
        monkeypatch.setattr(sys, 'argv', [
            'train', str(config), '--work-dir', str(tmp_path / name),
            '--cfg-options', f'randomness.seed={seed}',
            f'experiment_name={scope}_{name}',
            'randomness.deterministic=True'
        ])
        tool.main()
        found.append(torch.load(
            tmp_path / name / f'iter_{ITERATIONS}.pth',
            weights_only=False)['state_dict'])
    one, two, other = found
    for name, value in one.items():
        assert torch.equal(value, two[name]), name
    # Else equality would say nothing.
    key = 'backbone.stages.0.blocks.0.attn.qkv.weight'
    assert not torch.equal(one[key], other[key])
