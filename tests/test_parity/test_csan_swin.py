"""CSaN-Swin against the authors' models, tables and drop-path rates."""
import json

import pytest
import torch
import torch.nn.functional as F
from parity import names, read, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmcsan.attentions import CSaN
from mmcsan.backbones import SwinTransformer
from mmcsan.backbones.swin import SWIN_ARCHS
from mmcsan.checkpoints import load_classification_checkpoint

KIND = 'csan_swin'


def build(meta):
    args = meta['args']
    return SwinTransformer(
        arch=dict(
            embed_dims=args['embed_dim'],
            depths=args['depths'],
            num_heads=args['num_heads']),
        attention=dict(
            type='CSaN',
            variant=meta['compensation'],
            posinfo=meta['posinfo']),
        img_size=args['img_size'],
        patch_size=args['patch_size'],
        window_size=args['window_size'],
        mlp_ratio=args['mlp_ratio'],
        norm_cfg=None)


def logits(maps, weights):
    x = maps[-1].permute(0, 2, 3, 1)
    x = F.layer_norm(x, x.shape[-1:], weights['norm.weight'].to(x),
                     weights['norm.bias'].to(x))
    return F.linear(
        x.mean((1, 2)), weights['head.fc.weight'].to(x),
        weights['head.fc.bias'].to(x))


def run(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    model = build(meta)
    report = load_classification_checkpoint(model, weights)
    assert report.coverage == 1 and not report.new
    # Weights of the fixtures are exact in float32, which the model had.
    model.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    maps = model(x)
    out = logits(maps, weights)
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    return meta, tensors, maps, out, x.grad


def test_every_variant_has_a_fixture(shared):
    metas = [
        read(shared / 'parity', name)[0]
        for name in names(shared / 'parity', KIND)
    ]
    assert {(m['compensation'], m['posinfo']) for m in metas} == {
        (c, p) for c in ('bounded', 'unbounded') for p in (True, False)}


def test_float64(shared):
    for name in names(shared / 'parity', KIND):
        meta, tensors, maps, out, grad = run(shared / 'parity', name,
                                             torch.float64)
        assert (out - tensors['output']).abs().max() < 1e-10, name
        assert len(maps) == len(meta['stage_shapes'])
        for index, stage in enumerate(maps):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < 1e-6, (name, index)
        assert relative_error(grad, tensors['grad_input']) < 1e-6, name


def test_float32(shared):
    for name in names(shared / 'parity', KIND):
        _, tensors, maps, out, grad = run(shared / 'parity', name,
                                          torch.float32)
        assert (out - tensors['output']).abs().max() < 5e-5, name
        for index, stage in enumerate(maps):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < 3e-4, (name, index)
        assert relative_error(grad, tensors['grad_input']) < 3e-4, name


def _variants(folder):
    models = json.loads((folder / 'variants.json').read_text())['models']
    for name, row in models.items():
        base = name.split(':')[0]
        plain = base.startswith('plain_swin')
        if not plain and not row['family'].startswith('csan_swin'):
            continue
        arch = base.replace('plain_', '').replace('_csan', '').replace(
            '_v2', '').replace('_', '-')
        attention = 'Softmax' if plain else dict(
            type='CSaN',
            variant=row['compensation'],
            posinfo=row['family'].endswith('v2'))
        yield name, row, arch, attention


def test_parameters(shared):
    rows = list(_variants(shared / 'parity'))
    assert {arch for _, _, arch, _ in rows} == set(SWIN_ARCHS)
    for name, row, arch, attention in rows:
        with torch.device('meta'):
            model = SwinTransformer(arch, attention, out_indices=(3, ))
        head = (model.num_features + 1) * 1000
        total = sum(p.numel() for p in model.parameters()) + head
        assert total == row['params'], name


@pytest.mark.parametrize('arch', ['swin-min', 'swin-tiny-slim', 'swin-tiny'])
def test_multiply_accumulates(shared, arch, monkeypatch):
    # Fused kernels do products twice rather than keep them.
    monkeypatch.setattr(CSaN, 'fused', False)
    for name, row, row_arch, attention in _variants(shared / 'parity'):
        if row_arch != arch or 'macs_linear_conv' not in row:
            continue
        # Products inside a fused kernel would not be counted.
        model = SwinTransformer(arch, attention, out_indices=(3, )).eval()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(torch.zeros(1, 3, 224, 224))
        counts = {
            str(op): flops // 2
            for op, flops in counter.get_flop_counts()['Global'].items()
        }
        products = sum(
            count for op, count in counts.items()
            if 'bmm' in op)
        head = model.num_features * 1000
        linear = sum(counts.values()) - products + head
        assert linear == row['macs_linear_conv'], name
        if 'macs_with_attention_matmul' in row:
            both = linear + products
            assert both == row['macs_with_attention_matmul'], name


def test_drop_path_rates(shared):
    path = shared / 'parity' / 'stochastic_depth.json'
    rates = json.loads(path.read_text())['drop_path_rate']
    seen = 0
    for rate, models in rates.items():
        for name, rows in models.items():
            if not name.startswith('csan_swin_'):
                continue
            depths = list(map(int, name.split('_')[2:]))
            model = SwinTransformer(
                dict(
                    embed_dims=32, depths=depths,
                    num_heads=[1] * len(depths)),
                drop_path_rate=float(rate))
            blocks = [b for stage in model.stages for b in stage.blocks]
            assert len(blocks) == len(rows)
            for block, row in zip(blocks, rows):
                assert abs(block.drop_path.drop_prob - row['attn']) < 1e-6
                ffn = block.ffn.dropout_layer.drop_prob
                assert abs(ffn - row['ffn']) < 1e-6
                seen += 1
    assert seen >= 12 * 3
