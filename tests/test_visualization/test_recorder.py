"""Records of attentions: what they hold is true, and costs nothing."""
import contextlib
import functools

import pytest
import torch
import torch.nn.functional as F

from mmcsan.registry import MODELS
from mmcsan.visualization import record_attention, token_stride
from mmcsan.visualization.pola_readers import READERS
from mmcsan.visualization.readers import Reader

STAGES = dict(depths=[1, 2, 1, 1])
DIMS = dict(embed_dims=[24, 24, 48, 48], num_heads=[1, 2, 2, 3], **STAGES)
SWIN = dict(
    type='SwinTransformer',
    arch=dict(embed_dims=24, num_heads=[1, 2, 2, 3], **STAGES))
VIT = dict(
    type='VisionTransformer',
    arch=dict(embed_dims=24, depth=3, num_heads=3),
    patch_size=8,
    img_size=32)
HIERA = dict(
    type='Hiera',
    arch=dict(embed_dims=24, num_heads=1, **STAGES),
    img_size=64,
    window_size=(8, 4, None, None))
PVT = dict(
    type='PyramidVisionTransformer',
    arch=dict(DIMS, mlp_ratios=[2] * 4),
    img_size=64)
PP = dict(
    type='PolaFormerPP',
    arch=dict(DIMS, layer_scale=[1, 1, 1, None]),
    img_size=64)
SOFTMAX = ['Softmax', 'CSaN']
EVERY = [*SOFTMAX, 'Pola', 'PolaPP', 'PolaPPSoftmax']
CASES = [(dict(SWIN, window_size=4), a) for a in EVERY] + [
    (SWIN, 'Pola'),
    (dict(VIT, window_size=3, global_blocks=[2], reg_tokens=2), 'CSaN'),
    (dict(VIT, window_size=(2, 3), class_token=False), 'Pola'),
    (VIT, 'Softmax'),
    *((HIERA, a) for a in (*SOFTMAX, 'Pola')),
    *((PVT, a) for a in (*SOFTMAX, 'Pola')),
    (dict(PVT, linear_sr_ratios=2), 'Pola'),
    (PP, ['PolaPP', 'PolaPP', 'PolaPPSoftmax', 'CSaN']),
]
POINTS = [(0, 0), (52, 84), (17, 30), (40, 3)]
cases = pytest.mark.parametrize(
    'backbone, attention', CASES,
    ids=[f'{b["type"]}-{i}-{a if isinstance(a, str) else "mixed"}'
         for i, (b, a) in enumerate(CASES)])


def build(backbone, attention):
    torch.manual_seed(0)
    model = MODELS.build(
        dict(backbone, type=f'mmcsan.{backbone["type"]}',
             attention=attention, drop_path_rate=0.)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() > 1 and 'embed' not in name:
                param.copy_(torch.randn(param.shape, generator=generator) *
                            param[0].numel()**-0.5)
            else:
                param.add_(torch.randn(param.shape, generator=generator) / 5)
    return model


def image(height=53, width=85, batch=2):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, 3, height, width, generator=generator)


def state(model):
    return {name: set(vars(m)) for name, m in model.named_modules()}


def hooks(model):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks)
               for m in model.modules())


@cases
def test_recording_changes_nothing(backbone, attention):
    model, x = build(backbone, attention), image()
    plain = model(x)
    before = state(model), hooks(model)
    with record_attention(model, rows=[(7, 30)], entropy=True) as records:
        recorded = model(x)
    assert list(records) == [
        name for name, m in model.named_modules() if m in model.attentions()]
    assert (state(model), hooks(model)) == before
    for a, b, c in zip(plain, recorded, model(x)):
        assert torch.equal(a, b) and torch.equal(a, c)


