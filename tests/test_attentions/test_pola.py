"""Pola: exact, in float32 where it must be, blind to padding, linear."""
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transcriptions import PlainPola

from mmcsan.attentions import Pola, TokenLayout
from mmcsan.attentions.pola import polarity_attention
from mmcsan.backbones.windows import cut_windows, window_grid


def shake(module, seed=0, spread=1.):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in module.named_parameters():
            size = param[0].numel()**-.5 if 'weight' in name else .5
            param.copy_(
                torch.randn(param.shape, generator=generator) * size * spread)
    return module


def tokens(grid, dim, groups=2, seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        groups, grid[0] * grid[1], dim, generator=generator).to(dtype)


def gradients(module, x, *args):
    x = x.clone().requires_grad_()
    module.zero_grad()
    out = module(x, *args)
    cotangent = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    (out * cotangent).sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return out.detach(), dict(grads, input=x.grad)


@pytest.mark.parametrize('grid', [(1, 1), (1, 7), (5, 4), (9, 9)])
@pytest.mark.parametrize('alpha, kernel_size', [(4, 5), (3, 3), (0, 1)])
def test_equals_the_equations(grid, alpha, kernel_size):
    plain = shake(PlainPola(24, 3, grid, alpha, kernel_size)).double()
    fast = Pola(24, 3, grid, alpha=alpha, kernel_size=kernel_size).double()
    fast.load_state_dict(plain.state_dict(), strict=True)
    x = tokens(grid, 24)
    theirs, their_grads = gradients(plain, x)
    ours, our_grads = gradients(fast, x, TokenLayout(grid))
    assert (ours - theirs).abs().max() < 1e-10 * theirs.abs().max() + 1e-12
    assert our_grads.keys() == their_grads.keys()
    for name, grad in their_grads.items():
        error = (our_grads[name] - grad).abs().max()
        assert error < 1e-9 * grad.abs().max() + 1e-12, name
    with torch.no_grad():
        assert torch.equal(fast(x, TokenLayout(grid)), ours)


def inputs(shape, size=1., dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(shape, generator=generator, dtype=dtype)
        for _ in range(3))
    heads, dim = shape[1], shape[3]
    power = 1 + 4 * torch.rand(
        1, heads, 1, dim, generator=generator, dtype=dtype)
    scale = .5 + torch.rand(
        1, heads, 1, dim, generator=generator, dtype=dtype)
    leaves = [q * size, k * size, v, power, scale]
    return [leaf.requires_grad_() for leaf in leaves]


def test_gradcheck():
    q, k, v, power, scale = inputs((2, 2, 5, 4))
    assert gradcheck(polarity_attention, (q, k, v, power, scale))
    valid = torch.ones(2, 1, 5, 1, dtype=torch.float64)
    valid[1, :, 3:] = 0
    q, k = ((t * valid).detach().requires_grad_() for t in (q, k))

    def masked(k, v, power, scale):
        return polarity_attention(q, k * valid, v, power, scale, valid)

    assert gradcheck(masked, (k, v, power, scale))


@pytest.mark.parametrize('size', [1e-42, 1e-30, 1e-12, 1e-3, 30., 1e4, 1e12])
def test_float32_at_any_size(size):
    """What float64 gives, from denormal to huge queries and keys."""
    args = inputs((2, 2, 50, 8), size, torch.float32)
    wide = [a.detach().double().requires_grad_() for a in args]
    out, truth = polarity_attention(*args), polarity_attention(*wide)
    out.square().sum().backward()
    truth.square().sum().backward()
    bound = 1e-4 * truth.abs().max() + 1e-30  # below, float32 is zero
    assert (out - truth).abs().max() <= bound
    for name, a, b in zip(('q', 'k', 'v', 'power', 'scale'), args, wide):
        assert a.grad.isfinite().all(), name
        bound = 1e-3 * b.grad.abs().max() + 1e-30
        assert (a.grad - b.grad).abs().max() <= bound, name


