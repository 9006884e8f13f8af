"""CSaN in windows against the authors' modules, in float64 and float32."""
import pytest
import torch
from parity import names, read, relative_error

from mmcsan.attentions import CSaN, TokenLayout
from mmcsan.attentions.csan import quasi_linear

KIND = 'csan_window_attention'


def build(meta, weights, dtype):
    args = meta['args']
    window = args['window_size']
    window = (window, window) if isinstance(window, int) else tuple(window)
    module = CSaN(
        args['dim'],
        args['num_heads'],
        grid_size=window,
        qkv_bias=args['qkv_bias'],
        variant=meta['compensation'])
    module.load_state_dict(weights, strict=True)
    return module.to(dtype).eval(), window


def run(meta, weights, tensors, dtype):
    module, window = build(meta, weights, dtype)
    x = tensors['input'].to(dtype).requires_grad_()
    mask = tensors['mask'].to(dtype) if 'mask' in tensors else None
    out = module(x, TokenLayout(window, mask=mask))
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return out.detach(), dict(grads, input=x.grad)


def test_every_variant_has_a_fixture(shared):
    kinds = {
        read(shared / 'parity', name)[0]['compensation']
        for name in names(shared / 'parity', KIND)
    }
    assert kinds == {'bounded', 'unbounded'}


def test_float64(shared):
    for name in names(shared / 'parity', KIND):
        meta, weights, tensors = read(shared / 'parity', name)
        out, grads = run(meta, weights, tensors, torch.float64)
        assert (out - tensors['output']).abs().max() < 1e-10, name
        for key, grad in grads.items():
            theirs = tensors[f'grads/{key}']
            bound = 1e-9 * theirs.abs().max() + 1e-10
            assert (grad - theirs).abs().max() < bound, (name, key)


def test_float32(shared):
    for name in names(shared / 'parity', KIND):
        meta, weights, tensors = read(shared / 'parity', name)
        out, _ = run(meta, weights, tensors, torch.float32)
        assert (out - tensors['output']).abs().max() < 5e-5, name


@pytest.mark.parametrize('dropped', ['act.proj.weight', 'u.bias', 'temp.bias',
                                     'magk.bias', 'ka.bias', 'kv.bias'])
def test_every_term_matters(shared, dropped):
    meta, weights, tensors = read(shared / 'parity',
                                  'mod_csan_window_unbounded_mask')
    weights = dict(weights, **{dropped: torch.zeros_like(weights[dropped])})
    out, _ = run(meta, weights, tensors, torch.float64)
    assert relative_error(out, tensors['output']) > 1e-3


def test_quasi_linear(shared):
    meta, _, tensors = read(shared / 'parity', 'fn_quasi_linear')
    for eta in meta['etas']:
        x = tensors['input'].clone().requires_grad_()
        out = quasi_linear(x, beta=eta)
        assert (out - tensors[f'output_eta_{eta}']).abs().max() < 1e-10
        out.sum().backward()
        assert (x.grad - tensors[f'grad_eta_{eta}']).abs().max() < 1e-10
