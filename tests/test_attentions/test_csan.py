import pytest
import torch

from mmcsan.attentions import (CSaN, Softmax, TokenLayout, build_attention,
                               pool_siblings)
from mmcsan.attentions.csan import quasi_linear

GRID = (3, 5)


def layout(windows=1, masked=False, padded=False):
    tokens = GRID[0] * GRID[1]
    generator = torch.Generator().manual_seed(1)
    mask = valid = None
    if masked:
        hidden = torch.rand(windows, tokens, tokens, generator=generator) < .3
        hidden &= ~torch.eye(tokens, dtype=torch.bool)
        mask = hidden * -100.
    if padded:
        valid = torch.ones(windows, tokens, dtype=torch.bool)
        valid[:, -4:] = False
    return TokenLayout(GRID, mask=mask, valid=valid)


def csan(**kwargs):
    torch.manual_seed(0)
    return CSaN(48, 3, grid_size=GRID, **kwargs).double().eval()


def shake(module):
    """Random weights large enough for every term to matter."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(
                torch.randn(param.shape, generator=generator) *
                (0.5 if param.dim() < 2 else param.shape[-1]**-0.5))
    return module


def tokens(groups=4):
    generator = torch.Generator().manual_seed(3)
    shape = (groups, GRID[0] * GRID[1], 48)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize('variant', ['unbounded', 'bounded'])
@pytest.mark.parametrize('granularity', ['unit', 'head'])
@pytest.mark.parametrize('posinfo', [False, True])
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('padded', [False, True])
def test_identity_is_plain_attention(variant, granularity, posinfo, masked,
                                     padded):
    ours = csan(
        variant=variant, granularity=granularity, posinfo=posinfo,
        init='identity')
    plain = Softmax(48, 3, grid_size=GRID).double().eval()
    shared_keys = plain.state_dict()
    for key, value in shared_keys.items():
        generator = torch.Generator().manual_seed(len(key))
        value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    ours.load_state_dict(shared_keys, strict=False)
    lay = layout(2, masked, padded)
    out = ours(tokens(), lay)
    assert (out - plain(tokens(), lay)).abs().max() < 1e-12
    grid_map = out.view(4, *GRID, 48)
    again = ours.forward_map(grid_map, TokenLayout(GRID))
    assert (again - grid_map).abs().max() < 1e-12


@pytest.mark.parametrize('dim, heads', [(48, 3), (40, 2), (100, 5),
                                        (336, 4)])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_identity_is_plain_attention_to_the_bit(dim, heads, dtype):
    """Where the fused kernel does it, with whatever width of a head."""
    torch.manual_seed(0)
    plain = Softmax(dim, heads).to(dtype).eval()
    ours = CSaN(dim, heads, init='identity').to(dtype).eval()
    ours.load_state_dict(plain.state_dict(), strict=False)
    x = 3 * torch.randn(2, 70, dim, dtype=dtype)
    lay = TokenLayout((7, 10))
    assert torch.equal(ours(x, lay), plain(x, lay))


def test_identity_learns():
    module = csan(init='identity')
    module(tokens(), layout()).square().sum().backward()
    for layer in (module.temp, module.magk, module.ka, module.kv):
        assert layer.weight.grad.abs().max() > 0


def test_paper_init_differs_from_plain():
    module = csan()
    plain = Softmax(48, 3, grid_size=GRID).double()
    plain.load_state_dict({
        key: value
        for key, value in module.state_dict().items()
        if key in plain.state_dict()
    })
    gap = module(tokens(), layout()) - plain(tokens(), layout())
    assert gap.abs().max() > 1e-6


def reference(module, x, lay):
    """The paper's table, one row and head at a time."""
    groups, count, dim = x.shape
    heads, width = module.num_heads, dim // module.num_heads
    q, k, v = module.qkv(x).view(groups, count, 3, heads,
                                 width).permute(2, 0, 3, 1, 4)
    bias = module.relative_bias()
    template = module.u(x).sigmoid().view(groups, count, heads, -1)
    windows = 1 if lay.mask is None else len(lay.mask)
    logits = torch.zeros(groups, heads, count, count, dtype=x.dtype)
    iota = torch.zeros_like(template)
    for g in range(groups):
        for h in range(heads):
            s = q[g, h] @ k[g, h].t() / width**0.5 + bias[h]
            if lay.mask is not None:
                s = s + lay.mask[g % windows]
            logits[g, h] = s
            phi = torch.where(s > 0.25, s, 0.25 * torch.exp(s / 0.25 - 1))
            iota[g, :, h] = phi.mean(1, keepdim=True) * template[g, :, h]
    z = module.reduce(iota.flatten(2))
    z = z * torch.sigmoid(module.act.proj(z))
    out = torch.zeros_like(x).view(groups, count, heads, width)
    tau, mu = 1 + module.temp(z), 1 + module.magk(z)
    public = (1 + module.ka(z)).view(groups, count, heads, -1)
    private = module.kv(z).view(groups, count, heads, -1)
    for g in range(groups):
        for h in range(heads):
            weights = (tau[g, :, h, None] * logits[g, h]).softmax(1)
            weights = weights * mu[g, :, h]
            out[g, :, h] = (weights @ v[g, h]) * public[g, :, h]
            out[g, :, h] += v[g, h] * private[g, :, h]
    return module.proj(out.flatten(2))


