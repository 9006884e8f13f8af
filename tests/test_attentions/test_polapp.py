import pytest
import torch
import torch.nn.functional as F

from mmcsan.attentions import (PolaPP, PolaPPSoftmax, TokenLayout,
                               build_attention)
from mmcsan.attentions.polapp import (polarity_exponential_attention,
                                      rotary_angles)

DIM, HEADS = 32, 2


def oracle(q, k, v, same, opposite):
    """The equations as they stand; (G, H, h, w, d) and (H, 1, 1, 2d)."""
    height, width, dim = q.shape[2:]
    frequencies = (1 / 10000**torch.linspace(0, 1, dim // 2)).double()

    def angles(length):
        lines = torch.arange(length).double()[:, None]
        return (lines * frequencies).repeat_interleave(2, -1)

    theta = torch.cat([
        angles(height)[:, None].expand(-1, width, -1),
        angles(width)[None].expand(height, -1, -1)
    ], -1).flatten(0, 1)
    cos, sin = theta.cos().to(q), theta.sin().to(q)

    def rope(x):
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + turned * sin

    q, k, v = (t.flatten(2, 3) for t in (q, k, v))
    pos, neg = F.relu(q), F.relu(-q)
    key = torch.cat([F.relu(k), F.relu(-k)], -1).exp() - 1
    mean = key.mean(-2, keepdim=True).transpose(-1, -2)
    out = []
    for index, (weight, parts) in enumerate(
        ((same, (pos, neg)), (opposite, (neg, pos)))):
        query = (torch.cat(parts, -1) * weight[:, 0]).exp() - 1
        values = v.chunk(2, -1)[index]
        summed = rope(key).transpose(-1, -2) @ values / q.shape[2]
        out.append(rope(query) @ summed / (query @ mean + 1e-6))
    return torch.cat(out, -1).unflatten(2, (height, width))


def tensors(grid=(5, 7), dim=16, size=1., dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    qkv = [
        torch.randn(2, HEADS, *grid, dim, generator=generator).to(dtype) * size
        for _ in range(3)
    ]
    weights = [
        torch.rand(HEADS, 1, 1, 2 * dim, generator=generator).to(dtype)
        for _ in range(2)
    ]
    return [t.requires_grad_() for t in qkv + weights]


def gradients(fn, args):
    out = fn(*args)
    generator = torch.Generator().manual_seed(9)
    cotangent = torch.randn(out.shape, generator=generator).to(out)
    return out.detach(), torch.autograd.grad(out, args, cotangent)


def module(kind=PolaPP, **kwargs):
    torch.manual_seed(0)
    built = kind(DIM, HEADS, **kwargs)
    with torch.no_grad():
        for param in built.parameters():
            param.copy_(torch.randn(param.shape) * 0.3)
    return built


GRIDS = [(1, 1), (1, 9), (9, 1), (2, 40), (5, 7), (16, 3), (20, 24)]


@pytest.mark.parametrize('grid', GRIDS)
@pytest.mark.parametrize('dim', [2, 16, 48])
def test_equals_the_equations(grid, dim):
    ours, grads = gradients(polarity_exponential_attention,
                            tensors(grid, dim))
    theirs, theirs_grads = gradients(oracle, tensors(grid, dim))
    assert (ours - theirs).abs().max() < 1e-11
    for a, b in zip(grads, theirs_grads):
        assert (a - b).abs().max() < 1e-10 * max(1, b.abs().max().item())


@pytest.mark.parametrize('size', [1e-9, 1e-3, 1, 12])
def test_small_and_large_numbers(size):
    """No unit changes a number: those of float64 overflow only far above."""
    ours, grads = gradients(polarity_exponential_attention, tensors(size=size))
    theirs, theirs_grads = gradients(oracle, tensors(size=size))
    assert (ours - theirs).abs().max() < 1e-10 * theirs.abs().max()
    for a, b in zip(grads, theirs_grads):
        assert (a - b).abs().max() <= 1e-7 * b.abs().max()


@pytest.mark.parametrize('size', [3., 8., 15., 25., 40.])
def test_units_of_float32(size):
    """Numbers of which float32 has no exponential: as in float64."""
    exact, exact_grads = gradients(polarity_exponential_attention,
                                   tensors((20, 20), size=size))
    args = tensors((20, 20), size=size, dtype=torch.float32)
    out, grads = gradients(polarity_exponential_attention, args)
    assert (out - exact).abs().max() < 1e-4 * exact.abs().max()
    assert all(g.isfinite().all() for g in grads)
    if size < 20:  # beyond, they pass 1e13 here and are bounded
        for a, b in zip(grads, exact_grads):
            assert (a - b).abs().max() < 1e-4 * b.abs().max()


def test_an_outlier_channel_that_no_query_sees():
    """Keys of one channel at +45, met by queries of the other sign."""
    def outlier(dtype):
        args = tensors(dtype=dtype)
        with torch.no_grad():
            args[1][..., 4] = 45
            args[0][..., 4] = -args[0][..., 4].abs()
            args[0][..., 5] = -args[0][..., 5].abs()
        return args

    for function in (polarity_exponential_attention, oracle):
        exact, exact_grads = gradients(function, outlier(torch.float64))
        out, grads = gradients(polarity_exponential_attention,
                               outlier(torch.float32))
        for a, b in zip((out, *grads), (exact, *exact_grads)):
            assert (a - b).abs().max() < 1e-4 * b.abs().max()


@pytest.mark.parametrize('value', [0., 1e-40, 1e-20, 1e3, 1e10, 1e30])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_extremes_have_finite_gradients(value, dtype):
    for part in range(2):
        args = tensors(dtype=dtype)
        with torch.no_grad():
            args[part].mul_(value)
            args[part][0, 0, 0] = 0
            args[part][1, 1, :, 1] = value
            args[part][..., 3] = -value  # of one sign alone
        out, grads = gradients(polarity_exponential_attention, args)
        assert out.isfinite().all()
        assert all(not g.isnan().any() for g in grads)
        if value <= 1e10:
            assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_of_many_large_tokens(dtype):
    net, layout = module(), TokenLayout((128, 128))
    with torch.no_grad():
        net.qkvg.weight.copy_(torch.eye(DIM).repeat(4, 1))
        net.qkvg.bias.zero_()
        x = torch.randn(1, 128 * 128, DIM).sign() * 30
        x += torch.randn(x.shape)
        x = x.to(dtype).float()  # compare what is computed, not the input
        exact = net.double()(x.double(), layout)
        net.float()
        plain = net(x, layout)
        with torch.autocast('cpu', dtype):
            fast = net(x, layout)
    assert (plain - exact).abs().max() < 1e-3 * exact.abs().max()
    assert fast.isfinite().all()
    assert (fast - exact).abs().max() < 0.01 * exact.abs().max()


@pytest.mark.parametrize('kind', [PolaPP, PolaPPSoftmax])
def test_padding_is_never_seen(kind):
    net = module(kind).double()
    valid = torch.ones(2, 4, 6, dtype=torch.bool)
    valid[0, :, 4:] = False
    valid[1, 3:] = False
    layout = TokenLayout((4, 6), valid=valid.flatten(1))
    x = torch.randn(3, 2, 4, 6, DIM).double()
    dirty = x.masked_fill(~valid[..., None], 1e3)

    def attend(t):
        out = net(t.flatten(0, 1).flatten(1, 2), layout)
        return out.view_as(x)[:, valid]

    assert torch.equal(attend(x), attend(dirty))
    # Real tokens of a group are those of a smaller group.
    for group, grid in ((0, (4, 4)), (1, (3, 6))):
        part = x[:, group, :grid[0], :grid[1]]
        alone = net(part.flatten(1, 2), TokenLayout(grid))
        out = net(x.flatten(0, 1).flatten(1, 2), layout).view_as(x)
        out = out[:, group, :grid[0], :grid[1]].flatten(1, 2)
        assert (alone - out).abs().max() < 1e-12


def test_a_group_of_padding_alone_is_finite():
    for kind in (PolaPP,):
        net = module(kind)
        valid = torch.zeros(1, 12, dtype=torch.bool)
        out = net(torch.randn(2, 12, DIM), TokenLayout((3, 4), valid=valid))
        out.sum().backward()
        assert out.isfinite().all()
        assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize('grid', [(16, 16), (1, 256), (64, 4)])
def test_memory_stays_linear(grid):
    """Nothing kept for backward is larger than N x 2d a head."""
    args, sizes = tensors(grid, 16), []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        polarity_exponential_attention(*args)
    assert max(sizes) <= 2 * HEADS * 256 * 2 * 16 + 4096


def test_rotary_angles_are_kept_and_usable():
    args = (11, 4, torch.device('cpu'), torch.float32)
    with torch.inference_mode():
        made = rotary_angles(*args)
    again = rotary_angles(*args)
    assert all(a is b for a, b in zip(made, again))
    assert not any(t.is_inference() for t in again)
    from mmcsan.attentions.polapp import _cached_angles
    for length in range(1, 200):
        rotary_angles(length, 4, *args[2:])
    assert _cached_angles.cache_info().currsize <= 64


def test_parameters_named_for_weight_decay():
    names = {name for name, _ in module().named_parameters()}
    assert {'s1', 's2', 'qkvg.weight', 'lepe.weight'} <= names
    assert not any('scale' in name for name in names)


def test_built_by_name():
    for name, kind in (('PolaPP', PolaPP), ('PolaPPSoftmax', PolaPPSoftmax)):
        net = build_attention(name, dim=8, num_heads=2, grid_size=(7, 7))
        assert type(net) is kind and net.linear == (name == 'PolaPP')
        # No relative-position table beside rotary angles.
        assert net(torch.randn(2, 12, 8), TokenLayout((3, 4))).shape == (
            2, 12, 8)


@pytest.mark.parametrize('name', ['PolaPP', 'PolaPPSoftmax'])
@pytest.mark.parametrize('window', [None, 3])
def test_in_shifted_windows(name, window, monkeypatch):
    from mmcsan.backbones import SwinTransformer
    arch = dict(embed_dims=8, depths=[2, 2], num_heads=[1, 2])
    model = SwinTransformer(arch, name, window_size=window).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape) * .3)
    x = torch.randn(2, 3, 45, 70)
    before = model(x)

    def dirty(t, rows, cols, front=(0, 0)):
        return F.pad(t, (0, 0, front[1], cols, front[0], rows), value=1e3)

    monkeypatch.setattr('mmcsan.backbones.windows.pad_map', dirty)
    for a, b in zip(before, model(x)):
        assert a.isfinite().all() and torch.equal(a, b)


@pytest.mark.parametrize('name', ['PolaPP', 'PolaPPSoftmax'])
def test_says_what_it_cannot_do(name):
    from mmcsan.backbones import VisionTransformer
    arch = dict(embed_dims=8, depth=1, num_heads=2)
    with pytest.raises(ValueError, match='rows and columns'):
        VisionTransformer(arch, name)
    VisionTransformer(arch, name, class_token=False)


@pytest.mark.parametrize('kind', [PolaPP, PolaPPSoftmax])
def test_normalised_queries_and_keys(kind):
    net = module(kind, qk_norm=True).double()
    valid = torch.tensor([[True] * 6 + [False] * 3])
    x = torch.randn(2, 9, DIM).double()
    dirty = x.masked_fill(~valid[..., None], 50)
    out, same = (net(t, TokenLayout((3, 3), valid=valid)) for t in (x, dirty))
    assert torch.equal(out[:, :6], same[:, :6])
    scaled = module(kind).double()
    scaled.load_state_dict(net.state_dict(), strict=False)
    assert (scaled(x, TokenLayout((3, 3), valid=valid)) - out).abs().max() > (
        1e-3)


BAD = [
    (PolaPP, dict(dim=6, num_heads=2), 'multiple of 2'),
    (PolaPPSoftmax, dict(dim=12, num_heads=2), 'multiple of 4'),
    (PolaPP, dict(dim=8, num_heads=3), 'num_heads'),
    (PolaPP, dict(dim=8, num_heads=2, sr_ratio=2), 'sr_ratio'),
    (PolaPP, dict(dim=8, num_heads=2, attn_drop=.1), 'attn_drop'),
]


@pytest.mark.parametrize('kind, kwargs, word', BAD)
def test_bad_arguments(kind, kwargs, word):
    with pytest.raises(ValueError, match=word):
        kind(**kwargs)


def test_bad_layouts():
    net = PolaPP(8, 2)
    with pytest.raises(ValueError, match='class token'):
        net(torch.randn(1, 13, 8), TokenLayout((3, 4), prefix=1))
    with pytest.raises(ValueError, match='mask'):
        net(torch.randn(1, 4, 8), TokenLayout((2, 2), torch.zeros(1, 4, 4)))
    with pytest.raises(ValueError, match='expected'):
        net(torch.randn(1, 5, 8), TokenLayout((2, 2)))
    with pytest.raises(TypeError, match='powers'):
        PolaPP(8, 2, powers=3)
