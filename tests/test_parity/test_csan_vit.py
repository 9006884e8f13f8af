"""CSaN-ViT against the authors' models, modules, tables and rates."""
import json

import pytest
import torch
import torch.nn.functional as F
from parity import names, read, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmcsan.attentions import CSaN, TokenLayout
from mmcsan.backbones import VisionTransformer
from mmcsan.backbones.vision_transformer import VIT_ARCHS
from mmcsan.checkpoints import load_classification_checkpoint

KIND = 'csan_vit'
OPTIONS = ('img_size', 'patch_size', 'mlp_ratio', 'class_token', 'reg_tokens',
           'no_embed_class', 'qkv_bias', 'qk_norm', 'init_values')


def build(meta):
    args = meta['args']
    return VisionTransformer(
        arch=dict(
            embed_dims=args['embed_dim'],
            depth=args['depth'],
            num_heads=args['num_heads']),
        attention=dict(type='CSaN', variant=meta['compensation']),
        out_indices=range(args['depth']),
        out_type='raw',
        norm_cfg=None,
        **{key: args[key] for key in OPTIONS if key in args})


def logits(tokens, weights, prefix, pool):
    weights = {key: value.to(tokens) for key, value in weights.items()}
    pooled = pool == 'avg'
    x = tokens[:, prefix:].mean(1) if pooled else tokens[:, 0]
    norm = 'fc_norm' if pooled else 'norm'
    x = F.layer_norm(x, x.shape[-1:], weights[f'{norm}.weight'],
                     weights[f'{norm}.bias'], 1e-6)
    return F.linear(x, weights['head.weight'], weights['head.bias'])


def run(folder, name, dtype):
    meta, weights, tensors = read(folder, name)
    model = build(meta)
    report = load_classification_checkpoint(model, weights)
    assert report.coverage == 1 and not report.new
    model.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    outs = model(x)
    out = logits(outs[-1], weights, model.num_prefix,
                 meta['args'].get('global_pool', 'token'))
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    stages = [
        o[:, model.num_prefix:].transpose(1, 2).unflatten(2, model.pos_grid)
        for o in outs
    ]
    return meta, tensors, stages, out, x.grad


def test_every_variant_has_a_fixture(shared):
    metas = [
        read(shared / 'parity', name)[0]
        for name in names(shared / 'parity', KIND)
    ]
    assert {m['compensation'] for m in metas} == {'bounded', 'unbounded'}
    for option in ('reg_tokens', 'init_values', 'qk_norm', 'no_embed_class'):
        assert any(m['args'].get(option) for m in metas)


@pytest.mark.parametrize('dtype, absolute, relative', [
    (torch.float64, 1e-10, 1e-6), (torch.float32, 5e-5, 3e-4)])
def test_models(shared, dtype, absolute, relative):
    for name in names(shared / 'parity', KIND):
        meta, tensors, stages, out, grad = run(shared / 'parity', name, dtype)
        assert (out - tensors['output']).abs().max() < absolute, name
        assert len(stages) == len(meta['stage_shapes'])
        for index, stage in enumerate(stages):
            theirs = tensors[f'stage{index}']
            assert relative_error(stage, theirs) < relative, (name, index)
        assert relative_error(grad, tensors['grad_input']) < relative, name


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_modules(shared, dtype):
    found = names(shared / 'parity', 'csan_vit_attention')
    assert len(found) == 3
    for name in found:
        meta, weights, tensors = read(shared / 'parity', name)
        args = meta['args']
        module = CSaN(
            args['dim'],
            args['num_heads'],
            qkv_bias=args['qkv_bias'],
            qk_norm=args.get('qk_norm', False),
            variant=meta['compensation'])
        module.load_state_dict(weights, strict=True)
        module.to(dtype).eval()
        x = tensors['input'].to(dtype).requires_grad_()
        out = module(x, TokenLayout((1, x.shape[1] - 1), prefix=1))
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


@pytest.mark.parametrize('dropped', [
    'cls_token', 'reg_token', 'pos_embed', 'blocks.0.ls1.gamma',
    'blocks.1.ls2.gamma', 'blocks.0.attn.q_norm.weight',
    'blocks.0.attn.k_norm.bias', 'blocks.1.attn.temp.bias'])
