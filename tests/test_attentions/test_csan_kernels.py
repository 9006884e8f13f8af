"""CSaN's kernels: the equations' numbers, and no N x N where none is due."""
import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transcriptions import PlainCSaN

from mmcsan.attentions import CSaN, TokenLayout, csan_kernels
from mmcsan.attentions.csan import compensated_softmax, row_descriptor
from mmcsan.attentions.csan_kernels import (UNIT, logit_row_mean, row_mean,
                                            shifted_logits, tempered_attention)

CASES = [
    # grid, windows that a mask tells apart, bias table
    ((1, 1), 0, False),
    ((5, 9), 0, False),
    ((30, 20), 0, False),
    ((4, 4), 0, True),
    ((3, 5), 4, True),
]


def shake(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in module.parameters():
            size = param[0].numel()**-.5 if param.dim() > 1 else .3
            param.copy_(torch.randn(param.shape, generator=generator) * size)
    return module


def layout_of(grid, windows):
    if not windows:
        return TokenLayout(grid)
    tokens = grid[0] * grid[1]
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(windows, tokens, tokens, generator=generator) < .3
    return TokenLayout(grid, mask=-100. * mask)


def gradients(module, x, layout):
    x = x.clone().requires_grad_()
    out = module(x, layout)
    cotangent = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    (out * cotangent).sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return out.detach(), dict(grads, input=x.grad)


@pytest.mark.parametrize('grid, windows, biased', CASES)
@pytest.mark.parametrize('dtype, exact, relative', [
    (torch.float64, 1e-12, 1e-10),
    (torch.float32, 2e-5, 1e-4),
])
@pytest.mark.parametrize('chunk', [32, csan_kernels.CHUNK])
def test_equals_the_equations(grid, windows, biased, dtype, exact, relative,
                              chunk, monkeypatch):
    monkeypatch.setattr(csan_kernels, 'CHUNK', chunk)
    kwargs = dict(grid_size=grid) if biased else {}
    plain = shake(PlainCSaN(32, 2, **kwargs)).to(dtype)
    fused = CSaN(32, 2, **kwargs).to(dtype)
    fused.load_state_dict(plain.state_dict(), strict=True)
    layout = layout_of(grid, windows)
    x = torch.randn(
        2 * max(windows, 1), grid[0] * grid[1], 32,
        generator=torch.Generator().manual_seed(1)).to(dtype)
    theirs, their_grads = gradients(plain, x, layout)
    ours, our_grads = gradients(fused, x, layout)
    assert (ours - theirs).abs().max() < exact
    for name, grad in their_grads.items():
        error = (our_grads[name] - grad).abs().max()
        # With one token softmax is 1 whatever tau is: its gradient is 0.
        assert error <= relative * grad.abs().max() + exact / 10, name
    with torch.no_grad():
        assert (fused(x, layout) - theirs).abs().max() < exact


@pytest.mark.parametrize('heads', [1, 3])
def test_row_mean_gradcheck(heads, monkeypatch):
    monkeypatch.setattr(csan_kernels, 'CHUNK', 8)
    q, k = (
        torch.randn(2, heads, n, 4, dtype=torch.float64, requires_grad=True)
        for n in (33, 21))
    assert gradcheck(lambda q, k: row_mean(q, k, .5), (q, k))
    logits = (q * .5) @ k.transpose(-2, -1)
    truth = row_descriptor(logits[:, None])[:, 0]
    assert (row_mean(q, k, .5) - truth).abs().max() < 1e-12


def test_window_kernels_gradcheck():
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(4, 2, 5, 3, dtype=torch.float64, requires_grad=True)
        for _ in range(3))
    bias = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    tau = torch.randn(2, 2, 2, 5, 1, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True] * 5, [True, True, False, True, False]])
    hidden = ~valid[:, None, None]

    def mean(q, k, bias):
        return logit_row_mean(shifted_logits(q, k, .7, bias, 2), valid)

    def attention(q, k, v, bias, tau):
        u = shifted_logits(q, k, .7, bias, 2)
        return tempered_attention(u, tau, v.unflatten(0, (-1, 2)), hidden)

    assert gradcheck(mean, (q, k, bias))
    assert gradcheck(attention, (q, k, v, bias, tau))
    logits = ((q * .7) @ k.transpose(-2, -1)).unflatten(0, (-1, 2)) + bias
    u = shifted_logits(q, k, .7, bias, 2)
    truth = row_descriptor(logits, valid)
    assert (logit_row_mean(u, valid) - truth).abs().max() < 1e-12
    truth = compensated_softmax(logits, tau, hidden) @ v.unflatten(0, (-1, 2))
    out = attention(q, k, v, bias, tau)
    assert (out - truth).abs().max() < 1e-12
    assert UNIT > 0


