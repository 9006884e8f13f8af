import pytest
import torch
from contract import (check_autocast, check_batch, check_caches,
                      check_checkpointing, check_frozen, check_gradients,
                      check_padding, check_sizes, check_state_dict, image,
                      shake)

from mmcsan.attentions import CSaN, Softmax
from mmcsan.backbones import VisionTransformer
from mmcsan.backbones.vision_transformer import VIT_ARCHS, token_groups

SMALL = dict(embed_dims=24, depth=4, num_heads=3)
ATTENTIONS = [
    'Softmax', 'CSaN',
    dict(type='CSaN', variant='bounded', granularity='head'),
    dict(type='CSaN', posinfo=True)
]
FORMS = [
    dict(),
    dict(window_size=3, global_blocks=(1, )),
    dict(window_size=(2, 3), class_token=False, global_blocks=()),
    dict(reg_tokens=2, no_embed_class=True, init_values=.1, qk_norm=True,
         window_size=2, global_blocks=(3, )),
]


def build(attention='CSaN', **kwargs):
    torch.manual_seed(0)
    kwargs = dict(
        dict(
            arch=SMALL,
            patch_size=8,
            img_size=32,
            out_indices=(0, 1, 3),
            drop_path_rate=0.), **kwargs)
    return VisionTransformer(attention=attention, **kwargs)


@pytest.mark.parametrize('name', VIT_ARCHS)
def test_archs_by_both_names(name):
    with torch.device('meta'):
        long = VisionTransformer(name, 'Softmax')
        short = VisionTransformer(name.replace('vit-', ''), 'Softmax')
    assert list(long.state_dict()) == list(short.state_dict())
    assert len(long.blocks) == VIT_ARCHS[name]['depth']
    assert long.patch_embed.projection.kernel_size == (16, 16)
    assert long.out_channels == [VIT_ARCHS[name]['embed_dims']]


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('size', [(1, 1), (32, 32), (53, 85), (97, 5)])
def test_any_size(attention, form, size):
    check_sizes(build(attention, **form), size, (8, 8, 8))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS[1:])
def test_padding_is_never_seen(attention, form, monkeypatch):
    model = shake(build(attention, **form)).eval()
    check_padding(model, monkeypatch, 'mmcsan.backbones.windows.pad_map')


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS)
def test_batch_independence(attention, form):
    check_batch(shake(build(attention, **form)))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('form', FORMS)
def test_gradients_reach_every_parameter(attention, form):
    check_gradients(shake(build(attention, **form)))


@pytest.mark.parametrize('attention', ['CSaN', 'Softmax'])
@pytest.mark.parametrize('form', FORMS[::3])
def test_checkpointing_changes_nothing(attention, form):
    check_checkpointing(lambda **kw: build(attention, **form, **kw))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_is_finite(attention, dtype):
    check_autocast(shake(build(attention, **FORMS[3])), dtype)


def test_state_dict_holds_nothing_derived():
    for form in FORMS:
        check_state_dict(build(**form))


def test_groups_are_made_once(monkeypatch):
    model = build(window_size=3, global_blocks=(1, ))
    check_caches(model, monkeypatch,
                 'mmcsan.backbones.vision_transformer.token_groups',
                 [model._groups], 2 * model.max_cached)


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_one_window_is_no_window(attention):
    """A map within one window, padded or not, fares as without windows."""
    whole = shake(build(attention, reg_tokens=1)).double().eval()
    for window in (4, (5, 7)):
        windowed = build(attention, reg_tokens=1, window_size=window,
                         global_blocks=()).double().eval()
        windowed.load_state_dict(whole.state_dict())
        x = image(32, 32).double()
        for a, b in zip(whole(x), windowed(x)):
            assert (a - b).abs().max() < 1e-10


def test_windows_see_themselves_and_the_prefix():
    """Before the first global block a window knows nothing of another."""
    x = image(64, 64).requires_grad_()
    for form, alone in ((dict(class_token=False), True), (dict(), False)):
        model = shake(
            build(window_size=4, global_blocks=(), out_indices=(3, ), **form))
        out, = model(x)
        grad, = torch.autograd.grad(out[..., :4, :4].sum(), x)
        assert grad[..., :32, :32].abs().max() > 0
        assert (grad[..., 32:, 32:].abs().max() == 0) == alone


def test_default_global_blocks_end_quarters():
    blocks = build(arch=dict(SMALL, depth=12), window_size=14,
                   out_indices=(11, )).windows
    assert [i for i, w in enumerate(blocks) if w is None] == [2, 5, 8, 11]
    assert all(w is None for w in build().windows)


def test_groups_round_trip():
    x = torch.randn(2, 3 + 5 * 7, 4)
    for window in (None, (2, 3)):
        groups = token_groups((5, 7), 3, window, torch.device('cpu'))
        tokens = groups.split(x)
        assert tokens.shape[1] == groups.layout.num_tokens
        assert torch.allclose(groups.join(*groups.merge(tokens)), x)


