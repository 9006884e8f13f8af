import copy

import pytest
import torch
from contract import (check_autocast, check_batch, check_checkpointing,
                      check_gradients, check_sizes, image, shake)

from mmcsan.attentions import CSaN, PolaPP, PolaPPSoftmax, Softmax
from mmcsan.backbones import PolaFormerPP
from mmcsan.backbones.polaformer_pp import POLAFORMER_PP_ARCHS

SMALL = dict(
    embed_dims=[8, 16, 24, 32],
    depths=[2, 1, 2, 1],
    num_heads=[1, 2, 3, 4],
    layer_scale=[1, 1, 1e-6, None])
MIXED = ['PolaPP', 'PolaPP', 'PolaPPSoftmax', 'PolaPPSoftmax']
ATTENTIONS = [MIXED, 'PolaPP', 'PolaPPSoftmax', 'Softmax',
              dict(type='CSaN', posinfo=True)]


def build(attention=MIXED, **kwargs):
    torch.manual_seed(0)
    kwargs = dict(dict(arch=SMALL, mlp_ratio=2, drop_path_rate=0.), **kwargs)
    return PolaFormerPP(attention=attention, **kwargs)


@pytest.mark.parametrize('name', POLAFORMER_PP_ARCHS)
def test_archs_by_both_names(name):
    with torch.device('meta'):
        long = PolaFormerPP('polaformer-pp-' + name)
        short = PolaFormerPP(name)
    assert list(long.state_dict()) == list(short.state_dict())
    assert short.depths == POLAFORMER_PP_ARCHS[name]['depths']
    assert short.out_channels == POLAFORMER_PP_ARCHS[name]['embed_dims']
    kinds = [type(a) for a in short.attentions()]
    linear = sum(short.depths[:2])
    assert kinds == [PolaPP] * linear + [PolaPPSoftmax
                                         ] * (len(kinds) - linear)


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('size', [(1, 1), (4, 3), (64, 64), (61, 93), (97, 5),
                                  (130, 33)])
def test_any_size(attention, size):
    check_sizes(build(attention).eval(), size, (4, 8, 16, 32))


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_batch_independence(attention):
    check_batch(shake(build(attention)))


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_gradients_reach_every_parameter(attention):
    check_gradients(shake(build(attention)))


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_checkpointing_changes_nothing(attention):
    # With batch norms frozen: those between blocks are not recomputed.
    check_checkpointing(lambda **kw: build(attention, **kw).eval())


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_is_finite(attention, dtype):
    check_autocast(shake(build(attention)), dtype)


@pytest.mark.parametrize('indices', [(0, 1, 2, 3), (1, 2, 3), (2, ), (-1, )])
def test_out_indices_build_nothing_unused(indices):
    model = shake(build(out_indices=indices))
    maps = model(image())
    positive = [i % 4 for i in indices]
    assert [m.shape[1] for m in maps] == model.out_channels
    norms = {n for n, _ in model.named_children() if n.startswith('norm')}
    assert norms == {f'norm{i}' for i in positive}
    assert len(model.stages) == positive[-1] + 1
    sum(out.square().sum() for out in maps).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_raw_maps_without_norms():
    normed, raw = build().eval(), build(norm_cfg=None).eval()
    raw.load_state_dict(normed.state_dict(), strict=False)
    for index, (a, b) in enumerate(zip(raw(image()), normed(image()))):
        norm = getattr(normed, f'norm{index}')
        assert norm.eps == 1e-6
        again = norm(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        assert torch.allclose(again, b, atol=1e-6)
    assert not any(hasattr(raw, f'norm{i}') for i in range(4))


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 4])
def test_frozen_stages_from_the_start(frozen):
    model = build(frozen_stages=frozen)

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
    assert model.patch_embed[0].norm.training == (frozen < 0)
    for index, stage in enumerate(model.stages):
        assert stage.training == (index >= frozen)
    assert model.eval() is model and not model.training


@pytest.mark.parametrize('norm_eval', [False, True])
def test_norm_eval(norm_eval):
    model = build(norm_eval=norm_eval).train()
    norms = [m for m in model.modules()
             if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 4 + 3
    before = [m.running_mean.clone() for m in norms]
    model(image())
    for norm, mean in zip(norms, before):
        assert norm.training != norm_eval
        assert torch.equal(norm.running_mean, mean) == norm_eval


def test_frozen_batch_norms_keep_their_statistics():
    model = build(frozen_stages=2).train()
    before = copy.deepcopy(model.state_dict())
    model(image())
    after = model.state_dict()
    changed = {k for k in after if not torch.equal(before[k], after[k])}
    assert changed and all(
        k.startswith(('stages.2.downsample', 'stages.3.downsample'))
        for k in changed)


def test_convolutions_take_another_norm():
    model = build(conv_norm_cfg=dict(type='SyncBN'))
    kinds = {type(m).__name__ for m in model.modules() if 'Norm' in
             type(m).__name__}
    assert 'SyncBatchNorm' in kinds and 'BatchNorm2d' not in kinds


def test_attention_by_stage_and_block():
    model = build(['PolaPP', 'CSaN', ['Softmax', 'PolaPP'], 'PolaPPSoftmax'])
    kinds = [type(a) for a in model.attentions()]
    assert kinds == [PolaPP, PolaPP, CSaN, Softmax, PolaPP, PolaPPSoftmax]


def test_layer_depths():
    model = build()
    depths = {}
    for name, _ in model.named_parameters():
        depth, total = model.get_layer_depth('backbone.' + name, 'backbone.')
        assert total == 8
        depths.setdefault(depth, set()).add('.'.join(name.split('.')[:4]))
    assert sorted(depths) == list(range(8))
    assert all(n.startswith('patch_embed') for n in depths[0])
    assert depths[1] == {'stages.0.blocks.0'}
    assert 'stages.1.downsample.conv' in depths[2]
    assert depths[7] == {
        f'norm{i}.{k}' for i in range(4) for k in ('weight', 'bias')
    }
    assert model.get_layer_depth('head.weight', 'backbone.') == (7, 8)


def test_state_dict_holds_nothing_derived():
    model = build()
    model(image())
    keys = {name for name, _ in model.named_parameters()}
    extra = set(model.state_dict()) - keys
    assert {name.rpartition('.')[2] for name in extra} == {
        'running_mean', 'running_var', 'num_batches_tracked'
    }
    copy.deepcopy(model).load_state_dict(model.state_dict(), strict=True)


def test_layer_scale_as_the_arch_says():
    model = build()
    for stage, value in zip(model.stages, SMALL['layer_scale']):
        for block in stage.blocks:
            for gamma in (block.gamma_1, block.gamma_2):
                assert gamma is None if value is None else (
                    torch.all(gamma == value))


def test_inference_first_then_training():
    model = build()
    with torch.inference_mode():
        model(image(45, 77))
    sum(out.sum() for out in model(image(45, 77))).backward()


def test_no_decay_keys_hit_nothing_else():
    names = [name for name, _ in build().named_parameters()]
    for key in ('attn.s1', 'attn.s2'):
        hit = [name for name in names if key in name]
        assert len(hit) == 3 and all(n.endswith(key) for n in hit)
