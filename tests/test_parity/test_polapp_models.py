"""PolaFormer++ against the authors' models, tables and drop-path rates."""
import json

import pytest
import torch
import torch.nn.functional as F
from parity import names, read, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmcsan.backbones import PolaFormerPP
from mmcsan.backbones.polaformer_pp import POLAFORMER_PP_ARCHS
from mmcsan.checkpoints import load_classification_checkpoint

KINDS = ('polapp', 'polapp_backbone')


def build(meta):
    args = meta['args']
    scales = [
        value if on else None
        for value, on in zip(args['layer_init_values'], args['layerscales'])
    ]
    return PolaFormerPP(
        dict(
            embed_dims=args['embed_dims'],
            depths=args['depths'],
            num_heads=args['num_heads'],
            layer_scale=scales),
        mlp_ratio=args['mlp_ratios'],
        norm_cfg=dict(type='LN', eps=1e-6)
        if meta['kind'] == 'polapp_backbone' else None)


def logits(maps, weights):
    def get(name):
        return weights[name].to(maps[-1])

    x = F.conv2d(maps[-1], get('proj.weight'), get('proj.bias'))
    x = F.batch_norm(x, get('norm.running_mean'), get('norm.running_var'),
                     get('norm.weight'), get('norm.bias'))
    x = F.silu(x).mean((2, 3), keepdim=True)
    return F.conv2d(x, get('head.weight'), get('head.bias')).flatten(1)


def run(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    model = build(meta)
    report = load_classification_checkpoint(model, weights)
    assert report.coverage == 1
    assert all('num_batches_tracked' in key for key in report.new)
    model.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    raw = []
    hooks = [
        stage.register_forward_hook(lambda m, i, out: raw.append(out))
        for stage in model.stages
    ]
    maps = model(x)
    for hook in hooks:
        hook.remove()
    raw = [out.permute(0, 3, 1, 2) for out in raw]
    if 'output' in tensors:
        pairs = [(logits(maps, weights), tensors['output'],
                  tensors['cotangent'])]
    else:
        pairs = [(out, tensors[f'output{i}'], tensors[f'cotangent{i}'])
                 for i, out in enumerate(maps)]
    sum((out * r.to(dtype)).sum() for out, _, r in pairs).backward()
    return tensors, raw, pairs, x.grad


def fixtures(folder):
    found = [n for kind in KINDS for n in names(folder, kind)]
    assert len(found) >= 2
    return found


@pytest.mark.parametrize('dtype, whole, part', [
    (torch.float64, 1e-10, 1e-6),
    (torch.float32, 5e-5, 3e-4),
])
def test_models(shared, dtype, whole, part):
    for name in fixtures(shared / 'parity'):
        tensors, raw, pairs, grad = run(shared / 'parity', name, dtype)
        for out, theirs, _ in pairs:
            assert (out - theirs).abs().max() < whole, name
        for index, stage in enumerate(raw):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < part, (name, index)
        assert relative_error(grad, tensors['grad_input']) < part, name


def _variants(folder):
    models = json.loads((folder / 'variants.json').read_text())['models']
    for name, row in models.items():
        if row['family'] == 'polapp':
            yield name.replace('pola_', ''), row


def test_parameters(shared):
    rows = dict(_variants(shared / 'parity'))
    assert set(rows) == set(POLAFORMER_PP_ARCHS)
    for arch, row in rows.items():
        with torch.device('meta'):
            model = PolaFormerPP(arch, norm_cfg=None)
        width = row['projection']
        # 1x1 convolution, batch norm and classifier
        head = (model.num_features + 1) * width + 2 * width + (
            width + 1) * 1000
        total = sum(p.numel() for p in model.parameters()) + head
        assert total == row['params'], arch
        for key in ('embed_dims', 'depths', 'num_heads'):
            assert POLAFORMER_PP_ARCHS[arch][key] == row[key]
        scales = POLAFORMER_PP_ARCHS[arch]['layer_scale']
        assert scales == row['layer_init_values']


@pytest.mark.parametrize('arch', ['b0', 'b2'])
def test_multiply_accumulates(shared, arch):
    row = dict(_variants(shared / 'parity'))[arch]
    model = PolaFormerPP(arch, norm_cfg=None).eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(torch.zeros(1, 3, 224, 224))
    counts = {
        str(op): flops // 2
        for op, flops in counter.get_flop_counts()['Global'].items()
    }
    products = sum(c for op, c in counts.items() if 'bmm' in op)
    width = row['projection']
    head = model.num_features * width * 49 + width * 1000
    linear = sum(counts.values()) - products + head
    assert linear == row['macs_linear_conv']
    assert linear + products == row['macs_with_attention_matmul']


def test_drop_path_rates(shared):
    path = shared / 'parity' / 'stochastic_depth.json'
    rates = json.loads(path.read_text())['drop_path_rate']
    seen = 0
    for rate, models in rates.items():
        for name, rows in models.items():
            if not name.startswith('polapp_'):
                continue
            depths = list(map(int, name.split('_')[1:]))
            model = PolaFormerPP(
                dict(
                    embed_dims=[8] * 4,
                    depths=depths,
                    num_heads=[1] * 4,
                    layer_scale=[1] * 4),
                drop_path_rate=float(rate))
            blocks = [b for stage in model.stages for b in stage.blocks]
            assert len(blocks) == len(rows)
            for block, row in zip(blocks, rows):
                assert abs(block.drop_path1.drop_prob - row['attn']) < 1e-6
                assert abs(block.drop_path2.drop_prob - row['ffn']) < 1e-6
                seen += 1
    assert seen >= 12 * 2
