"""CSaN-Hiera against the authors' models, modules, tables and rates."""
import json

import pytest
import torch
import torch.nn.functional as F
from parity import names, read, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmcsan.attentions import CSaN, TokenLayout
from mmcsan.backbones import Hiera
from mmcsan.backbones.hiera import HIERA_ARCHS
from mmcsan.checkpoints import load_classification_checkpoint

KIND = 'csan_hiera'
OPTIONS = ('img_size', 'mlp_ratio', 'q_pool', 'q_stride', 'patch_kernel',
           'patch_stride', 'patch_padding', 'use_expand_proj', 'init_values',
           'abs_win_pos_embed', 'qkv_bias')


def windows(meta):
    """Mask units of each stage, in its tokens; None where it sees all."""
    args = meta['args']
    unit = args.get('mask_unit_size', (8, 8))
    stride = args.get('q_stride', (2, 2))
    pools = args.get('q_pool', 3)
    within = args.get('mask_unit_attn', (True, True, False, False))
    return [
        tuple(u // s**min(index, pools) for u, s in zip(unit, stride))
        if inside else None for index, inside in enumerate(within)
    ]


def build(meta):
    args = meta['args']
    options = {key: args[key] for key in OPTIONS if key in args}
    if args.get('abs_win_pos_embed') and 'weight_shapes' in meta:
        options['abs_pos_size'] = meta['weight_shapes']['pos_embed'][2:]
    return Hiera(
        arch=dict(
            embed_dims=args['embed_dim'],
            depths=args['stages'],
            num_heads=args['num_heads']),
        attention=dict(type='CSaN', variant=meta['compensation']),
        window_size=windows(meta),
        norm_cfg=None,
        **options)


def logits(maps, weights):
    x = maps[-1].mean((2, 3))
    weights = {key: value.to(x) for key, value in weights.items()}
    x = F.layer_norm(x, x.shape[-1:], weights['head.norm.weight'],
                     weights['head.norm.bias'], 1e-6)
    return F.linear(x, weights['head.fc.weight'], weights['head.fc.bias'])


def run(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    model = build(meta)
    report = load_classification_checkpoint(model, weights)
    assert report.coverage == 1 and not report.new
    model.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    maps = model(x)
    out = logits(maps, weights)
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    return meta, tensors, maps, out, x.grad


def test_every_variant_has_a_fixture(shared):
    kinds = {
        read(shared / 'parity', name)[0]['compensation']
        for name in names(shared / 'parity', KIND)
    }
    assert kinds == {'bounded', 'unbounded'}


@pytest.mark.parametrize('dtype, absolute, relative', [
    (torch.float64, 1e-10, 1e-6), (torch.float32, 5e-5, 3e-4)])
def test_models(shared, dtype, absolute, relative):
    for name in names(shared / 'parity', KIND):
        meta, tensors, maps, out, grad = run(shared / 'parity', name, dtype)
        assert (out - tensors['output']).abs().max() < absolute, name
        assert len(maps) == len(meta['stage_shapes'])
        for index, stage in enumerate(maps):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < relative, (name, index)
        assert relative_error(grad, tensors['grad_input']) < relative, name


def module_of(meta, weights, dtype):
    args = meta['args']
    module = CSaN(
        args['dim'],
        args['heads'],
        dim_out=args['dim_out'],
        variant=meta['compensation'])
    module.load_state_dict(weights, strict=True)
    return module.to(dtype).eval()


def attend(module, x, args):
    """Their units are the fastest index of the tokens."""
    count = x.shape[1] // (args['q_stride'] * args['window_size'])
    count = count if args['use_mask_unit_attn'] else 1
    # (B, N * W, C) -> (B, N, W, C) -> (B*W, N, C)
    units = x.unflatten(1, (-1, count)).transpose(1, 2).flatten(0, 1)
    layout = TokenLayout((1, units.shape[1]), q_pool=args['q_stride'])
    out = module(units, layout)
    # (B*W, N/s, C) -> (B, N/s * W, C)
    return out.unflatten(0, (len(x), count)).transpose(1, 2).flatten(1, 2)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_modules(shared, dtype):
    found = names(shared / 'parity', 'csan_mask_unit_attention')
    assert len(found) == 5
    for name in found:
        meta, weights, tensors = read(shared / 'parity', name)
        module = module_of(meta, weights, dtype)
        x = tensors['input'].to(dtype).requires_grad_()
        out = attend(module, x, meta['args'])
        if dtype == torch.float32:
            assert (out - tensors['output']).abs().max() < 5e-5, name
            continue
        assert (out - tensors['output']).abs().max() < 1e-10, name
        (out * tensors['cotangent']).sum().backward()
        grads = {key: p.grad for key, p in module.named_parameters()}
        for key, grad in dict(grads, input=x.grad).items():
            theirs = tensors[f'grads/{key}']
            bound = 1e-9 * theirs.abs().max() + 1e-10
            assert (grad - theirs).abs().max() < bound, (name, key)


@pytest.mark.parametrize('dropped', ['act.proj.weight', 'u.bias', 'temp.bias',
                                     'magk.bias', 'ka.bias', 'kv.bias'])
def test_every_term_matters_to_pooled_queries(shared, dropped):
    meta, weights, tensors = read(shared / 'parity',
                                  'mod_csan_maskunit_unbounded_q4')
    weights = dict(weights, **{dropped: torch.zeros_like(weights[dropped])})
    module = module_of(meta, weights, torch.float64)
    out = attend(module, tensors['input'], meta['args'])
    assert relative_error(out, tensors['output']) > 1e-3


def _variants(folder):
    models = json.loads((folder / 'variants.json').read_text())['models']
    for name, row in models.items():
        if row['family'] != KIND:
            continue
        base = name.split(':')[0].rpartition('_')[0]
        options = dict(img_size=row['input_size'], norm_cfg=None)
        if base.endswith('_abswin'):
            base = base[:-len('_abswin')]
            options.update(abs_win_pos_embed=True, init_values=1e-5)
            if base == 'hiera_small':
                options.update(abs_pos_size=16, use_expand_proj=False)
        yield name, row, base.replace('_', '-'), dict(
            options,
            attention=dict(type='CSaN', variant=row['compensation']))


def test_parameters(shared, monkeypatch):
    for module in ('attentions.base', 'backbones.base',
                   'backbones.hiera'):  # slow on the meta device
        monkeypatch.setattr(f'mmcsan.{module}.trunc_normal_',
                            lambda *_, **__: None)
    rows = list(_variants(shared / 'parity'))
    assert {arch for _, _, arch, _ in rows} == set(HIERA_ARCHS)
    for name, row, arch, options in rows:
        with torch.device('meta'):
            model = Hiera(arch, **options)
        head = (model.num_features + 1) * 1000 + 2 * model.num_features
        total = sum(p.numel() for p in model.parameters()) + head
        assert total == row['params'], name


@pytest.mark.parametrize('arch', ['hiera-tiny-plus', 'hiera-small'])
def test_multiply_accumulates(shared, arch, monkeypatch):
    # Fused kernels do products twice rather than keep them.
    monkeypatch.setattr(CSaN, 'fused', False)
    seen = 0
    for name, row, row_arch, options in _variants(shared / 'parity'):
        if row_arch != arch:
            continue
        model = Hiera(arch, **options).eval()
        counter = FlopCounterMode(display=False)
        size = (row['input_size'], ) * 2
        # Resizing positions is no part of their count; done before.
        table = model.positions([s // 4 for s in size]).detach()
        model.positions = lambda _, table=table: table
        # Products inside a fused kernel would not be counted.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(torch.zeros(1, 3, *size))
        counts = {
            str(op): flops // 2
            for op, flops in counter.get_flop_counts()['Global'].items()
        }
        products = sum(c for op, c in counts.items() if 'bmm' in op)
        linear = sum(counts.values()) - products + model.num_features * 1000
        assert linear == row['macs_linear_conv'], name
        assert linear + products == row['macs_with_attention_matmul'], name
        seen += 1
    assert seen >= 2


def test_drop_path_rates(shared):
    path = shared / 'parity' / 'stochastic_depth.json'
    rates = json.loads(path.read_text())['drop_path_rate']
    seen = 0
    for rate, models in rates.items():
        for name, rows in models.items():
            if not name.startswith('csan_hiera_'):
                continue
            depths = list(map(int, name.split('_')[2:]))
            model = Hiera(
                dict(embed_dims=8, depths=depths, num_heads=1),
                drop_path_rate=float(rate))
            blocks = [b for stage in model.stages for b in stage.blocks]
            assert len(blocks) == len(rows)
            for block, row in zip(blocks, rows):
                assert abs(block.drop_path.drop_prob - row['attn']) < 1e-6
                ffn = block.ffn.dropout_layer.drop_prob
                assert abs(ffn - row['ffn']) < 1e-6
                seen += 1
    assert seen >= 12 * 3
