"""Gradients written by hand: asked for twice, they refuse or are right."""
import pytest
import torch
from torch.autograd import gradgradcheck

from mmcsan.attentions import TokenLayout, build_attention

GRID = (2, 3)
CASES = [
    # attention, bias table (CSaN then keeps logits), word of the cure
    ('CSaN', False, 'fused=False'),
    ('CSaN', True, 'fused=False'),
    ('Pola', False, 'no other form'),
    ('PolaPP', False, 'no other form'),
]


def loss_of(name, biased, fused=True):
    torch.manual_seed(0)
    net = build_attention(
        name, dim=16, num_heads=2, grid_size=GRID, rel_pos_bias=biased)
    net.double().fused = fused
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(torch.randn(param.shape) * .3)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    return lambda t: net(t, TokenLayout(GRID)).square().sum(), x


def penalty(loss, x):
    grad, = torch.autograd.grad(loss(x), x, create_graph=True)
    return grad.square().sum()


def by_backward(loss, x):
    loss(x).backward(create_graph=True, inputs=[x])
    x.grad.square().sum().backward()


def of_a_plain_sum(loss, x):
    """What comes into backward requires no gradient here."""
    root = loss(x).sqrt()
    grad, = torch.autograd.grad(
        root, x, torch.ones_like(root), create_graph=True)
    torch.autograd.grad(grad.sum(), x)


WAYS = [
    lambda loss, x: penalty(loss, x).backward(),
    by_backward,
    of_a_plain_sum,
    lambda loss, x: torch.func.grad(lambda t: torch.func.grad(loss)
                                    (t).square().sum())(x.detach()),
]


@pytest.mark.filterwarnings('ignore:Using backward')
@pytest.mark.parametrize('name, biased, cure', CASES)
@pytest.mark.parametrize('way', WAYS)
def test_second_derivatives_are_refused(name, biased, cure, way):
    loss, x = loss_of(name, biased)
    with pytest.raises(NotImplementedError, match=f'{name} .*{cure}'):
        way(loss, x.requires_grad_())


@pytest.mark.parametrize('name, biased, cure', CASES)
def test_parameters_alone(name, biased, cure):
    """The input needs no gradient; the parameters' depends on them."""
    torch.manual_seed(0)
    net = build_attention(
        name, dim=16, num_heads=2, grid_size=GRID, rel_pos_bias=biased)
    out = net(torch.randn(2, 6, 16), TokenLayout(GRID)).sum()
    grads = torch.autograd.grad(
        out, list(net.parameters()), create_graph=True, allow_unused=True)
    with pytest.raises(NotImplementedError, match=cure):
        sum(g.square().sum() for g in grads if g is not None).backward()


@pytest.mark.parametrize('name, biased, cure', CASES)
def test_first_derivatives_may_be_part_of_a_graph(name, biased, cure):
    loss, x = loss_of(name, biased)
    x.requires_grad_()
    plain, = torch.autograd.grad(loss(x), x)
    kept, = torch.autograd.grad(loss(x), x, create_graph=True)
    assert torch.equal(plain, kept) and kept.requires_grad
    assert torch.equal(plain, torch.func.grad(loss)(x.detach()))


@pytest.mark.parametrize('biased', [False, True])
def test_the_cure_is_right(biased):
    loss, x = loss_of('CSaN', biased, fused=False)
    assert gradgradcheck(loss, x[:1].requires_grad_())
