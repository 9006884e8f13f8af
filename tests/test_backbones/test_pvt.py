import pytest
import torch
import torch.nn.functional as F
from contract import (check_autocast, check_batch, check_checkpointing,
                      check_gradients, check_sizes, check_state_dict, image,
                      shake)

from mmcsan.attentions import CSaN, Pola, PolaPP, Softmax
from mmcsan.backbones import PyramidVisionTransformer
from mmcsan.backbones.pvt import PVT_ARCHS

SMALL = dict(
    embed_dims=[8, 16, 24, 32],
    depths=[2, 1, 2, 1],
    num_heads=[1, 2, 3, 4],
    mlp_ratios=[4, 4, 2, 2])
FORMS = [
    dict(),
    dict(linear_sr_ratios=[8, 4, 2, 1]),
    dict(attention='Softmax'),
    dict(attention=['Pola', 'Pola', 'Softmax', 'Softmax'],
         linear_sr_ratios=[4, 2, 1, 1]),
    dict(attention='CSaN', sr_ratios=1),
    dict(attention='CSaN'),
    dict(attention='PolaPP'),
]


def build(**kwargs):
    torch.manual_seed(0)
    kwargs = dict(
        dict(arch=SMALL, img_size=64, drop_path_rate=0.), **kwargs)
    return PyramidVisionTransformer(**kwargs)


@pytest.mark.parametrize('name', PVT_ARCHS)
def test_archs_by_both_names(name):
    with torch.device('meta'):
        long = PyramidVisionTransformer(name)
        short = PyramidVisionTransformer(name.replace('pvt-', ''))
    assert list(long.state_dict()) == list(short.state_dict())
    assert long.depths == PVT_ARCHS[name]['depths']
    assert all(type(a) is Pola for a in long.attentions())


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('size', [(1, 1), (4, 3), (64, 64), (61, 93), (97, 5),
                                  (130, 33)])
def test_any_size(form, size):
    check_sizes(build(**form), size, (4, 8, 16, 32))


@pytest.mark.parametrize('form', FORMS)
def test_batch_independence(form):
    check_batch(shake(build(**form)))


@pytest.mark.parametrize('form', FORMS)
def test_gradients_reach_every_parameter(form):
    check_gradients(shake(build(**form)))


@pytest.mark.parametrize('form', FORMS)
def test_checkpointing_changes_nothing(form):
    check_checkpointing(lambda **kw: build(**form, **kw))


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_is_finite(form, dtype):
    check_autocast(shake(build(**form)), dtype)


@pytest.mark.parametrize('form', FORMS)
def test_state_dict_holds_nothing_derived(form):
    check_state_dict(build(**form))