@pytest.mark.parametrize('granularity', ['unit', 'head'])
@pytest.mark.parametrize('masked', [False, True])
def test_equations(granularity, masked):
    module = shake(csan(granularity=granularity))
    lay = layout(2, masked)
    gap = module(tokens(), lay) - reference(module, tokens(), lay)
    assert gap.abs().max() < 1e-10


def test_head_granularity_shapes():
    unit, head = csan(), csan(granularity='head')
    assert unit.ka.out_features == unit.kv.out_features == 48
    assert head.ka.out_features == head.kv.out_features == 3


@pytest.mark.parametrize('hard', [False, True])
def test_padding_equals_absence(hard):
    """Real tokens fare as if the group held nothing else."""
    module = shake(csan(hard_shift_mask=hard))
    module.has_rel_pos_bias = False  # groups of any length
    x = tokens()
    valid = torch.ones(2, 15, dtype=torch.bool)
    valid[:, 11:] = False
    out = module(x, TokenLayout(GRID, valid=valid))
    alone = module(x[:, :11], TokenLayout((1, 11)))
    assert (out[:, :11] - alone).abs().max() < 1e-12
    x[:, 11:] = 1e3
    again = module(x, TokenLayout(GRID, valid=valid))
    assert torch.equal(out[:, :11], again[:, :11])


def test_hard_shift_mask_hides_under_negative_temperature():
    x = tokens()
    lay = layout(2, masked=True)
    for hard in (False, True):
        module = shake(csan(hard_shift_mask=hard))
        with torch.no_grad():
            module.temp.weight.zero_()
            module.temp.bias.fill_(-3.)  # tau = -2 for every row
        logits = torch.zeros(2, 2, 3, 15, 15, dtype=torch.float64)
        logits = logits + lay.mask[:, None]
        from mmcsan.attentions.csan import compensated_softmax
        tau = torch.full((2, 2, 3, 15, 1), -2., dtype=torch.float64)
        weights = compensated_softmax(logits, tau, module._hidden(lay))
        leaked = weights[(lay.mask[:, None] < 0).expand_as(weights)].max()
        assert leaked == 0 if hard else leaked > 0.05
        assert module(x, lay).isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_statistics_are_float32_under_autocast(monkeypatch, dtype):
    seen = []

    def spy(scores, beta=0.25):
        seen.append(scores.dtype)
        return quasi_linear(scores, beta)

    monkeypatch.setattr('mmcsan.attentions.csan.quasi_linear', spy)
    monkeypatch.setattr(CSaN, 'fused', False)
    module = shake(csan()).float()
    x = tokens().float() * 3
    with torch.autocast('cpu', dtype):
        out = module(x, layout(2, True, True))
    assert seen == [torch.float32]
    assert out.isfinite().all()


def test_quasi_linear_shape():
    x = torch.linspace(-200, 5, 4001, dtype=torch.float64)
    y = quasi_linear(x)
    assert (y >= 0).all() and (y.diff() >= 0).all()
    assert torch.allclose(y[x > 0.25], x[x > 0.25])
    low = x[x < 0.25]
    assert torch.allclose(y[x < 0.25], 0.25 * torch.exp(low / 0.25 - 1))


@pytest.mark.parametrize('kwargs, word', [
    (dict(variant='free'), 'variant'),
    (dict(granularity='token'), 'granularity'),
    (dict(init='zero'), 'init'),
    (dict(attn_drop=1.5), 'attn_drop'),
    (dict(proj_drop=-1), 'proj_drop'),
])
def test_bad_arguments(kwargs, word):
    with pytest.raises(ValueError, match=word):
        CSaN(48, 3, **kwargs)


def test_heads_must_divide():
    with pytest.raises(ValueError, match='num_heads=5'):
        CSaN(48, 5)
    with pytest.raises(ValueError, match='num_heads=8'):
        CSaN(48, 8)  # divides 48 but not 48 / 4