def test_zeros_have_finite_gradients():
    args = inputs((1, 2, 9, 4), 0., torch.float32)
    out = polarity_attention(*args)
    out.sum().backward()
    assert not out.any()
    for leaf in args:
        assert leaf.grad.isfinite().all()
    q, k, *rest = inputs((1, 2, 9, 4), dtype=torch.float32)
    with torch.no_grad():
        q[:, :, 3], k[:, :, :, 1] = 0, 0
    polarity_attention(q, k, *rest).sum().backward()
    for leaf in (q, k, *rest):
        assert leaf.grad.isfinite().all()
    assert not q.grad[:, :, 3].any() and not k.grad[:, :, :, 1].any()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_at_size_30(dtype):
    grid = (128, 128)
    module = Pola(16, 2, grid).eval()
    shake(module)
    x = tokens(grid, 16, groups=1, dtype=torch.float32)
    x = x * 30 / x.abs().max()
    with torch.no_grad():
        truth = module(x, TokenLayout(grid))
    x.requires_grad_()
    with torch.autocast('cpu', dtype=dtype):
        out = module(x, TokenLayout(grid))
    out.float().square().mean().backward()
    assert out.dtype == dtype and out.isfinite().all()
    assert x.grad.isfinite().all()
    # bfloat16 itself keeps 8 bits: its share is that of the projections.
    bound = 0.01 if dtype == torch.float16 else 0.04
    assert (out - truth).abs().max() < bound * truth.abs().max()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_attention_itself_is_in_float32(dtype):
    """Rounded inputs aside, low precision costs nothing."""
    q, k, v, power, _ = (
        t.detach() for t in inputs((1, 2, 4000, 8), 30., torch.float32))
    module = Pola(16, 2, (50, 80)).eval()
    with torch.no_grad():
        module.power.copy_((power - 1) / 4).clamp_(.01, .99)
        module.power.copy_(module.power.logit())

        def merge(t):
            return t.to(dtype).transpose(1, 2).flatten(2)

        args = [merge(t) for t in (q, k, v)]
        truth = module.attend_tokens(*(t.float() for t in args), None)
        with torch.autocast('cpu', dtype=dtype):
            out = module.attend_tokens(*args, None)
    assert torch.equal(out, truth)


def test_whole_model_in_half_precision():
    module = shake(Pola(16, 2, (6, 6))).eval()
    x = tokens((6, 6), 16, dtype=torch.float32)
    truth = module(x, TokenLayout((6, 6)))
    low = module.bfloat16()(x.bfloat16(), TokenLayout((6, 6)))
    assert low.dtype == torch.bfloat16
    assert (low - truth).abs().max() < .1 * truth.abs().max()


def test_padding_contributes_nothing():
    grid = (5, 6)
    module = shake(Pola(24, 3, grid)).double()
    valid = torch.zeros(1, 5, 6, dtype=torch.bool)
    valid[:, :3, :4] = True
    layout = TokenLayout(grid, valid=valid.flatten(1))
    x = tokens(grid, 24)
    dirty = x.clone()
    dirty[:, ~valid.flatten()] = 1e3
    real = valid.flatten()
    a, b = module(x, layout)[:, real], module(dirty, layout)[:, real]
    assert torch.equal(a, b)
    # Nor would it be missed: a grid of its own, with the same encoding.
    small = shake(Pola(24, 3, (3, 4))).double()
    state = module.state_dict()
    state['positional_encoding'] = state['positional_encoding'][:, real]
    small.load_state_dict(state)
    alone = small(x[:, real], TokenLayout((3, 4)))
    assert (alone - a).abs().max() < 1e-10


@pytest.mark.parametrize('size', [(11, 9), (8, 13), (5, 12)])
def test_shifted_regions_are_apart(size):
    """Each region that a roll would bring together attends on its own."""
    window, shift = (4, 4), (2, 2)
    module = shake(Pola(8, 2, window)).double()
    x = tokens(size, 8, groups=1).unflatten(1, size)
    apart = window_grid(size, window, shift, x.device, module.shift_regions)
    out = apart.restore(
        apart.merge(module(apart.split(x), apart.layout)))

    # Rolled as the paper's code does it, then region by region.
    rolled = window_grid(size, window, shift, x.device, 'mask')
    windows = rolled.split(x)
    number = torch.arange(windows.shape[0])
    bands = [
        torch.arange(p).ge(p - s).long()
        for p, s in zip(rolled.padded, shift)
    ]
    region = cut_windows(
        (2 * bands[0][:, None] + bands[1])[None, ..., None], window)[..., 0]
    merged = torch.zeros_like(windows)
    for index in number:
        for part in region[index].unique():
            valid = region[index] == part
            if rolled.layout.valid is not None:
                valid = valid & rolled.layout.valid[index]
            if not valid.any():
                continue
            layout = TokenLayout(window, valid=valid[None])
            result = module(windows[index:index + 1], layout)[0]
            merged[index, valid] = result[valid]
    truth = rolled.restore(rolled.merge(merged))
    assert (out - truth).abs().max() < 1e-10
    loose = Pola(8, 2, window, hard_shift_mask=False).double()
    loose.load_state_dict(module.state_dict())
    mixed = loose(rolled.split(x), rolled.layout)
    mixed = rolled.restore(rolled.merge(mixed))
    assert (mixed - truth).abs().max() > 1e-3


