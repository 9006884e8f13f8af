import pytest
import torch
import torch.nn.functional as F
from contract import (check_autocast, check_batch, check_caches,
                      check_checkpointing, check_frozen, check_gradients,
                      check_padding, check_sizes, check_state_dict, image,
                      shake)

from mmcsan.attentions import CSaN, Softmax, pool_siblings
from mmcsan.backbones import Hiera
from mmcsan.backbones.hiera import HIERA_ARCHS, unit_grid

SMALL = dict(embed_dims=16, depths=[1, 2, 2, 1], num_heads=2)
ATTENTIONS = [
    'Softmax', 'CSaN',
    dict(type='CSaN', variant='bounded', granularity='head'),
    dict(type='CSaN', posinfo=True)
]
FORMS = [
    dict(),
    dict(window_size=(4, (2, 4), 2, 3), global_blocks=(3, ), init_values=.1),
    dict(abs_win_pos_embed=True, abs_pos_size=3, use_expand_proj=False),
    dict(q_pool=1, q_stride=(2, 1), window_size=((4, 8), None, 3, 2)),
]


def build(attention='CSaN', **kwargs):
    torch.manual_seed(0)
    kwargs = dict(dict(arch=SMALL, img_size=64, drop_path_rate=0.), **kwargs)
    return Hiera(attention=attention, **kwargs)


@pytest.mark.parametrize('name', HIERA_ARCHS)
def test_archs_by_both_names(name):
    with torch.device('meta'):
        long = Hiera(name, 'Softmax')
        short = Hiera(name.replace('hiera-', ''), 'Softmax')
    assert list(long.state_dict()) == list(short.state_dict())
    assert long.depths == HIERA_ARCHS[name]['depths']
    heads = HIERA_ARCHS[name]['num_heads']
    assert [s.blocks[0].attn.num_heads for s in long.stages] == [
        heads * 2**i for i in range(4)]


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS[:3])
@pytest.mark.parametrize('size', [(1, 1), (64, 64), (53, 85), (97, 5)])
def test_any_size(attention, form, size):
    check_sizes(build(attention, **form), size, (4, 8, 16, 32))


def test_strides_follow_pooling():
    model = build(**FORMS[3])
    assert [tuple(out.shape[2:]) for out in model(image(53, 85))] == [
        (14, 22), (7, 22), (7, 22), (7, 22)]
    stem = build(patch_kernel=3, patch_stride=2, patch_padding=1)
    check_sizes(stem, (33, 50), (2, 4, 8, 16))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS)
def test_padding_is_never_seen(attention, form, monkeypatch):
    model = shake(build(attention, **form)).eval()
    check_padding(model, monkeypatch, 'mmcsan.backbones.hiera.pad_map')


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS)
def test_batch_independence(attention, form):
    check_batch(shake(build(attention, **form)))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS)
def test_gradients_reach_every_parameter(attention, form):
    check_gradients(shake(build(attention, **form)))


@pytest.mark.parametrize('attention', ['CSaN', 'Softmax'])
@pytest.mark.parametrize('form', FORMS[:2])
def test_checkpointing_changes_nothing(attention, form):
    check_checkpointing(lambda **kw: build(attention, **form, **kw))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_is_finite(attention, dtype):
    check_autocast(shake(build(attention)), dtype)


def test_state_dict_holds_nothing_derived():
    for form in FORMS:
        check_state_dict(build(**form))


def test_units_are_made_once(monkeypatch):
    model = build(window_size=(8, 4, 6, 3))
    check_caches(model, monkeypatch, 'mmcsan.backbones.hiera.unit_grid',
                 [stage._grids for stage in model.stages],
                 3 * model.stages[0].max_cached)


