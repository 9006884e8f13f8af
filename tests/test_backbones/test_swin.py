import copy

import pytest
import torch
import torch.nn.functional as F

from mmcsan.attentions import CSaN, Softmax
from mmcsan.backbones import SwinTransformer
from mmcsan.backbones.swin import SWIN_ARCHS

SMALL = dict(embed_dims=24, depths=[2, 2, 2, 1], num_heads=[1, 2, 3, 6])
ATTENTIONS = [
    'Softmax', 'CSaN',
    dict(type='CSaN', variant='bounded', granularity='head'),
    dict(type='CSaN', posinfo=True),
    'Pola',
    dict(type='Pola', alpha=3, kernel_size=3),
]


def build(attention='CSaN', **kwargs):
    torch.manual_seed(0)
    kwargs = dict(dict(arch=SMALL, window_size=4, drop_path_rate=0.), **kwargs)
    return SwinTransformer(attention=attention, **kwargs)


def shake(model):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() > 1:
                scale = 0.5 if 'table' in name else param[0].numel()**-0.5
                param.copy_(
                    torch.randn(param.shape, generator=generator) * scale)
            elif 'norm' not in name:
                param.copy_(torch.randn(param.shape, generator=generator) * .3)
    return model


def image(height=61, width=93, batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, height, width, generator=generator)


@pytest.mark.parametrize('name', SWIN_ARCHS)
def test_archs_by_both_names(name):
    with torch.device('meta'):
        long = SwinTransformer(name)
        short = SwinTransformer(name.replace('swin-', ''))
    assert list(long.state_dict()) == list(short.state_dict())
    assert long.depths == SWIN_ARCHS[name]['depths']


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('size', [(1, 1), (4, 3), (64, 64), (61, 93), (97, 5),
                                  (130, 33)])