def test_padding_of_one_group():
    """The way without logits leaves padding out as the equations do."""
    module = shake(CSaN(32, 2)).double()
    valid = torch.rand(1, 30, generator=torch.Generator().manual_seed(0)) < .7
    layout = TokenLayout((5, 6), valid=valid)
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    fused, grads = gradients(module, x, layout)
    module.zero_grad()
    module.fused = False
    plain, plain_grads = gradients(module, x, layout)
    real = valid[0]
    assert (fused - plain)[:, real].abs().max() < 1e-12
    for name, grad in plain_grads.items():
        assert (grads[name] - grad).abs().max() < 1e-9, name


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('grid, windows, biased', CASES)
def test_autocast(grid, windows, biased, dtype):
    kwargs = dict(grid_size=grid) if biased else {}
    module = shake(CSaN(32, 2, **kwargs))
    layout = layout_of(grid, windows)
    x = torch.randn(2 * max(windows, 1), grid[0] * grid[1], 32)
    truth, true_grads = gradients(module, x, layout)
    module.zero_grad()
    with torch.autocast('cpu', dtype):
        out, grads = gradients(module, x, layout)
    bound = .02 if dtype == torch.float16 else .1
    assert (out - truth).abs().max() < bound * truth.abs().max()
    for name, grad in grads.items():
        assert grad.isfinite().all(), name
        assert grad.dtype == torch.float32, name


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_row_mean_of_many_large_tokens(dtype):
    """Sums over all tokens, and logits, that 16 bits do not hold."""
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(1, 1, n, 64, generator=generator).mul(3).add(18).to(dtype)
        for n in (700, 8192))
    k[..., ::2] *= -1  # logits of both signs
    k[:, :, 4000:] *= -1
    k[..., 0] = 40
    truth = [t.double().requires_grad_() for t in (q, k)]
    ours = [t.requires_grad_() for t in (q, k)]
    cotangent = torch.randn(1, 1, 700, generator=generator)
    for args, weight in ((truth, cotangent.double()), (ours, cotangent)):
        means = row_mean(*args, 64**-.5)
        assert means.isfinite().all()
        (means * weight).sum().backward()
    for mine, exact in zip(ours, truth):
        assert mine.grad.isfinite().all()
        error = (mine.grad.double() - exact.grad).abs().max()
        assert error < torch.finfo(dtype).eps * exact.grad.abs().max()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_row_mean_keeps_what_is_small(dtype):
    """A row gradient that is nothing in 16 bits, once divided by M."""
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(1, 1, 2048, 16, generator=generator).to(dtype)
        for _ in range(2))
    truth = [t.double().requires_grad_() for t in (q, k)]
    ours = [t.requires_grad_() for t in (q, k)]
    for args in (truth, ours):
        (row_mean(*args, .25).sum() * 1e-3).backward()
    for mine, exact in zip(ours, truth):
        error = (mine.grad.double() - exact.grad).abs().max()
        assert error < torch.finfo(dtype).eps * exact.grad.abs().max()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('grid, windows, biased', CASES[1:])
def test_autocast_is_no_worse_than_the_equations(grid, windows, biased,
                                                 dtype):
    kwargs = dict(grid_size=grid) if biased else {}
    module = shake(CSaN(32, 2, **kwargs))
    layout = layout_of(grid, windows)
    x = torch.randn(
        2 * max(windows, 1), grid[0] * grid[1], 32,
        generator=torch.Generator().manual_seed(1))
    errors, truth = [], gradients(module, x, layout)[1]
    for fused in (False, True):
        module.zero_grad()
        module.fused = fused
        with torch.autocast('cpu', dtype):
            grads = gradients(module, x, layout)[1]
        errors.append(sum((grads[name] - grad).norm() / grad.norm()
                          for name, grad in truth.items()))
    assert errors[1] < 1.5 * errors[0]


def test_row_mean_of_float32_stays_so_under_autocast():
    """As of normalised queries and keys: a GPU's layer norm returns it."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 30, 8, generator=generator) for _ in range(2))
    truth = row_mean(q, k, .5)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(row_mean(q, k, .5), truth)


def test_dropout_of_weights_is_inverted():
    torch.manual_seed(0)
    for kwargs in (dict(), dict(grid_size=(4, 4))):
        module = shake(CSaN(32, 2, attn_drop=.5, **kwargs)).double()
        x = torch.randn(1, 16, 32, dtype=torch.float64)
        layout = TokenLayout((4, 4))
        truth = module.eval()(x, layout)
        module.train()
        with torch.no_grad():
            runs = torch.stack([module(x, layout) for _ in range(1000)])
        assert runs.std(0).max() > .01
        error = (runs.mean(0) - truth).abs() / runs.std(0)
        assert error.max() < 6 * 1000**-.5


class Largest(TorchDispatchMode):
    """Entries of the largest tensor made, and tensors as large as a bound."""

    def __init__(self, bound=1):
        super().__init__()
        self.numel, self.bound, self.count = 0, bound, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.numel())
                self.count += leaf.numel() >= self.bound
        return out


def kept(module, x, layout):
    """Bytes of what is kept for backward, parameters and input aside."""
    known = {p.untyped_storage().data_ptr() for p in module.parameters()}
    known.add(x.untyped_storage().data_ptr())
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = module(x, layout)
    del out
    return sum(sizes.values())


def test_global_attention_never_holds_its_logits():
    tokens, dim = 2048, 32
    module = CSaN(dim, 2)
    x = torch.randn(1, tokens, dim, requires_grad=True)
    with Largest() as seen:
        module(x, TokenLayout((32, 64))).sum().backward()
    # The chunk, or the projections: 2 heads of N x N would be 32 times that.
    assert seen.numel <= max(csan_kernels.CHUNK, 4 * dim * tokens)
    half = kept(module, torch.randn(1, tokens // 2, dim),
                TokenLayout((32, 32)))
    whole = kept(module, torch.randn(1, tokens, dim), TokenLayout((32, 64)))
    assert whole < 2.1 * half


@pytest.mark.parametrize('mask', [False, True])
def test_windows_keep_one_matrix_of_logits(mask):
    grid, heads, groups = (7, 7), 2, 64
    module = CSaN(32, heads, grid_size=grid)
    layout = layout_of(grid, 64) if mask else TokenLayout(grid)
    x = torch.randn(groups, 49, 32)
    logits = groups * heads * 49 * 49 * 4
    table = 2 * heads * 49 * 49 * 8  # its index, and what is gathered
    rest = kept(CSaN(32, heads), x, TokenLayout(grid)) + table
    bias = logits if mask else 0  # of each window, as each has its own mask
    assert kept(module, x, layout) < logits + rest + bias
    assert kept(PlainCSaN(32, heads, grid), x, layout) > 2 * logits