@pytest.mark.parametrize('window', [(4, 6), (2, 2), None])
@pytest.mark.parametrize('stride', [(1, 1), (2, 2), (2, 1)])
def test_units_hold_neighbours_and_siblings(window, stride):
    size = (5, 7)
    grid = unit_grid(size, window, stride, torch.device('cpu'))
    # Every token bears its row and column.
    rows, cols = torch.meshgrid(*map(torch.arange, size), indexing='ij')
    x = torch.stack([rows, cols], -1).double()[None].repeat(2, 1, 1, 1)
    x[1] += 100
    units = grid.split(x)
    valid = torch.ones(units.shape[:2], dtype=torch.bool)
    if grid.layout.valid is not None:
        valid = grid.layout.valid.repeat(2, 1)
    assert valid.sum() == 2 * 5 * 7
    sides = torch.tensor(grid.layout.grid)
    for unit, real in zip(units, valid):
        spread = unit[real] - unit[real].amin(0)
        assert (spread < sides).all()
    pooled = grid.crop(grid.merge(pool_siblings(units, grid.layout, 'max')))
    expect = F.max_pool2d(
        x.permute(0, 3, 1, 2), stride, stride, ceil_mode=True)
    assert torch.equal(pooled.permute(0, 3, 1, 2), expect)
    pooled = grid.crop(grid.merge(pool_siblings(units, grid.layout, 'mean')))
    expect = F.avg_pool2d(
        x.permute(0, 3, 1, 2), stride, stride, ceil_mode=True)
    assert torch.allclose(pooled.permute(0, 3, 1, 2), expect)
    if grid.layout.order is not None:
        # Told the order, a unit is a map again: rows ascend, columns too.
        whole = units[0][grid.layout.order].unflatten(0, grid.layout.grid)
        assert (whole[..., 0][:1].diff(dim=1) == 0).all()
        assert (whole[..., 1][:, :1].diff(dim=0) == 0).all()


def test_units_before_the_global_stages():
    """With the default windows nothing crosses a unit of the first stage."""
    model = shake(build(out_indices=(1, ), patch_kernel=4, patch_padding=0))
    x = image(64, 64).requires_grad_()
    out, = model(x)
    grad, = torch.autograd.grad(out[..., :4, :4].sum(), x)
    assert grad[..., :32, :32].abs().max() > 0
    assert grad[..., 32:, :].abs().max() == 0
    assert grad[..., 32:].abs().max() == 0


def test_windows_of_blocks():
    model = build(window_size=(8, 4, 14, 7), global_blocks=(4, ))
    windows = [b.window for s in model.stages for b in s.blocks]
    assert windows == [(8, 8), (8, 8), (4, 4), (4, 4), None, (14, 14)]
    default = [b.window for s in build().stages for b in s.blocks]
    assert default == [(8, 8), (8, 8), (4, 4), (4, 4), None, None]


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_one_unit_is_no_unit(attention):
    """A map within one unit, padded or not, fares as the whole map does."""
    whole = shake(build(attention, window_size=(None, ) * 4)).double().eval()
    units = build(attention, window_size=(16, 10, 6, 3)).double().eval()
    units.load_state_dict(whole.state_dict())
    x = image(50, 38).double()
    for a, b in zip(whole(x), units(x)):
        assert (a - b).abs().max() < 1e-10


def test_native_positions_are_exact_and_others_bicubic():
    model = shake(build(img_size=(24, 40)))
    table = model.pos_embed.unflatten(1, (6, 10))
    assert torch.equal(model.positions((6, 10)), table)
    for size in ((9, 4), (1, 1)):
        expect = F.interpolate(
            table.permute(0, 3, 1, 2), size=size, mode='bicubic')
        gap = model.positions(size).permute(0, 3, 1, 2) - expect
        assert gap.abs().max() < 1e-5


def test_window_and_global_positions():
    model = shake(build(abs_win_pos_embed=True, abs_pos_size=(3, 5)))
    assert model.pos_embed.shape == (1, 16, 3, 5)
    assert model.pos_embed_win.shape == (1, 16, 8, 8)
    for size in ((16, 24), (3, 5), (9, 4)):
        whole = F.interpolate(
            model.pos_embed, size=size, mode='bicubic', antialias=True)
        tiled = model.pos_embed_win.tile(1, 1, 2, 3)[..., :size[0], :size[1]]
        gap = model.positions(size).permute(0, 3, 1, 2) - whole - tiled
        assert gap.abs().max() < 1e-5


