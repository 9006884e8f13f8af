"""PolaPP's two attentions against the authors' modules."""
import pytest
import torch
from parity import names, read, relative_error

from mmcsan.attentions import PolaPP, PolaPPSoftmax, TokenLayout
from mmcsan.attentions.polapp import rotary_angles

KINDS = {
    'polapp_linear_attention': PolaPP,
    'polapp_softmax_attention': PolaPPSoftmax
}


def run(folder, name, dtype, **changed):
    meta, weights, tensors = read(folder, name)
    weights = {
        k: torch.zeros_like(w) if k in changed.get('zero', ()) else w
        for k, w in weights.items()
    }
    module = KINDS[meta['kind']](**meta['args'])
    module.load_state_dict(weights, strict=True)
    module.to(dtype).eval()
    x = tensors['input'].to(dtype).requires_grad_()
    # (B, C, H, W) -> (B, N, C) and back
    grid = tuple(x.shape[2:])
    out = module(x.flatten(2).transpose(1, 2), TokenLayout(grid))
    out = out.transpose(1, 2).unflatten(2, grid)
    (out * tensors['cotangent'].to(dtype)).sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return tensors, out.detach(), dict(grads, input=x.grad)


def fixtures(folder):
    found = [n for kind in KINDS for n in names(folder, kind)]
    assert len(found) >= 3
    return found


def test_float64(shared):
    for name in fixtures(shared / 'parity'):
        tensors, out, grads = run(shared / 'parity', name, torch.float64)
        assert (out - tensors['output']).abs().max() < 1e-10, name
        for key, grad in grads.items():
            theirs = tensors[f'grads/{key}']
            bound = 1e-9 * theirs.abs().max() + 1e-10
            assert (grad - theirs).abs().max() < bound, (name, key)


def test_float32(shared):
    for name in fixtures(shared / 'parity'):
        tensors, out, grads = run(shared / 'parity', name, torch.float32)
        assert (out - tensors['output']).abs().max() < 5e-5, name
        for key, grad in grads.items():
            assert relative_error(grad, tensors[f'grads/{key}']) < 3e-4, key


@pytest.mark.parametrize('linear', [True, False])
def test_angles(shared, linear):
    name = 'mod_polapp_linear_rect' if linear else 'mod_polapp_softmax'
    _, _, tensors = read(shared / 'parity', name)
    height, width = tensors['input'].shape[2:]
    for index, kind in enumerate(('cos', 'sin')):
        theirs = tensors[kind + '_l' * linear].unflatten(0, (height, width))
        pairs = theirs.shape[-1] // 4
        rows, cols = (
            rotary_angles(length, pairs, torch.device('cpu'),
                          torch.float64)[index].repeat_interleave(2, -1)
            for length in (height, width))
        assert torch.equal(rows, theirs[:, 0, :2 * pairs])
        assert torch.equal(cols, theirs[0, :, 2 * pairs:])


@pytest.mark.parametrize('dropped', ['s1', 's2', 'lepe.weight', 'lepe.bias',
                                     'qkvg.bias'])
def test_every_term_matters(shared, dropped):
    tensors, out, _ = run(
        shared / 'parity',
        'mod_polapp_linear_rect',
        torch.float64,
        zero=(dropped, ))
    assert relative_error(out, tensors['output']) > 1e-3
