"""Pola-Swin against the authors' modules, models and tables."""
import json

import pytest
import torch
import torch.nn.functional as F
from parity import names, read, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmcsan.attentions import Pola, Softmax, TokenLayout
from mmcsan.backbones import SwinTransformer
from mmcsan.checkpoints import load_classification_checkpoint

LINEAR, SOFTMAX = 'pola_swin_linear_attention', 'pola_swin_softmax_attention'


def plan(args):
    """Attentions and windows of each block, by the authors' attn_type."""
    stages, linear = args['attn_type'][:4], args['attn_type'][4:]
    stages = stages[:len(args['depths'])]
    pola = dict(
        type='Pola',
        alpha=args.get('alpha', 4),
        kernel_size=args.get('kernel_size', 5),
        hard_shift_mask=False)
    window = args['window_size']
    small = 12 if window > 56 else 7
    attentions, windows = [], []
    for kind, depth in zip(stages, args['depths']):
        count = {'L': depth, 'S': 0}.get(kind)
        if count is None:
            count = int(linear)
        attentions.append([pola] * count + ['Softmax'] * (depth - count))
        windows.append([window] * count + [small] * (depth - count))
    return attentions, windows


def build(args, **kwargs):
    attentions, windows = plan(args)
    return SwinTransformer(
        dict(
            embed_dims=args['embed_dim'],
            depths=args['depths'],
            num_heads=args['num_heads']),
        attentions,
        img_size=args['img_size'],
        patch_size=args.get('patch_size', 4),
        in_channels=args.get('in_chans', 3),
        window_size=windows,
        mlp_ratio=args.get('mlp_ratio', 4.),
        norm_cfg=None,
        **kwargs)


def module(meta):
    args = dict(meta['args'])
    window = args.pop('window_size')
    cls = Pola if meta['kind'] == LINEAR else Softmax
    return cls(grid_size=window, **args)


def run_module(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    attention = module(meta)
    attention.load_state_dict(weights, strict=True)
    attention.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    mask = tensors['mask'].to(dtype) if 'mask' in tensors else None
    out = attention(x, TokenLayout(attention.grid_size, mask=mask))
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    grads = {key: p.grad for key, p in attention.named_parameters()}
    return tensors, out.detach(), dict(grads, input=x.grad)


def modules(folder):
    found = [n for kind in (LINEAR, SOFTMAX) for n in names(folder, kind)]
    assert len(found) >= 3
    return found


def test_modules_in_float64(shared):
    for name in modules(shared / 'parity'):
        tensors, out, grads = run_module(shared / 'parity', name,
                                         torch.float64)
        assert (out - tensors['output']).abs().max() < 1e-10, name
        for key, grad in grads.items():
            theirs = tensors[f'grads/{key}']
            bound = 1e-9 * theirs.abs().max() + 1e-10
            assert (grad - theirs).abs().max() < bound, (name, key)


def test_modules_in_float32(shared):
    for name in modules(shared / 'parity'):
        tensors, out, grads = run_module(shared / 'parity', name,
                                         torch.float32)
        assert (out - tensors['output']).abs().max() < 5e-5, name
        for key, grad in grads.items():
            error = relative_error(grad, tensors[f'grads/{key}'])
            assert error < 3e-4, (name, key)


def run(folder, name, dtype, **kwargs):
    meta, weights, tensors = read(folder, name)
    model = build(meta['args'], **kwargs)
    report = load_classification_checkpoint(model, weights)
    assert report.coverage == 1 and not report.new and not report.resized
    model.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    maps = model(x)
    out = maps[-1].permute(0, 2, 3, 1)
    out = F.layer_norm(out, out.shape[-1:], weights['norm.weight'].to(out),
                       weights['norm.bias'].to(out))
    out = F.linear(
        out.mean((1, 2)), weights['head.weight'].to(out),
        weights['head.bias'].to(out))
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    return meta, tensors, maps, out, x.grad


@pytest.mark.parametrize('dtype, bound, relative', [
    (torch.float64, 1e-10, 1e-6),
    (torch.float32, 5e-5, 3e-4),
])
def test_models(shared, dtype, bound, relative):
    found = names(shared / 'parity', 'pola_swin')
    assert len(found) >= 2
    for name in found:
        meta, tensors, maps, out, grad = run(shared / 'parity', name, dtype)
        assert (out - tensors['output']).abs().max() < bound, name
        assert len(maps) == len(meta['stage_shapes'])
        for index, stage in enumerate(maps):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < relative, (name, index)
        assert relative_error(grad, tensors['grad_input']) < relative, name


def test_whole_maps_are_the_default_of_pretraining(shared):
    """Without windows given, the released model at its own size is the same:
    its linear stages see the whole map."""
    meta, weights, tensors = read(shared / 'parity', 'pola_swin_global56_LLSS')
    args = meta['args']
    model = SwinTransformer(
        dict(
            embed_dims=args['embed_dim'],
            depths=args['depths'],
            num_heads=args['num_heads']), ['Pola', 'Pola', 'Softmax',
                                           'Softmax'],
        img_size=args['img_size'],
        patch_size=args['patch_size'],
        in_channels=args['in_chans'],
        mlp_ratio=args['mlp_ratio'],
        norm_cfg=None)
    load_classification_checkpoint(model, weights)
    maps = model.double().eval()(tensors['input'].double())
    for index, stage in enumerate(maps):
        assert relative_error(stage, tensors[f'stage{index}']) < 1e-6, index


def variants(folder):
    models = json.loads((folder / 'variants.json').read_text())['models']
    return {
        name: row
        for name, row in models.items() if row['family'] == 'pola_swin'
    }


def test_parameters(shared):
    rows = variants(shared / 'parity')
    assert len(rows) >= 4
    for name, row in rows.items():
        with torch.device('meta'):
            model = build(
                dict(row, img_size=row['input_size']), out_indices=(3, ))
        head = (model.num_features + 1) * 1000 + 2 * model.num_features
        total = sum(p.numel() for p in model.parameters()) + head
        assert total == row['params'], name


def test_multiply_accumulates(shared):
    row = variants(shared / 'parity')['pola_swin_t']
    model = build(dict(row, img_size=224), out_indices=(3, )).eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(torch.zeros(1, 3, 224, 224))
    counts = counter.get_flop_counts()['Global']
    products = sum(n for op, n in counts.items() if 'bmm' in str(op)) // 2
    linear = sum(counts.values()) // 2 - products + model.num_features * 1000
    assert linear == row['macs_linear_conv']
    # Their two products of each kind are one here, which also holds the
    # denominators: 2 more columns for each head of 2d rows.
    assert products >= row['macs_with_attention_matmul'] - row[
        'macs_linear_conv']