def test_every_term_matters(shared, dropped):
    name = 'csan_vit_unbounded_reg_ls_qknorm'
    meta, weights, tensors = read(shared / 'parity', name)
    weights = dict(weights, **{dropped: torch.zeros_like(weights[dropped])})
    model = build(meta)
    load_classification_checkpoint(model, weights)
    out = logits(model.double().eval()(tensors['input'].double())[-1],
                 weights, model.num_prefix, 'token')
    assert relative_error(out, tensors['output']) > 1e-4


def test_average_pooling(shared):
    """Its norm comes after pooling: it is the head's, the backbone's new."""
    _, weights, tensors = read(shared / 'parity', 'csan_vit_unbounded_cls')
    meta, _, _ = read(shared / 'parity', 'csan_vit_unbounded_cls')
    weights = {f'fc_{key}' if key.startswith('norm') else key: value
               for key, value in weights.items()}
    model = build(meta)
    report = load_classification_checkpoint(model, weights)
    assert {'fc_norm.weight', 'fc_norm.bias'} < set(report.dropped)
    model.norm2 = torch.nn.LayerNorm(32)
    report = load_classification_checkpoint(model, weights)
    assert set(report.new) == {'norm2.weight', 'norm2.bias'}


def _variants(folder):
    models = json.loads((folder / 'variants.json').read_text())['models']
    for name, row in models.items():
        if row['family'] == KIND:
            arch = name.split(':')[0].split('_patch')[0].replace('_', '-')
            yield name, row, arch, dict(
                type='CSaN', variant=row['compensation'])


def test_parameters(shared, monkeypatch):
    for module in ('attentions.base', 'backbones.base',
                   'backbones.vision_transformer'):  # slow on the meta device
        monkeypatch.setattr(f'mmcsan.{module}.trunc_normal_',
                            lambda *_, **__: None)
    rows = list(_variants(shared / 'parity'))
    assert {arch for _, _, arch, _ in rows} == set(VIT_ARCHS)
    for name, row, arch, attention in rows:
        with torch.device('meta'):
            model = VisionTransformer(
                arch, attention, patch_size=row['patch_size'])
        head = (model.num_features + 1) * 1000
        total = sum(p.numel() for p in model.parameters()) + head
        assert total == row['params'], name


@pytest.mark.parametrize('arch', ['vit-tiny', 'vit-base-slim'])
def test_multiply_accumulates(shared, arch, monkeypatch):
    # Fused kernels do products twice rather than keep them.
    monkeypatch.setattr(CSaN, 'fused', False)
    seen = 0
    for name, row, row_arch, attention in _variants(shared / 'parity'):
        if row_arch != arch:
            continue
        model = VisionTransformer(
            arch, attention, patch_size=row['patch_size']).eval()
        counter = FlopCounterMode(display=False)
        # Products inside a fused kernel would not be counted.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(torch.zeros(1, 3, 224, 224))
        counts = {
            str(op): flops // 2
            for op, flops in counter.get_flop_counts()['Global'].items()
        }
        products = sum(c for op, c in counts.items() if 'bmm' in op)
        linear = sum(counts.values()) - products + model.num_features * 1000
        assert linear == row['macs_linear_conv'], name
        assert linear + products == row['macs_with_attention_matmul'], name
        seen += 1
    assert seen == 2


def test_drop_path_rates(shared):
    path = shared / 'parity' / 'stochastic_depth.json'
    rates = json.loads(path.read_text())['drop_path_rate']
    seen = 0
    for rate, models in rates.items():
        for name, rows in models.items():
            if not name.startswith('csan_vit_'):
                continue
            depth = int(name.split('_')[2])
            model = VisionTransformer(
                dict(embed_dims=8, depth=depth, num_heads=1),
                drop_path_rate=float(rate))
            assert len(model.blocks) == len(rows)
            for block, row in zip(model.blocks, rows):
                assert abs(block.drop_path.drop_prob - row['attn']) < 1e-6
                ffn = block.ffn.dropout_layer.drop_prob
                assert abs(ffn - row['ffn']) < 1e-6
                seen += 1
    assert seen >= 12 * 3
