"""The hook that logs what attentions decide in training."""
import json

import pytest
import torch
import torch.nn as nn
from mmengine.model import BaseModel
from mmengine.runner import Runner
from PIL import Image
from torch.utils.data import Dataset
from torch.utils.flop_counter import FlopCounterMode

import mmcsan.engine.attention_stats  # noqa: F401  registers it
from mmcsan.engine.attention_stats import AttentionStatsHook
from mmcsan.registry import MODELS
from mmcsan.visualization import record_attention

SWIN = dict(
    type='mmcsan.SwinTransformer',
    arch=dict(embed_dims=24, depths=[1, 1, 2], num_heads=[1, 2, 2]),
    attention=['CSaN', 'Pola', 'Softmax'],
    window_size=[4, None, 4])


class Images(Dataset):

    def __len__(self):
        return 8

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 33, 50, generator=generator)


class Classifier(BaseModel):

    def __init__(self, backbone=SWIN):
        super().__init__()
        self.backbone = MODELS.build(backbone)
        self.head = nn.LazyLinear(1)
        self(torch.zeros(1, 3, 33, 50))

    def forward(self, inputs, mode='tensor'):
        if isinstance(inputs, list):
            inputs = torch.stack(inputs)
        out = self.head(self.backbone(inputs)[-1].mean((2, 3)))
        return dict(loss=out.square().mean()) if mode == 'loss' else out

    def _run_forward(self, data, mode):
        return self(data, mode=mode)


def train(work_dir, hooks, model=None, max_iters=5, **options):
    torch.manual_seed(0)
    name = f'{work_dir.name}-{len(hooks)}'
    runner = Runner(
        model or Classifier(), str(work_dir),
        train_dataloader=dict(
            batch_size=2, dataset=Images(),
            sampler=dict(type='InfiniteSampler', shuffle=False)),
        train_cfg=dict(by_epoch=False, max_iters=max_iters),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        custom_hooks=hooks, experiment_name=name, log_level='WARNING',
        randomness=dict(seed=0),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1),
            checkpoint=dict(
                type='CheckpointHook', by_epoch=False, interval=max_iters)),
        **options)
    runner.train()
    return runner


def scalars_of(work_dir):
    path, = work_dir.glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if any('attention/' in k for k in line)]


def test_logs_and_draws_and_changes_nothing(tmp_path):
    hook = dict(type='mmcsan.AttentionStatsHook', interval=2)
    plain = train(tmp_path / 'plain', [])
    logged = train(tmp_path / 'logged', [hook])
    for a, b in zip(plain.model.parameters(), logged.model.parameters()):
        assert torch.equal(a, b)
    lines = scalars_of(tmp_path / 'logged')
    assert [line['step'] for line in lines] == [1, 3, 5]
    first = 'attention/stages.0.blocks.0.attn/'
    keys = {k.replace(first, '') for k in lines[0] if k.startswith(first)}
    assert keys == {f'{name}_{kind}' for kind in ('mean', 'std') for name in (
        'temperature', 'amplification', 'public_gain', 'private_gain',
        'entropy')} | {'private_share'}
    for name in ('power', 'negative_queries', 'negative_keys', 'gate'):
        assert f'attention/stages.1.blocks.0.attn/{name}_mean' in lines[0]
    assert lines[0]['attention/stages.1.blocks.0.attn/power_mean'] == 3
    assert 'attention/stages.2.blocks.1.attn/entropy_mean' in lines[0]
    assert Image.open(tmp_path / 'logged' / 'attention_stats.png').width > 500
    assert not (tmp_path / 'plain' / 'attention_stats.png').exists()
    log, = (tmp_path / 'logged').glob('*/*.log')
    assert 'temperature' not in log.read_text()


def test_scalars_are_those_of_the_forward(tmp_path):
    model = Classifier()
    images = torch.stack([Images()[i] for i in range(2)])
    with record_attention(model, entropy=True) as records:
        model(images)
    record = records['backbone.stages.0.blocks.0.attn']
    expect = {
        'temperature_mean': record.maps['temperature'].mean(),
        'amplification_std': record.maps['amplification'].std(correction=0),
        'entropy_mean': record.maps['entropy'].mean(),
    }
    train(tmp_path, [dict(type='mmcsan.AttentionStatsHook')], model,
          max_iters=1)
    line, = scalars_of(tmp_path)
    for name, value in expect.items():
        found = line[f'attention/stages.0.blocks.0.attn/{name}']
        assert found == pytest.approx(value.item(), rel=1e-5)


def test_a_model_that_comes_apart_has_curves_too(tmp_path):
    model = Classifier()
    hook = dict(type='mmcsan.AttentionStatsHook', interval=1)
    with torch.no_grad():
        model.head.bias.fill_(float('inf'))
    train(tmp_path, [hook], model, max_iters=2)
    first, second = scalars_of(tmp_path)
    key = 'attention/stages.0.blocks.0.attn/temperature_mean'
    assert first[key] == first[key] and second[key] != second[key]
    assert (tmp_path / 'attention_stats.png').exists()


def test_resumed_runs_have_whole_curves(tmp_path):
    hook = dict(type='mmcsan.AttentionStatsHook', interval=2)
    train(tmp_path, [hook], max_iters=3)
    runner = train(tmp_path, [hook], max_iters=6, resume=True,
                   load_from=str(tmp_path / 'iter_3.pth'))
    steps = runner.message_hub.get_scalar('attention/iteration').data[0]
    assert steps.tolist() == [1, 3, 5]


@pytest.mark.parametrize('attention', ['CSaN', 'Pola', 'PolaPP', 'Softmax'])
@pytest.mark.parametrize('side', [56, 224])
def test_costs_at_most_three_percent_of_the_forward(attention, side):
    """Multiply-accumulates of all products, counted, not timed."""
    model = MODELS.build(
        dict(
            type='mmcsan.SwinTransformer',
            arch='swin-min',
            attention=attention)).train()
    x = torch.zeros(1, 3, side, side)
    hook = AttentionStatsHook()
    with FlopCounterMode(display=False) as forward:
        model(x)
    with FlopCounterMode(display=False) as watched, record_attention(
            model, entropy=hook.rows):
        model(x)
    extra = watched.get_total_flops() - forward.get_total_flops()
    assert 0 < extra
    assert extra <= 0.03 * hook.interval * forward.get_total_flops()
    with FlopCounterMode(display=False) as free, record_attention(model):
        model(x)
    assert free.get_total_flops() == forward.get_total_flops()


@pytest.mark.parametrize('options, word', [
    (dict(interval=0), 'interval=0'),
    (dict(rows=-1), 'rows=-1'),
])
def test_bad_arguments(options, word):
    with pytest.raises(ValueError, match=word):
        AttentionStatsHook(**options)


def test_refuses_a_model_without_attentions(tmp_path):
    model = Classifier()
    model.backbone = nn.Conv2d(3, 24, 3)
    with pytest.raises(ValueError, match='no attention of mmcsan'):
        train(tmp_path, [dict(type='mmcsan.AttentionStatsHook')], model)