def coordinates(size, stride):
    """Rows and columns of the tokens of a map: (2, h, w)."""
    sides = [torch.arange(-(-n // stride)) + 1. for n in size]
    return torch.stack(torch.meshgrid(*sides, indexing='ij'))


def stride_of(backbone, name):
    """The stride of the map that an attention of a test model works on."""
    if backbone['type'] == 'VisionTransformer':
        return 8
    stage, block = (int(n) for n in name.split('.')[1:4:2])
    # The first block of a Hiera stage works on the map in front.
    earlier = backbone['type'] == 'Hiera' and stage and not block
    return 4 * 2**(stage - bool(earlier))


def carry_coordinates(model, backbone, size):
    """Let the normed map in front of each attention be the coordinates of its
    tokens, which the real forward then cuts, rolls and pads."""

    def replace(place, norm, args, out):
        value = torch.zeros_like(out)
        place = place.permute(1, 2, 0).to(out.dtype)  # (h, w, 2)
        if out.dim() == 4:
            value[..., :2] = place
        else:
            value[:, -place[..., 0].numel():, :2] = place.flatten(0, 1)
        return value

    for name, module in model.named_modules():
        if name.endswith('norm1') and 'blocks' in name:
            place = coordinates(size, stride_of(backbone, name))
            module.register_forward_hook(functools.partial(replace, place))


def value_of(place):
    """What a token's values are, for a test, from its coordinates."""
    return (place[0] * 1.7 + place[1]**2 / 9) * (place[0] > 0)


def in_cells(value, ratio):
    """The mean of each ratio x ratio cell, at each of its tokens."""
    height, width = value.shape
    cells = F.avg_pool2d(
        value[None, None], ratio, ceil_mode=True, count_include_pad=False)
    cells = cells[0, 0].repeat_interleave(ratio, 0)[:height]
    return cells.repeat_interleave(ratio, 1)[:, :width]


def known_values(attention):
    """Have an attention's values depend on where tokens lie alone."""
    project, ratio = attention.project, attention.sr_ratio or 1

    def run(x, layout):
        q, k, v, *rest = project(x, layout)
        value = value_of(x[..., :2].unbind(-1))  # (G, N)
        if ratio > 1:
            value = F.avg_pool2d(
                value.unflatten(1, layout.grid)[:, None], ratio,
                ceil_mode=True, count_include_pad=False).flatten(1)
        # Queries and keys must differ from token to token.
        noise = torch.Generator().manual_seed(x.shape[0])
        q, k = (t + torch.randn(t.shape, generator=noise, dtype=t.dtype) / 2
                for t in (q, k))
        return q, k, value.unsqueeze(-1).expand_as(v), *rest

    vars(attention)['project'] = run


def tell_more(monkeypatch, method, tell):
    """Add to what every reader tells."""
    for cls in {Reader, *READERS.values()}:
        old = getattr(cls, method)
        monkeypatch.setattr(
            cls, method,
            lambda self, old=old: {**old(self), **tell(self)})


@cases
@pytest.mark.parametrize('size', [(53, 85), (96, 64), (3, 70)])
def test_maps_lie_on_the_image(backbone, attention, size, monkeypatch):
    """What a token has is recorded where the token lies: here, where."""
    model = build(backbone, attention)
    carry_coordinates(model, backbone, size)
    tell_more(monkeypatch, 'by_token', lambda self: dict(
        place=self.noted['project'][0][0][..., :2].transpose(1, 2)))
    with torch.no_grad(), record_attention(model) as records:
        model(image(*size))
    for name, record in records.items():
        place = coordinates(size, stride_of(backbone, name))
        assert record.size == place.shape[1:]
        assert record.input_size == size
        for stride, length in zip(record.stride, size):
            # beyond the last token the stride is no question
            assert stride == stride_of(backbone, name) or length <= stride
        for one in record.maps['place']:
            assert torch.equal(one, place)


def expected_output(record, value, ratio, pooled, at):
    """The equations, with what was recorded, at points: (B, H, F, points).
    """
    value = in_cells(value, ratio) if ratio > 1 else value
    amplified = value * record.maps['amplification'] if (
        record.kind == 'CSaN') else value.expand(
            record.rows.shape[0], record.num_heads, -1, -1)
    # (B, N, H, F, h, w) x (B, H, h, w) -> (B, H, F, N)
    out = torch.einsum('bnhfyx,bhyx->bhfn', record.rows, amplified)
    if record.kind == 'CSaN':
        gain, own = (record.maps[n].unflatten(1, (record.num_heads, -1))
                     for n in ('public_gain', 'private_gain'))
        own = own * value
        if pooled:
            own = torch.stack([in_cells(m, 2) for m in own.flatten(0, 2)]
                              ).view_as(own)
        out = out * gain.flatten(3)[..., at] + own.flatten(3)[..., at]
    return out


@cases
def test_recorded_rows_and_gains_make_the_output(backbone, attention,
                                                 monkeypatch):
    model, size = build(backbone, attention).double(), (53, 85)
    carry_coordinates(model, backbone, size)
    for module in model.attentions():
        known_values(module)

    def output(reader):
        out = reader.noted[reader.entry][1]
        if out.dim() == 3:  # (G, N, C) -> (G, H, N, d)
            out = reader.attention.split_heads(out)
        return dict(output=out.transpose(2, 3).flatten(1, 2))

    tell_more(monkeypatch, 'by_query', output)
    with torch.no_grad(), record_attention(model, rows=POINTS) as records:
        model(image(*size).double())
    for name, record in records.items():
        module = model.get_submodule(name)
        stride = stride_of(backbone, name)
        value = value_of(coordinates(size, stride).double())
        at = [y // stride * value.shape[1] + x // stride for y, x in POINTS]
        pooled = getattr(model.get_submodule(name[:-5]), 'stride', (1, 1))
        expect = expected_output(record, value, module.sr_ratio or 1,
                                 pooled == (2, 2), at)
        heads, flows = record.num_heads, len(record.flows)
        real = record.maps['output'].unflatten(1, (heads, -1)).flatten(3)
        real = real[..., at]
        if record.kind != 'CSaN':  # the first channels of each half
            real = real[:, :, ::real.shape[2] // flows]
        error = (real - expect).abs().max() / real.abs().max()
        assert error < 1e-9, (name, error)


@cases
def test_entropy_in_chunks(backbone, attention, monkeypatch):
    """It is that of the rows, whatever the chunks; some rows are enough."""
    model, found = build(backbone, attention).double(), []
    for chunk in (2**20, 50):
        monkeypatch.setattr('mmcsan.visualization.readers.CHUNK', chunk)
        with torch.no_grad(), record_attention(
                model, rows=POINTS, entropy=True) as records:
            model(image(batch=1).double())
        found.append({n: r.maps['entropy'] for n, r in records.items()})
    for name, record in records.items():
        assert (found[0][name] - found[1][name]).abs().max() < 1e-12
        assert record.maps['entropy'].isfinite().all()
        if record.kind == 'PolaPP' or getattr(
                model, 'num_prefix', 0) or model.get_submodule(
                    name).sr_ratio not in (None, 1):
            continue  # rows on the map are not all that there is
        rows = record.rows[0].flatten(3)  # (points, H, F, N)
        rows = rows / rows.sum(-1, keepdim=True)
        expect = torch.special.entr(rows).sum(-1).flatten(1)
        at = [tuple(int(p // s) for p, s in zip(point, record.stride))
              for point in POINTS]
        for (y, x), one in zip(at, expect):
            assert torch.allclose(found[0][name][0, :, y, x], one, atol=1e-9)
    with torch.no_grad(), record_attention(model, entropy=3) as records:
        model(image(batch=1).double())
    for name, record in records.items():
        some, whole = record.maps['entropy'], found[0][name]
        known = ~some.isnan()
        # The rows that are left may all be of padding.
        if known.any():
            assert (some - whole)[known].abs().max() < 1e-12


@pytest.mark.parametrize('attention', EVERY)
def test_training_is_what_it_was(attention):
    """Gradients too, and with blocks that are computed twice."""
    results = []
    for record in (False, True):
        model = build(dict(SWIN, window_size=4, with_cp=True),
                      attention).train()
        context = record_attention(model, [(9, 9)], entropy=True) if (
            record) else contextlib.nullcontext({})
        with context as records:
            loss = sum(m.square().sum() for m in model(image()))
            kept = dict(records)
            loss.backward()
        assert all(records[name] is kept[name] for name in kept)
        results.append([p.grad for p in model.parameters()])
    for a, b in zip(*results):
        assert torch.equal(a, b)
    assert not any(m.requires_grad for r in kept.values()
                   for m in (*r.maps.values(), r.rows))


@pytest.mark.parametrize('attention', EVERY)
def test_inference_mode_and_autocast(attention):
    model, x = build(dict(SWIN, window_size=4), attention), image()
    with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16):
        plain = model(x)
        with record_attention(model, [(9, 9)], entropy=True) as records:
            outs = model(x)
    assert all(torch.equal(a, b) for a, b in zip(plain, outs))
    for record in records.values():
        assert record.rows.isfinite().all()
        assert all(m.isfinite().all() for m in record.maps.values())


@pytest.mark.parametrize('options', [
    dict(variant='bounded'), dict(granularity='head'),
    dict(hard_shift_mask=True), dict(posinfo=True)])
def test_variants_of_csan(options):
    model = build(dict(SWIN, window_size=4), dict(type='CSaN', **options))
    results = []
    for fused in (True, False):
        for attention in model.attentions():
            attention.fused = fused
        with torch.no_grad(), record_attention(
                model, [(9, 9)], entropy=True) as records:
            model(image())
        results.append(records)
    gains = 1 if 'granularity' in options else 24
    for name, a in results[0].items():
        b = results[1][name]
        assert torch.allclose(a.rows, b.rows, atol=1e-5)
        for key, value in a.maps.items():
            assert torch.allclose(value, b.maps[key], atol=1e-3, rtol=1e-3)
        assert a.per_head('public_gain').shape[1] == a.num_heads
    assert results[0]['stages.0.blocks.0.attn'].maps['public_gain'].shape[
        1] == gains


def test_tokens_in_front_of_the_grid():
    backbone = dict(VIT, window_size=3, global_blocks=[2], reg_tokens=1)
    model = build(backbone, 'CSaN')
    with torch.no_grad(), record_attention(model, rows=[0, 1]) as records:
        model(image())
    windows = records['blocks.0.attn'].rows.flatten(4).sum(-1)
    whole = records['blocks.2.attn'].rows.flatten(4).sum(-1)
    # Each of the 12 windows has a budget of its own, some of it for the two.
    assert (windows < 12).all() and (windows > 1).all() and (whole < 1).all()
    with pytest.raises(ValueError, match='rows=2: blocks.0.attn has 2'):
        with torch.no_grad(), record_attention(model, rows=[2]):
            model(image())


def test_a_window_sees_itself_alone():
    """Shifted by two tokens, with padding, the window of a point is known."""
    model = build(dict(SWIN, window_size=4), 'CSaN')
    for attention in model.attentions():
        attention.hard_shift_mask = True
    with torch.no_grad(), record_attention(model, rows=[(17, 30)]) as records:
        model(image())
    seen = records['stages.1.blocks.1.attn'].rows[0, 0].sum((0, 1)) > 0
    rows, cols = seen.any(1).nonzero(), seen.any(0).nonzero()
    # 7 x 11 tokens of 8 px, windows from 2 on: (2, 3) is in rows and columns
    # 2 to 5.
    assert rows.flatten().tolist() == cols.flatten().tolist() == [2, 3, 4, 5]
    assert records['stages.1.blocks.1.attn'].size == (7, 11)


@pytest.mark.parametrize('corner', [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize('backbone', [dict(SWIN, window_size=4), VIT, HIERA,
                                      PVT], ids=lambda b: b['type'])
def test_what_differs_in_a_quarter_is_recorded_there(backbone, corner):
    """The first block sees tokens of that quarter alone change their keys."""
    model = build(backbone, 'Pola')
    x, y = image(64, 64), image(64, 64)
    quarter = tuple(slice(32 * c, 32 * c + 32) for c in corner)
    y[(..., *quarter)] += 1
    found = []
    for pixels in (x, y):
        with torch.no_grad(), record_attention(
                model, where=lambda name: '.0.' in f'.{name}.') as records:
            model(pixels)
        found.append(next(iter(records.values())).maps['gate'])
    changed = (found[0] != found[1]).any(1).any(0)
    half = changed.shape[0] // 2
    inside = tuple(slice(half * c, half * c + half) for c in corner)
    expect = torch.zeros_like(changed)
    expect[inside] = True
    # Hiera's stem looks three pixels, less than a token, beyond.
    if backbone['type'] == 'Hiera':
        assert changed[inside].all()
        expect = F.max_pool2d(expect[None].float(), 3, 1, 1)[0] > 0
        assert not changed[~expect].any()
    else:
        assert torch.equal(changed, expect)


def test_compiled_backbones_run_as_written():
    model, x = build(dict(SWIN, out_indices=(0, )), 'CSaN'), image()
    model.compile(backend='eager')
    with torch.no_grad():
        plain = model(x)
        with record_attention(model) as records:
            outs = model(x)
        assert len(records) == 1
        assert all(map(torch.equal, plain, outs))
        assert all(map(torch.equal, plain, model(x)))


def test_windows_of_other_projects_have_no_place():
    import mmcsan
    model = MODELS.build(
        dict(type='mmdet.SwinTransformer', embed_dims=24, depths=[1, 1, 2, 1],
             num_heads=[1, 1, 2, 2], window_size=3))
    mmcsan.plug_attention(model, 'CSaN')
    with torch.no_grad(), record_attention(model, [(1, 1)]) as records:
        model(image())
    assert len(records) == 5
    for record in records.values():
        assert record.size is None and record.rows is None
        assert record.maps['temperature'].dim() == 3


def test_foreign_vit():
    import mmcsan
    model = MODELS.build(
        dict(type='mmpretrain.VisionTransformer', img_size=(32, 48),
             patch_size=8, out_type='featmap',
             arch=dict(embed_dims=24, num_layers=2, num_heads=3,
                       feedforward_channels=24)))
    mmcsan.plug_attention(model, 'CSaN')
    with torch.no_grad(), record_attention(model, [(1, 1)]) as records:
        model(image(32, 48))
    record = records['layers.0.attn']
    assert record.size == (4, 6) and record.stride == (8, 8)
    assert record.rows.shape == (2, 1, 3, 1, 4, 6)


def test_finds_nothing():
    with pytest.raises(ValueError, match='Linear has no attention of mmcsan'):
        with record_attention(torch.nn.Linear(1, 1)):
            pass
    with pytest.raises(ValueError, match='whose name is wanted'):
        with record_attention(build(SWIN, 'CSaN'), where=lambda name: False):
            pass


@pytest.mark.parametrize('length, tokens, stem, stride', [
    (53, 14, 4, 4), (53, 4, 4, 16), (53, 2, 1, 32), (100, 8, 14, 14),
    (28, 2, 14, 14), (224, 16, 1, 14), (3, 1, 4, 4)])
def test_token_stride(length, tokens, stem, stride):
    assert token_stride(length, tokens, stem) == stride