def test_native_positions_are_exact_and_others_bicubic():
    import torch.nn.functional as F
    for form in (dict(), dict(reg_tokens=3), dict(no_embed_class=True),
                 dict(class_token=False)):
        model = shake(build(img_size=(24, 40), **form)).eval()
        prefix, grid = model.pos_prefix, (3, 5)
        bare = model.pos_embed[:, :prefix]
        table = model.pos_embed[:, prefix:].transpose(1, 2).unflatten(2, grid)
        for size in (grid, (4, 9), (1, 1)):
            expect = F.interpolate(table, size=size, mode='bicubic')
            x = image(8 * size[0], 8 * size[1])
            tokens, got = model.embed(x)
            assert got == size
            patches, _ = model.patch_embed(x)
            patches = patches + expect.flatten(2).transpose(1, 2)
            gap = tokens[:, model.num_prefix:] - patches
            assert gap.abs().max() < 1e-5
            if size == grid:
                assert torch.equal(
                    tokens[:, model.num_prefix:],
                    model.patch_embed(x)[0] + model.pos_embed[:, prefix:])
            if prefix:
                rest = tokens[:, :model.num_prefix] - bare
                assert torch.allclose(rest[:, :1], model.cls_token, atol=1e-6)


def test_new_positions_are_used_at_once():
    """Nothing that depends on a parameter is kept."""
    model = build().eval()
    with torch.no_grad():
        before = model(image())[0]
        model.pos_embed.data.mul_(2)  # as averaged weights are swapped in
        assert not torch.equal(model(image())[0], before)


@pytest.mark.parametrize('indices', [(0, 3), (1, 2), (-1, ), None])
def test_out_indices_build_no_unused_parameters(indices):
    model = shake(build(out_indices=indices))
    positive = [i % 4 for i in indices or (3, )]
    assert len(model.blocks) == positive[-1] + 1
    norms = {n for n, _ in model.named_children() if n.startswith('norm')}
    assert norms == {f'norm{i}' for i in positive}
    check_gradients(model)


@pytest.mark.parametrize('frozen', [-1, 0, 1, 3, 4])
def test_frozen_stages_from_the_start(frozen):
    model = build(frozen_stages=frozen, drop_rate=.1, reg_tokens=1)

    def stage_of(name):
        head, _, rest = name.partition('.')
        return int(rest.split('.')[0] if head == 'blocks' else head[4:])

    check_frozen(
        model, frozen, lambda name: not name.startswith(('blocks', 'norm')),
        stage_of)


def test_layer_depths():
    model = build(reg_tokens=1)
    depths = {}
    for name, _ in model.named_parameters():
        depth, total = model.get_layer_depth('backbone.' + name, 'backbone.')
        assert total == 6
        depths.setdefault(depth, set()).add('.'.join(name.split('.')[:2]))
    assert depths[0] == {
        'cls_token', 'reg_token', 'pos_embed', 'patch_embed.projection'}
    assert [depths[i + 1] for i in range(4)] == [{f'blocks.{i}'}
                                                 for i in range(4)]
    assert depths[5] == {
        f'norm{i}.{k}' for i in (0, 1, 3) for k in ('weight', 'bias')}
    assert model.get_layer_depth('head.weight', 'backbone.') == (5, 6)


def test_attention_by_block():
    model = build(['CSaN', 'Softmax', 'CSaN',
                   dict(type='CSaN', variant='bounded')])
    assert [type(a) for a in model.attentions()] == [
        CSaN, Softmax, CSaN, CSaN]
    assert model.attentions()[-1].variant == 'bounded'


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


def test_out_types():
    model = shake(build(reg_tokens=1, norm_cfg=None)).eval()
    x = image(32, 40)
    raw, vector, mean = (
        shake(build(reg_tokens=1, norm_cfg=None, out_type=t)).eval()(x)
        for t in ('raw', 'cls_token', 'avg_featmap'))
    for index, feature_map in enumerate(model(x)):
        assert feature_map.shape == (1, 24, 4, 5)
        patches = raw[index][:, 2:].transpose(1, 2).unflatten(2, (4, 5))
        assert torch.equal(patches, feature_map)
        assert torch.equal(vector[index], raw[index][:, 0])
        assert torch.allclose(mean[index], feature_map.mean((2, 3)),
                              atol=1e-6)


def test_plain_equals_mmpretrain():
    from mmpretrain.models.backbones import VisionTransformer as Plain
    theirs = Plain(
        dict(embed_dims=24, num_layers=4, num_heads=3,
             feedforward_channels=96),
        img_size=32, patch_size=8, out_indices=[1, 3], final_norm=False,
        out_type='raw')
    theirs.eval()
    ours = build('Softmax', norm_cfg=None, out_type='raw',
                 out_indices=(1, 3)).eval()
    shake(theirs)
    weights = {
        key.replace('layers.', 'blocks.', 1).replace('.ln', '.norm')
        if key.startswith('layers') else key: value
        for key, value in theirs.state_dict().items()
    }
    ours.load_state_dict(weights, strict=True)
    for size in ((32, 32), (45, 70)):
        for a, b in zip(ours(image(*size)), theirs(image(*size))):
            assert torch.allclose(a, b, atol=1e-4)


def test_an_attention_that_cannot_refuses():
    from mmcsan.registry import ATTENTIONS

    @ATTENTIONS.register_module(force=True)
    class OnGridsOnly(Softmax):
        refusals = dict(prefix='all it knows of a token is where it lies.')

    try:
        build('OnGridsOnly', class_token=False)(image())
        with pytest.raises(ValueError, match='OnGridsOnly .* where it lies'):
            build('OnGridsOnly')
    finally:
        ATTENTIONS.module_dict.pop('OnGridsOnly')
