"""PVT with Pola and softmax against the authors' modules and models."""
import json

import pytest
import torch
import torch.nn.functional as F
from parity import names, read, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmcsan.attentions import Pola, Softmax, TokenLayout
from mmcsan.backbones import PyramidVisionTransformer
from mmcsan.backbones.pvt import PVT_ARCHS
from mmcsan.checkpoints import load_classification_checkpoint

KIND = 'pola_pvt'
MODULES = {
    'pola_pvt_linear_attention': Pola,
    'pola_pvt_softmax_attention': Softmax
}
LETTERS = dict(L='Pola', S='Softmax')


def run_module(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    args, grid = meta['args'], tuple(meta['forward_kwargs'].values())
    ratio = args['sr_ratio']
    module = MODULES[meta['kind']](
        args['dim'],
        args['num_heads'],
        grid_size=tuple(-(-side // ratio) for side in grid),
        rel_pos_bias=False,
        sr_ratio=ratio,
        qkv_bias=args['qkv_bias'])
    module.load_state_dict(weights, strict=True)
    module.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    out = module(x, TokenLayout(grid))
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return tensors, out.detach(), dict(grads, input=x.grad)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_modules(shared, dtype):
    folder = shared / 'parity'
    found = [n for kind in MODULES for n in names(folder, kind)]
    assert len(found) >= 3
    for name in found:
        tensors, out, grads = run_module(folder, name, dtype)
        exact = dtype == torch.float64
        bound = 1e-10 if exact else 5e-5
        assert (out - tensors['output']).abs().max() < bound, name
        for key, grad in grads.items():
            theirs = tensors[f'grads/{key}']
            bound = (1e-9 if exact else 3e-4) * theirs.abs().max() + 1e-10
            assert (grad - theirs).abs().max() < bound, (name, key)


def build(meta):
    args = meta['args']
    return PyramidVisionTransformer(
        dict(
            embed_dims=args['embed_dims'],
            depths=args['depths'],
            num_heads=args['num_heads'],
            mlp_ratios=args['mlp_ratios']),
        attention=[LETTERS[letter] for letter in args['attn_type']],
        sr_ratios=args['sr_ratios'],
        linear_sr_ratios=list(map(int, args['la_sr_ratios'])),
        img_size=args['img_size'],
        patch_size=args['patch_size'],
        qkv_bias=args['qkv_bias'])


def run(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    model = build(meta)
    report = load_classification_checkpoint(model, weights)
    assert report.coverage == 1 and not report.new
    assert set(report.dropped) == {
        'norm.weight', 'norm.bias', 'head.weight', 'head.bias'
    }
    model.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    maps = model(x)
    out = F.linear(maps[-1].mean((2, 3)), weights['head.weight'].to(dtype),
                   weights['head.bias'].to(dtype))
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    return tensors, maps, out, x.grad


@pytest.mark.parametrize('dtype, whole, part', [
    (torch.float64, 1e-10, 1e-6),
    (torch.float32, 5e-5, 3e-4),
])
def test_models(shared, dtype, whole, part):
    found = names(shared / 'parity', KIND)
    assert len(found) >= 2
    for name in found:
        tensors, maps, out, grad = run(shared / 'parity', name, dtype)
        assert (out - tensors['output']).abs().max() < whole, name
        assert len(maps) == 4
        for index, stage in enumerate(maps):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < part, (name, index)
        assert relative_error(grad, tensors['grad_input']) < part, name


def _variants(folder):
    models = json.loads((folder / 'variants.json').read_text())['models']
    for name, row in models.items():
        if row['family'] == KIND:
            arch = name.split(':')[0].replace('pola_', '').replace('_', '-')
            yield name, row, arch, list(map(int, row['la_sr_ratios']))


def test_parameters(shared):
    rows = list(_variants(shared / 'parity'))
    assert {arch for _, _, arch, _ in rows} == set(PVT_ARCHS)
    for name, row, arch, ratios in rows:
        with torch.device('meta'):
            model = PyramidVisionTransformer(arch, linear_sr_ratios=ratios)
        # The classifier, and a norm that the released code never uses.
        head = (model.num_features + 1) * 1000 + 2 * model.num_features
        total = sum(p.numel() for p in model.parameters()) + head
        assert total == row['params'], name
        for key, value in PVT_ARCHS[arch].items():
            assert value == row[key]


def test_multiply_accumulates(shared):
    for name, row, arch, ratios in _variants(shared / 'parity'):
        if arch != 'pvt-tiny':
            continue
        model = PyramidVisionTransformer(arch, linear_sr_ratios=ratios).eval()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(torch.zeros(1, 3, 224, 224))
        counts = {
            str(op): flops // 2
            for op, flops in counter.get_flop_counts()['Global'].items()
        }
        products = sum(c for op, c in counts.items() if 'bmm' in op)
        head = model.num_features * 1000
        linear = sum(counts.values()) - products + head
        assert linear == row['macs_linear_conv'], name
        assert linear + products == row['macs_with_attention_matmul'], name


def test_drop_path_rates(shared):
    path = shared / 'parity' / 'stochastic_depth.json'
    rates = json.loads(path.read_text())['drop_path_rate']
    seen = 0
    for rate, models in rates.items():
        for name, rows in models.items():
            if not name.startswith('pola_pvt_'):
                continue
            depths = list(map(int, name.split('_')[2:]))
            model = PyramidVisionTransformer(
                dict(
                    embed_dims=[8] * 4,
                    depths=depths,
                    num_heads=[1] * 4,
                    mlp_ratios=[1] * 4),
                img_size=32,
                drop_path_rate=float(rate))
            blocks = [b for stage in model.stages for b in stage.blocks]
            assert len(blocks) == len(rows)
            for block, row in zip(blocks, rows):
                assert abs(block.drop_path.drop_prob - row['attn']) < 1e-6
                ffn = block.ffn.dropout_layer.drop_prob
                assert abs(ffn - row['ffn']) < 1e-6
                seen += 1
    assert seen >= 12 * 2
