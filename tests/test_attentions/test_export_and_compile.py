"""Graphs of attentions: one for inputs of any size, with eager's numbers."""
import warnings

import pytest
import torch
import torch.nn as nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim, export

from mmcsan.attentions import TokenLayout, build_attention, csan_kernels
from mmcsan.attentions.polapp import _cached_angles
from mmcsan.attentions.positions import _kept_resampling
from mmcsan.backbones.windows import window_grid

NAMES = ['CSaN', 'Pola', 'PolaPP', 'PolaPPSoftmax', 'Softmax']
ANY = Dim.DYNAMIC


def attention(name, grid_size, **kwargs):
    torch.manual_seed(0)
    net = build_attention(
        name, dim=16, num_heads=2, grid_size=grid_size, **kwargs)
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(torch.randn(param.shape) * .2)
    return net


class InWindows(nn.Module):
    """An attention as a backbone calls it, on maps (B, H, W, C)."""

    def __init__(self, name, window=(4, 4), shift=(2, 2), native=(6, 5)):
        super().__init__()
        biased = window is not None
        self.attn = attention(name, window or native, rel_pos_bias=biased)
        self.window, self.shift = window, shift

    def forward(self, x):
        grid = window_grid(x.shape[1:3], self.window, self.shift, x.device,
                           self.attn.shift_regions)
        out = self.attn(grid.split(x), grid.layout)
        return grid.restore(grid.merge(out))


MAPS = [(2, 9, 10, 16), (1, 8, 12, 16), (3, 14, 7, 16), (2, 16, 16, 16)]
"""Rectangles and a square, with padding and without."""


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('window', [(4, 4), None])
def test_exported_for_maps_of_any_size(name, window):
    module = InWindows(name, window).eval()
    graph = export(
        module, (torch.randn(MAPS[0]), ),
        dynamic_shapes=({0: ANY, 1: ANY, 2: ANY}, )).module()
    for shape in MAPS:
        x = torch.randn(shape)
        assert (graph(x) - module(x)).abs().max() < 1e-5, shape


@pytest.mark.parametrize('name', ['Pola', 'Softmax'])
def test_exported_at_the_size_of_pretraining(name):
    """Where eager has nothing to resize, and no padding: not taken for ever.
    """
    native = (8, 12)
    module = InWindows(name, None, native=native).eval()
    graph = export(
        module, (torch.randn(2, *native, 16), ),
        dynamic_shapes=({1: ANY, 2: ANY}, )).module()
    for height, width in (native, (7, 9), (12, 12)):
        x = torch.randn(2, height, width, 16)
        assert (graph(x) - module(x)).abs().max() < 1e-5


@pytest.mark.parametrize('name', NAMES)
def test_nothing_made_for_a_graph_is_kept(name):
    for kept in (_cached_angles, _kept_resampling):
        kept.cache_clear()
    module = InWindows(name, None).eval()
    export(module, (torch.randn(2, 7, 9, 16), ))
    for kept in (_cached_angles, _kept_resampling):
        assert kept.cache_info().currsize == 0
    assert module(torch.randn(2, 7, 9, 16)).isfinite().all()


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('biased', [False, True])
def test_traced_for_any_number_of_images(name, padded, biased):
    net = attention(name, (3, 4), rel_pos_bias=biased).eval()
    valid = torch.arange(12) < torch.tensor([[12], [8]])
    layout = TokenLayout((3, 4), valid=valid if padded else None)

    class Fixed(nn.Module):

        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x, layout)

    x = torch.randn(4, 12, 16)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of tracing: checks of shapes
        traced = torch.jit.trace(Fixed(), x)
    graph = export(Fixed(), (x, ), dynamic_shapes=({
        0: 2 * Dim('images')
    }, )).module()
    for groups in (4, 6, 10):
        x = torch.randn(groups, 12, 16)
        truth = net(x, layout)
        for way in (traced, graph):
            assert (way(x) - truth).abs().max() < 1e-5


def gradients(call, net, x, layout):
    x = x.clone().requires_grad_()
    net.zero_grad()
    out = call(x, layout)
    out.square().sum().backward()
    return [out.detach(), x.grad] + [p.grad for p in net.parameters()
                                     if p.grad is not None]


COMPILED = [
    # attention, bias table, whether the first graph is for any size
    ('CSaN', False, None),
    ('CSaN', False, True),
    ('CSaN', True, True),
    ('Pola', False, True),
    ('PolaPP', False, None),
]


@pytest.mark.parametrize('name, biased, dynamic', COMPILED)
def test_compiled_for_any_size(name, biased, dynamic, monkeypatch):
    """Whole, in two graphs: for the first size, and for all others."""
    monkeypatch.setattr(csan_kernels, 'GRAPH_CHUNKS', 2)  # made faster
    torch._dynamo.reset()
    net = attention(name, (3, 4), rel_pos_bias=biased).double()
    counter = CompileCounterWithBackend('aot_eager')
    compiled = torch.compile(
        net, backend=counter, dynamic=dynamic, fullgraph=True)
    grids = [(3, 4)] * 3 if biased else [(3, 4), (5, 7), (4, 6)]
    for images, grid in enumerate(grids, start=2):
        x = torch.randn(images, grid[0] * grid[1], 16, dtype=torch.float64)
        for ours, theirs in zip(*(
                gradients(call, net, x, TokenLayout(grid))
                for call in (compiled, net))):
            assert (ours - theirs).abs().max() < (
                1e-10 * max(1, theirs.abs().max()))
    assert counter.frame_count <= 2