def test_unknown_arguments_and_names():
    with pytest.raises(TypeError, match='temperature'):
        CSaN(48, 3, temperature=2)
    with pytest.raises(KeyError, match='CSaN.*Softmax'):
        build_attention('Attention', dim=48, num_heads=3)
    with pytest.raises(TypeError, match='num_heads'):
        build_attention(dict(type='CSaN', num_heads=3), dim=48, num_heads=3)
    with pytest.raises(TypeError, match='name or a dict'):
        build_attention(3)


@pytest.mark.parametrize('cls', [CSaN, Softmax])
def test_layout_must_fit(cls):
    module = cls(48, 3, grid_size=GRID)
    with pytest.raises(ValueError, match='3x5'):
        module(torch.zeros(2, 14, 48), TokenLayout(GRID))
    with pytest.raises(ValueError, match='grid_size'):
        module(torch.zeros(2, 15, 48), TokenLayout((5, 3)))


@pytest.mark.parametrize('cls', [CSaN, Softmax])
def test_dropout_only_in_training(cls):
    module = cls(48, 3, grid_size=GRID, attn_drop=.5).double()
    x, lay = tokens(), layout(2, True, True)
    assert not torch.equal(module(x, lay), module(x, lay))
    module.eval()
    assert torch.equal(module(x, lay), module(x, lay))


def test_train_and_eval_return_self():
    module = csan()
    assert module.train() is module and module.eval() is module


SIBLINGS = 3


def pooled(padded=False):
    """Rows of five pooled tokens; the last has padding, and one is padding."""
    valid = None
    if padded:
        valid = torch.ones(2, 15, dtype=torch.bool)
        valid[0, [4, 9, 14]] = False
        valid[1, 13:] = False
    return TokenLayout(GRID, valid=valid, q_pool=SIBLINGS)


def wide(cls=CSaN, **kwargs):
    torch.manual_seed(0)
    module = cls(48, 6, dim_out=96, grid_size=GRID, rel_pos_bias=False,
                 **kwargs)
    return shake(module.double().eval())


def pooled_reference(module, x):
    """The paper's words on pooled queries, one token at a time."""
    groups, count, _ = x.shape
    heads, rows = 6, count // SIBLINGS
    q, k, v = module.qkv(x).view(groups, count, 3, heads, 16).permute(
        2, 0, 3, 1, 4)
    template = module.u(x).sigmoid().view(groups, count, heads, -1)
    out = torch.zeros(groups, rows, 96, dtype=x.dtype)
    for g in range(groups):
        members = [[r + i * rows for i in range(SIBLINGS)]
                   for r in range(rows)]
        s = torch.stack([q[g][:, m].amax(1) for m in members], 1)
        s = s @ k[g].transpose(1, 2) / 4  # (H, rows, N)
        phi = torch.where(s > .25, s, .25 * torch.exp(s / .25 - 1)).mean(2)
        iota = torch.stack([
            (phi[:, n % rows, None] * template[g, n]).flatten()
            for n in range(count)])
        z = module.reduce(iota)
        z = z * torch.sigmoid(module.act.proj(z))
        mean = torch.stack([z[m].mean(0) for m in members])
        tau, mu = 1 + module.temp(mean), 1 + module.magk(z)
        public = (1 + module.ka(mean)).view(rows, heads, -1)
        private = module.kv(z).view(count, heads, -1)
        for r in range(rows):
            for h in range(heads):
                weights = (tau[r, h] * s[h, r]).softmax(0) * mu[:, h]
                own = torch.stack([v[g, h, n] * private[n, h]
                                   for n in members[r]]).mean(0)
                out[g, r, 16 * h:16 * h + 16] = (
                    weights @ v[g, h]) * public[r, h] + own
    return module.proj(out)


def test_equations_of_pooled_queries():
    module = wide()
    out = module(tokens(), pooled())
    assert out.shape == (4, 5, 96)
    assert (out - pooled_reference(module, tokens())).abs().max() < 1e-10


@pytest.mark.parametrize('cls', [CSaN, Softmax])
def test_padding_among_siblings_equals_absence(cls):
    """Of the pooled tokens of group 0 the last is padding: as if away."""
    module = wide(cls)
    x = tokens(2)
    out = module(x, pooled(padded=True))
    assert out.isfinite().all()
    kept = [n for n in range(15) if n % 5 != 4]
    alone = module(x[:1, kept], TokenLayout((1, 12), q_pool=SIBLINGS))
    assert (out[:1, :4] - alone).abs().max() < 1e-12
    x[~pooled(padded=True).valid] = 1e3
    again = module(x, pooled(padded=True))
    assert torch.equal(out[0, :4], again[0, :4])
    assert torch.equal(out[1], again[1])  # where each has a real sibling


def test_padding_gets_no_gradient():
    for cls in (CSaN, Softmax):
        module, lay = wide(cls), pooled(padded=True)
        x = tokens(2).requires_grad_()
        out = module(x, lay)
        (out[0, :4].sum() + out[1].sum()).backward()
        assert x.grad.isfinite().all()
        assert x.grad[~lay.valid].abs().max() == 0
        assert x.grad[lay.valid].abs().amax(1).min() > 0