def test_residual_without_projection():
    model = build(use_expand_proj=False)
    assert not any('blocks.0.proj' in name for name in model.state_dict())
    block = model.stages[1].blocks[0]
    x = torch.randn(1, 8, 8, 16)
    with torch.no_grad():
        block.attn.proj.weight.zero_()
        block.attn.proj.bias.zero_()
        block.ffn.layers[1].weight.zero_()
        block.ffn.layers[1].bias.zero_()
    out = block(x, unit_grid((8, 8), (8, 8), (2, 2), x.device))
    chans = x.permute(0, 3, 1, 2)
    expect = torch.cat(
        [F.max_pool2d(chans, 2), F.avg_pool2d(chans, 2)], dim=1)
    assert torch.allclose(out.permute(0, 3, 1, 2), expect, atol=1e-6)


@pytest.mark.parametrize('indices', [(0, 1, 2, 3), (1, 2), (2, ), (-1, )])
def test_out_indices_build_no_unused_parameters(indices):
    model = shake(build(out_indices=indices))
    positive = [i % 4 for i in indices]
    assert len(model.stages) == positive[-1] + 1
    norms = {n for n, _ in model.named_children() if n.startswith('norm')}
    assert norms == {f'norm{i}' for i in positive}
    check_gradients(model)


@pytest.mark.parametrize('frozen', [-1, 0, 1, 3, 4])
def test_frozen_stages_from_the_start(frozen):
    model = build(frozen_stages=frozen, drop_rate=.1, **FORMS[2])

    def stage_of(name):
        head, _, rest = name.partition('.')
        return int(rest.split('.')[0] if head == 'stages' else head[4:])

    check_frozen(
        model, frozen, lambda name: not name.startswith(('stages', 'norm')),
        stage_of)


def test_layer_depths():
    model = build(**FORMS[2])
    depths = {}
    for name, _ in model.named_parameters():
        depth, total = model.get_layer_depth('backbone.' + name, 'backbone.')
        assert total == 8
        depths.setdefault(depth, set()).add('.'.join(name.split('.')[:4]))
    assert depths[0] == {
        'pos_embed', 'pos_embed_win', 'patch_embed.projection.weight',
        'patch_embed.projection.bias'}
    assert [depths[i + 1] for i in range(6)] == [
        {f'stages.{s}.blocks.{b}'}
        for s, b in ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0))]
    assert depths[7] == {
        f'norm{i}.{k}' for i in range(4) for k in ('weight', 'bias')}
    assert model.get_layer_depth('head.weight', 'backbone.') == (7, 8)


def test_attention_by_stage_and_block():
    model = build(['CSaN', ['Softmax', 'CSaN'], 'Softmax',
                   dict(type='CSaN', variant='bounded')])
    kinds = [type(a) for a in model.attentions()]
    assert kinds == [CSaN, Softmax, CSaN, Softmax, Softmax, CSaN]
    assert model.attentions()[-1].variant == 'bounded'
    assert model(image())[-1].isfinite().all()


@pytest.mark.parametrize('form', FORMS)
def test_identity_in_a_whole_network(form):
    ours = build(dict(type='CSaN', init='identity', posinfo=True), **form)
    plain = shake(build('Softmax', **form)).double().eval()
    ours.double().eval()
    assert not ours.load_state_dict(plain.state_dict(),
                                    strict=False).unexpected_keys
    x = image().double()
    for a, b in zip(ours(x), plain(x)):
        assert (a - b).abs().max() < 1e-10


def test_an_attention_that_cannot_refuses():
    from mmcsan.registry import ATTENTIONS

    @ATTENTIONS.register_module(force=True)
    class OneQueryEach(Softmax):
        refusals = dict(q_pool='every token asks for itself.')

    try:
        build('OneQueryEach', q_pool=0)(image())
        with pytest.raises(ValueError, match='OneQueryEach .* for itself'):
            build('OneQueryEach')
    finally:
        ATTENTIONS.module_dict.pop('OneQueryEach')