def test_positions_are_exact_at_the_native_size_and_bicubic_elsewhere():
    model = shake(build(img_size=(64, 96)).eval())
    stem = model.patch_embed
    assert stem.grid_size == (16, 24)
    grids = [stage.downsample.grid_size for stage in model.stages[1:]]
    assert grids == [(8, 12), (4, 6), (2, 3)]

    def positions(height, width):
        x = image(height, width)
        tokens, size = stem(x)
        plain, _ = super(type(stem), stem).forward(x)
        return (tokens - plain).unflatten(1, size)

    table = stem.pos_embed.view(1, 16, 24, 8)
    assert torch.allclose(positions(64, 96), table, atol=1e-6)
    for height, width in ((128, 40), (33, 200)):
        size = (-(-height // 4), -(-width // 4))
        theirs = F.interpolate(
            table.permute(0, 3, 1, 2), size, mode='bicubic')
        ours = positions(height, width).permute(0, 3, 1, 2)
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert stem.position_grids == dict(pos_embed=(16, 24))


def test_odd_native_sizes_round_up():
    model = build(img_size=(70, 35))
    assert model.patch_embed.grid_size == (18, 9)
    maps = model(image(70, 35))
    grids = [model.patch_embed.grid_size] + [
        stage.downsample.grid_size for stage in model.stages[1:]]
    assert [tuple(m.shape[2:]) for m in maps] == grids


def test_ratios_by_attention():
    mixed = ['Pola', ['Pola'], ['Softmax', 'Pola'], 'Softmax']
    model = build(attention=mixed, sr_ratios=[8, 4, 2, 1],
                  linear_sr_ratios=[1, 2, 4, 8])
    assert [a.sr_ratio for a in model.attentions()] == [1, 1, 2, 2, 4, 1]
    assert [type(a) for a in model.attentions()] == [
        Pola, Pola, Pola, Softmax, Pola, Softmax]
    # Encodings of keys are as large as the reduced map.
    sizes = [a.grid_size for a in model.attentions()]
    assert sizes == [(16, 16), (16, 16), (4, 4), (2, 2), (1, 1), (2, 2)]


def test_attentions_that_project_all_together():
    model = build(attention=['PolaPP', 'CSaN', 'Softmax', 'Pola'],
                  sr_ratios=[8, 1, 2, 1])
    kinds = [type(a) for a in model.attentions()]
    assert kinds == [PolaPP, PolaPP, CSaN, Softmax, Softmax, Pola]
    assert model.attentions()[0].sr_ratio is None
    with pytest.raises(ValueError, match='reduced map'):
        build(attention='PolaPP', linear_sr_ratios=2)


@pytest.mark.parametrize('indices', [(0, 1, 2, 3), (1, 2, 3), (2, ), (-1, )])
def test_out_indices_build_nothing_unused(indices):
    model = shake(build(out_indices=indices))
    maps = model(image())
    positive = [i % 4 for i in indices]
    assert [m.shape[1] for m in maps] == model.out_channels
    assert len(model.stages) == positive[-1] + 1
    assert not any('norm' in name for name, _ in model.named_children())
    sum(out.square().sum() for out in maps).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_norms_on_request():
    normed = build(norm_cfg=dict(type='LN'), out_indices=(1, 3)).eval()
    raw = build(out_indices=(1, 3)).eval()
    raw.load_state_dict(normed.state_dict(), strict=False)
    for index, a, b in zip((1, 3), raw(image()), normed(image())):
        norm = getattr(normed, f'norm{index}')
        again = norm(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        assert torch.allclose(again, b, atol=1e-6)
    assert not hasattr(normed, 'norm0')


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 4])
def test_frozen_stages_from_the_start(frozen):
    model = build(frozen_stages=frozen, drop_rate=.1)

    def check():
        for name, param in model.named_parameters():
            part, _, rest = name.partition('.')
            expect = frozen < 0 if part == 'patch_embed' else (
                int(rest.split('.')[0]) >= frozen)
            assert param.requires_grad == expect, name

    check()
    assert model.train() is model
    check()
    for index, stage in enumerate(model.stages):
        assert stage.training == (index >= frozen)
    assert model.patch_embed.drop.training == (frozen < 0)
    assert model.eval() is model and not model.training


def test_layer_depths():
    model = build()
    depths = {}
    for name, _ in model.named_parameters():
        depth, total = model.get_layer_depth('backbone.' + name, 'backbone.')
        assert total == 8
        depths.setdefault(depth, set()).add('.'.join(name.split('.')[:4]))
    assert sorted(depths) == list(range(7))  # no norm behind the last block
    assert all(n.startswith('patch_embed') for n in depths[0])
    assert depths[1] == {'stages.0.blocks.0'}
    assert 'stages.1.downsample.pos_embed' in depths[2]
    assert model.get_layer_depth('head.weight', 'backbone.') == (7, 8)


def test_inference_first_then_training():
    model = build()
    with torch.inference_mode():
        model(image(45, 77))
    sum(out.sum() for out in model(image(45, 77))).backward()


def test_no_decay_keys_hit_nothing_else():
    names = [name for name, _ in build().named_parameters()]
    for key in ('attn.positional_encoding', 'attn.scale', 'attn.power'):
        hit = [name for name in names if key in name]
        assert len(hit) == 6 and all(n.endswith(key) for n in hit)
    assert sum('pos_embed' in name for name in names) == 4