def test_pool_siblings():
    x = tokens(2)
    lay = pooled(padded=True)
    for how, pool in (('max', torch.amax), ('mean', torch.mean)):
        out = pool_siblings(x, lay, how)
        assert torch.equal(out[0, 0], pool(x[0, [0, 5, 10]], 0))
        assert torch.allclose(out[1, 3], pool(x[1, [3, 8]], 0))
        assert out[0, 4].isfinite().all()
        heads = x.unflatten(2, (4, 12)).transpose(1, 2)  # (G, H, N, d)
        apart = pool_siblings(heads, lay, how).transpose(1, 2).flatten(2)
        assert torch.equal(apart, out)


@pytest.mark.parametrize('granularity', ['unit', 'head'])
@pytest.mark.parametrize('padded', [False, True])
def test_identity_with_pooled_queries(granularity, padded):
    ours = wide(granularity=granularity, init='identity')
    ours.reset_parameters()
    plain = wide(Softmax)
    ours.load_state_dict(plain.state_dict(), strict=False)
    lay = pooled(padded)
    out, expect = ours(tokens(), lay), plain(tokens(), lay)
    assert (out - expect).abs().max() < 1e-12


@pytest.mark.parametrize('cls', [CSaN, Softmax])
def test_prefix_and_normalised_queries(cls):
    module = cls(48, 3, grid_size=GRID, rel_pos_bias=False, qk_norm=True)
    module = shake(module.double().eval())
    x = torch.cat([tokens()[:, :2], tokens()], dim=1)
    out = module(x, TokenLayout(GRID, prefix=2))
    assert out.shape == (4, 17, 48)
    scaled = module.qkv.weight.detach().clone()
    with torch.no_grad():
        scaled[:96] *= 7  # of queries and keys: normalised away, but for eps
        module.qkv.weight.copy_(scaled)
        module.qkv.bias[:96] *= 7
    again = module(x, TokenLayout(GRID, prefix=2))
    assert (out - again).abs().max() < 1e-4
    with pytest.raises(ValueError, match='siblings'):
        TokenLayout(GRID, prefix=1, q_pool=3)


def test_padding_in_windows_of_several_images():
    """Without a bias table padding is hidden by a mask of its own."""
    module = shake(
        Softmax(48, 3, grid_size=GRID, rel_pos_bias=False).double().eval())
    valid = torch.ones(2, 15, dtype=torch.bool)
    valid[0, 11:] = False
    valid[1, 3:] = False
    out = module(tokens(), TokenLayout(GRID, valid=valid))
    for group, count in ((0, 11), (1, 3), (2, 11), (3, 3)):
        alone = module(tokens()[group:group + 1, :count],
                       TokenLayout((1, count)))
        assert (out[group, :count] - alone[0]).abs().max() < 1e-12


def test_refusals_are_one_sentence():
    with pytest.raises(ValueError, match='PolaPP cannot .* reduced map.*grid'):
        build_attention('PolaPP', dim=48, num_heads=3, sr_ratio=2)
    build_attention('CSaN', ('q_pool', 'prefix'), dim=48, num_heads=3)


@pytest.mark.parametrize('grid', [(4, 6), (5, 7), (1, 1)])
def test_reduced_keys(grid):
    """Each token has a row of its own; columns and own values are cells."""
    height, width = grid
    ratio, heads, dim = 2, 3, 48
    module = shake(CSaN(dim, heads, sr_ratio=ratio)).double()
    x = torch.randn(2, height * width, dim, dtype=torch.float64)
    out = module(x, TokenLayout(grid))

    q = module.q(x).unflatten(-1, (heads, -1)).transpose(1, 2)
    reduced = module.reduce_map(x, TokenLayout(grid))
    k, v = (
        t.unflatten(-1, (heads, -1)).transpose(1, 2)
        for t in module.key_value(reduced).chunk(2, -1))
    s = q @ k.transpose(-2, -1) * module.scale
    z = module.describe(x, quasi_linear(s).mean(-1))
    cell = torch.tensor([(i // width // ratio) * -(-width // ratio)
                         + i % width // ratio for i in range(height * width)])
    columns = torch.stack(
        [z[:, cell == c].mean(1) for c in range(reduced.shape[1])], 1)
    comp = module.compensate(z, None, columns)
    weights = (comp.temperature * s).softmax(-1)
    truth = (weights @ (comp.column * v)) * comp.public
    truth = truth + v[:, :, cell] * comp.private
    truth = module.proj(truth.transpose(1, 2).flatten(2))
    assert (out - truth).abs().max() < 1e-10