def test_refuses_a_mask_of_pairs():
    grid = window_grid((8, 8), (4, 4), (2, 2), torch.device('cpu'), 'mask')
    module = Pola(8, 2, (4, 4))
    with pytest.raises(ValueError, match='hard_shift_mask'):
        module(grid.split(torch.zeros(1, 8, 8, 8)), grid.layout)


def test_positional_encoding_follows_the_grid():
    module = shake(Pola(8, 2, (4, 6))).double().eval()
    assert torch.equal(module.encoding((4, 6)), module.positional_encoding)
    table = module.positional_encoding.transpose(1, 2).unflatten(2, (4, 6))
    for size in ((9, 5), (3, 2), (8, 12)):
        wide = module.encoding(size)
        truth = F.interpolate(
            table, size, mode='bicubic', align_corners=False)
        truth = truth.flatten(2).transpose(1, 2)
        assert (wide - truth).abs().max() < 1e-12
        assert wide.requires_grad
    with torch.inference_mode():
        once = module.encoding((9, 5))
        # A change of the weights, by whatever way, is seen.
        module.positional_encoding.data.add_(1)
        assert (module.encoding((9, 5)) - once - 1).abs().max() < 1e-12
    module.encoding((9, 5)).sum().backward()


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.numel())
        return out


def test_nothing_is_larger_than_the_projections():
    grid, dim = (40, 50), 16
    module = Pola(dim, 2, grid)
    x = tokens(grid, dim, groups=1, dtype=torch.float32).requires_grad_()
    with Largest() as seen:
        module(x, TokenLayout(grid)).sum().backward()
    assert seen.numel <= 4 * dim * 2000


def test_keeps_few_tensors_for_backward():
    grid, dim = (20, 20), 32
    x = tokens(grid, dim, groups=1, dtype=torch.float32).requires_grad_()

    def kept(module, *args):
        sizes = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = module(x, *args)
        del out
        return sum(sizes.values())

    plain = kept(PlainPola(dim, 2, grid))
    assert kept(Pola(dim, 2, grid), TokenLayout(grid)) < plain / 2


def test_prefix_order_and_pooling():
    grid = (4, 4)
    module = shake(Pola(16, 2, grid)).double()
    x = tokens(grid, 16)
    plain = module(x, TokenLayout(grid))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    mixed = torch.empty_like(x)
    mixed[:, order] = x  # the token at place i lies at order[i]
    out = module(mixed, TokenLayout(grid, order=order))
    assert (out[:, order] - plain).abs().max() < 1e-10
    pooled = module(x, TokenLayout(grid, q_pool=4))
    assert pooled.shape == (2, 4, 16)
    token = torch.randn(2, 1, 16, dtype=torch.float64)
    both = module(torch.cat([token, x], 1), TokenLayout(grid, prefix=1))
    assert both.shape == (2, 17, 16)
    # What lies in front of the grid is attended to, and attends.
    assert (both[:, 1:] - plain).abs().max() > 1e-3


def test_normalised_queries_and_keys():
    module = shake(Pola(16, 2, (3, 3), qk_norm=True)).double()
    x = tokens((3, 3), 16)
    assert module(x, TokenLayout((3, 3))).isfinite().all()
    assert module.q_norm.weight.shape == (8, )


BAD = [
    (dict(grid_size=None), 'grid_size'),
    (dict(num_heads=5), 'num_heads'),
    (dict(dim=6, num_heads=2), 'odd'),
    (dict(alpha=-1), 'alpha'),
    (dict(kernel_size=4), 'kernel_size'),
    (dict(kernel_size=0), 'kernel_size'),
    (dict(attn_drop=.1), 'attn_drop'),
    (dict(proj_drop=1.), 'proj_drop'),
    (dict(sr_ratio=0), 'sr_ratio'),
]


@pytest.mark.parametrize('kwargs, word', BAD)
def test_bad_arguments(kwargs, word):
    args = dict(dict(dim=16, num_heads=2, grid_size=(4, 4)), **kwargs)
    with pytest.raises(ValueError, match=word):
        Pola(**args)