def test_any_size(attention, size):
    model = build(attention)
    maps = model(image(*size))
    for index, out in enumerate(maps):
        stride = 4 * 2**index
        expect = tuple(-(-s // stride) for s in size)
        assert out.shape == (1, model.out_channels[index], *expect)
        assert out.is_contiguous() and out.isfinite().all()


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_padding_is_never_seen(attention, monkeypatch):
    model = shake(build(attention)).eval()
    before = model(image())
    pads = []

    def dirty(x, rows, cols, front=(0, 0)):
        pads.append((rows, cols))
        return F.pad(x, (0, 0, front[1], cols, front[0], rows), value=1e3)

    # Of windows only: what patch merging pads with is part of the model.
    monkeypatch.setattr('mmcsan.backbones.windows.pad_map', dirty)
    after = model(image())
    assert pads
    for a, b in zip(before, after):
        assert torch.equal(a, b)


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_batch_independence(attention):
    model = shake(build(attention)).eval().double()
    one, two = image(seed=1).double(), image(seed=2).double()
    both = model(torch.cat([one, two]))
    for out, a, b in zip(both, model(one), model(two)):
        assert (out - torch.cat([a, b])).abs().max() < 1e-10


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_gradients_reach_every_parameter(attention):
    model = shake(build(attention))
    sum(out.square().sum() for out in model(image())).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.abs().max() > 0, name


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_checkpointing_changes_nothing(attention):
    plain, cheap = (shake(build(attention, with_cp=cp)).double()
                    for cp in (False, True))
    results = []
    for model in (plain, cheap):
        x = image().double().requires_grad_()
        sum(out.square().sum() for out in model(x)).backward()
        results.append([x.grad] + [p.grad for p in model.parameters()])
    for a, b in zip(*results):
        assert torch.equal(a, b)


def test_checkpointing_saves_memory():
    kept = {}
    for cp in (False, True):
        model, total = build(with_cp=cp), 0

        def pack(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(image())
        kept[cp] = total
    assert kept[True] < 0.7 * kept[False]


@pytest.mark.parametrize('indices', [(0, 1, 2, 3), (1, 2, 3), (2, ), (-1, )])
def test_out_indices_build_no_unused_norm(indices):
    model = build(out_indices=indices)
    maps = model(image())
    positive = [i % 4 for i in indices]
    assert [m.shape[1] for m in maps] == model.out_channels
    norms = {n for n, _ in model.named_children() if n.startswith('norm')}
    assert norms == {f'norm{i}' for i in positive}


def test_every_built_parameter_is_used():
    model = shake(build(out_indices=(1, 2), frozen_stages=4))
    assert len(model.stages) == 3
    model = shake(build(out_indices=(1, 2)))
    sum(out.square().sum() for out in model(image())).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize('posinfo', [False, True])
def test_hard_shift_mask_on_padded_maps(posinfo):
    model = shake(
        build(dict(type='CSaN', hard_shift_mask=True, posinfo=posinfo)))
    maps = model(image(84, 84))
    assert all(out.isfinite().all() for out in maps)
    sum(out.square().sum() for out in maps).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_raw_maps_without_norms():
    normed = build().eval()
    raw = build(norm_cfg=None).eval()
    raw.load_state_dict(normed.state_dict(), strict=False)
    for index, (a, b) in enumerate(zip(raw(image()), normed(image()))):
        norm = getattr(normed, f'norm{index}')
        again = norm(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        assert torch.allclose(again, b, atol=1e-6)
    assert not any(hasattr(raw, f'norm{i}') for i in range(4))


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 4])
def test_frozen_stages_from_the_start(frozen):
    model = build(frozen_stages=frozen, drop_rate=.1)

    def check():
        for name, param in model.named_parameters():
            part, _, rest = name.partition('.')
            if part == 'patch_embed':
                expect = frozen < 0
            elif part == 'stages':
                expect = int(rest.split('.')[0]) >= frozen
            else:
                expect = int(part[4:]) >= frozen
            assert param.requires_grad == expect, name

    check()
    assert model.train() is model
    check()
    for index, stage in enumerate(model.stages):
        assert stage.training == (index >= frozen)
    assert model.drop_after_pos.training == (frozen < 0)
    assert model.eval() is model and not model.training


def test_attention_by_stage_and_block():
    model = build(['CSaN', ['Softmax', 'CSaN'], 'Softmax',
                   dict(type='CSaN', variant='bounded')])
    kinds = [type(a) for a in model.attentions()]
    assert kinds == [CSaN, CSaN, Softmax, CSaN, Softmax, Softmax, CSaN]
    assert model.attentions()[-1].variant == 'bounded'


def test_layer_depths():
    model = build()
    depths = {}
    for name, _ in model.named_parameters():
        depth, total = model.get_layer_depth('backbone.' + name, 'backbone.')
        assert total == 9
        depths.setdefault(depth, set()).add('.'.join(name.split('.')[:4]))
    assert sorted(depths) == list(range(9))
    assert all(n.startswith('patch_embed') for n in depths[0])
    assert depths[1] == {'stages.0.blocks.0'}
    assert 'stages.1.downsample.norm' in depths[2]
    assert depths[8] == {
        f'norm{i}.{k}' for i in range(4) for k in ('weight', 'bias')
    }
    assert model.get_layer_depth('head.weight', 'backbone.') == (8, 9)


def test_shift_masks_are_made_once(monkeypatch):
    from mmcsan.backbones import swin
    calls = []
    make = swin.window_grid

    def spy(*args):
        calls.append(args)
        return make(*args)

    monkeypatch.setattr(swin, 'window_grid', spy)
    model = build().eval()
    model(image())
    first = len(calls)
    model(image())
    assert first == 7 and len(calls) == first  # one plan for a last stage of 1
    for size in range(5, 60):
        model(image(size, size))
    assert all(len(s._grids) <= 2 * s.max_cached for s in model.stages)


def test_masks_made_for_inference_serve_training():
    model = build()
    with torch.inference_mode():
        model(image())
    sum(out.sum() for out in model(image())).backward()


def test_state_dict_holds_nothing_derived():
    model = build()
    model(image())
    keys = {name for name, _ in model.named_parameters()}
    assert set(model.state_dict()) == keys
    copy.deepcopy(model).load_state_dict(model.state_dict(), strict=True)


def test_identity_in_a_whole_network():
    ours = build(dict(type='CSaN', init='identity', posinfo=True))
    plain = build('Softmax')
    ours.double().eval()
    plain.double().eval()
    missing = ours.load_state_dict(plain.state_dict(), strict=False)
    assert not missing.unexpected_keys
    x = image().double()
    for a, b in zip(ours(x), plain(x)):
        assert (a - b).abs().max() < 1e-12


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('attention', ATTENTIONS)
def test_autocast_is_finite(attention, dtype):
    model = shake(build(attention))
    with torch.autocast('cpu', dtype):
        maps = model(image() * 10)
    assert all(m.isfinite().all() for m in maps)


def test_plain_equals_mmpretrain():
    from mmpretrain.models.backbones import SwinTransformer as Plain

    from mmcsan.checkpoints import load_classification_checkpoint
    arch = dict(embed_dims=24, depths=[2, 2, 2, 2], num_heads=[1, 2, 3, 6])
    theirs = Plain(arch, drop_path_rate=0., out_indices=(0, 1, 2, 3))
    theirs.eval()
    shake(theirs)
    ours = SwinTransformer(arch, 'Softmax').eval()
    load_classification_checkpoint(ours, theirs.state_dict())
    x = image(224, 224)
    for a, b in zip(ours(x), theirs(x)):
        assert torch.allclose(a, b, atol=1e-4)


def windows(model):
    return [[block.window for block in stage.blocks] for stage in model.stages]


def test_windows_by_stage():
    model = build(window_size=[4, (2, 5), 3, 2])
    assert [stage[0] for stage in windows(model)] == [(4, 4), (2, 5), (3, 3),
                                                      (2, 2)]
    assert model(image())[-1].isfinite().all()
    shrunk = build(img_size=(64, 32), window_size=4, patch_size=4)
    assert [stage[0] for stage in windows(shrunk)] == [(4, 4), (4, 4), (2, 2),
                                                       (1, 1)]


def test_windows_by_attention():
    mixed = ['Pola', ['Pola', 'Softmax'], 'Softmax', 'Softmax']
    model = build(mixed, window_size=None)
    assert windows(model)[:3] == [[None, None], [None, (7, 7)],
                                  [(7, 7), (7, 7)]]
    model = build(mixed, window_size=[None, [(2, 5), 4], 3, (2, 2)])
    assert windows(model) == [[None, None], [(2, 5), (4, 4)], [(3, 3)] * 2,
                              [(2, 2)]]
    assert model(image())[-1].isfinite().all()
