"""Bad arguments raise at construction and are named; good ones are taken."""
import inspect

import numpy as np
import pytest
import torch.nn as nn
from mmengine.config import ConfigDict

import mmcsan.backbones  # noqa: F401  fills the registry
import mmcsan.necks  # noqa: F401
from mmcsan.arguments import CheckedArguments
from mmcsan.backbones import BaseBackbone
from mmcsan.registry import MODELS

CHECKED = {
    name: cls for name, cls in MODELS.module_dict.items()
    if issubclass(cls, CheckedArguments)
}
BACKBONES = sorted(
    name for name, cls in CHECKED.items() if issubclass(cls, BaseBackbone))

STAGES = dict(depths=[1, 2, 1, 1])
DIMS = dict(embed_dims=[8, 16, 24, 32], num_heads=[1, 2, 3, 4], **STAGES)
ARCHS = {
    'SwinTransformer':
    dict(embed_dims=24, num_heads=[1, 2, 2, 3], **STAGES),
    'VisionTransformer': dict(embed_dims=24, depth=4, num_heads=3),
    'Hiera': dict(embed_dims=24, num_heads=1, **STAGES),
    'PyramidVisionTransformer': dict(DIMS, mlp_ratios=[2] * 4),
    'PolaFormerPP': dict(DIMS, layer_scale=[1, 1, 1, None]),
}
"""One for each backbone; all have four stages, ViT's are its blocks."""


def build(backbone, arch=None, **kwargs):
    kwargs.setdefault('attention', 'CSaN')
    if backbone == 'PyramidVisionTransformer':
        kwargs.setdefault('attention', 'Pola')
    arch = ARCHS[backbone] if arch is None else arch
    return MODELS.build(dict(type=f'mmcsan.{backbone}', arch=arch, **kwargs))


def takes(backbone, name):
    return name in inspect.signature(CHECKED[backbone].__init__).parameters


def rows(name, *values, word=None):
    return [({name: value}, word or name) for value in values]


NOT_A_RATE = (-.1, 1., 1.5, '0.1', None, True, [0.1], float('nan'))
NOT_A_FLAG = ('no', 'False', 0, 1, None, [True])
NOT_A_COUNT = (0, -3, 3., '3', None, True, [3])

COMMON = [
    *rows('drop_rate', *NOT_A_RATE),
    *rows('attn_drop_rate', *NOT_A_RATE),
    *rows('drop_path_rate', *NOT_A_RATE),
    *rows('with_cp', *NOT_A_FLAG),
    *rows('norm_eval', *NOT_A_FLAG),
    *rows('qkv_bias', *NOT_A_FLAG),
    *rows('in_channels', *NOT_A_COUNT),
    *rows('patch_size', *NOT_A_COUNT, (4, 4)),
    *rows('img_size', 0, -1, 224., '224', (224, ), (1, 2, 3), (0, 224), True),
    *rows('mlp_ratio', 0, -1, '4', None, True, float('inf'), 1e-3),
    *rows('frozen_stages', -2, 5, 1., '1', None, (0, ), True),
    *rows('out_indices', (4, ), (-5, ), (2, 1), (1, 1), (), 4, -5, '3',
          (0, '1'), (0, 1.), True),
    *rows('norm_cfg', 'LN', 3, {}, dict(type='BN'), dict(type=None),
          dict(type='LN', eps='small'), dict(type='LN', eps=0),
          dict(type='LN', epsilon=1e-6), dict(type='LM')),
    *rows('init_cfg', 3, 'a.pth', dict(checkpoint='a.pth'), [3],
          dict(type=3)),
    *rows('arch', 3, ['tiny'], {}, word='arch'),
    *rows('attention', 3, None, {}, dict(variant='bounded'), [], ['CSaN'] * 2,
          ['CSaN'] * 3 + [3], dict(type='CSaN', heads=2),
          dict(type='CSaN', dim=2), dict(type='CSaN', num_heads=2),
          dict(type='CSaN', grid_size=2), dict(type='CSaN', dim_out=2),
          dict(type='CSaN', sr_ratio=2)),
    (dict(attention=dict(type='CSaN', varient='bounded')), "'variant'"),
    (dict(attention=dict(type='Pola', kernel_sise=3)), "'kernel_size'"),
    (dict(drop_path=.1), 'drop_path_rate'),
    (dict(unknown=1), "argument of .* 'unknown'.*with_cp"),
]
"""Arguments, and what the error must hold; for each backbone that has them.
"""

OF_ATTENTIONS = [
    (dict(type='CSaN', variant='boundless'), 'variant'),
    (dict(type='CSaN', variant=['bounded']), 'variant'),
    (dict(type='CSaN', granularity='channel'), 'granularity'),
    (dict(type='CSaN', init=None), 'init'),
    (dict(type='CSaN', posinfo='no'), 'posinfo'),
    (dict(type='CSaN', hard_shift_mask=1), 'hard_shift_mask'),
    (dict(type='CSaN', init_cfg=3), 'init_cfg'),
    (dict(type='Pola', alpha=-1), 'alpha'),
    (dict(type='Pola', alpha='4'), 'alpha'),
    (dict(type='Pola', kernel_size=4), 'kernel_size'),
    (dict(type='Pola', kernel_size=5.), 'kernel_size'),
    (dict(type='Pola', kernel_size=(5, 5)), 'kernel_size'),
    (dict(type='Pola', hard_shift_mask='no'), 'hard_shift_mask'),
    (dict(type='PolaPP', qk_norm='no'), 'qk_norm'),
    (dict(type='PolaPPSoftmax', qk_norm=1), 'qk_norm'),
    (dict(type='Softmax', qk_norm='yes'), 'qk_norm'),
    (dict(type='Softmax', proj_drop=2.), 'proj_drop'),
    (dict(type='Softmax', attn_drop='0'), 'attn_drop'),
    (dict(type='Softmax', alpha=4.), 'alpha'),
]


def parts(backbone, **values):
    """Bad values of one part of an arch each."""
    return [(backbone, dict(arch=dict(ARCHS[backbone], **{name: value})), name)
            for name, bad in values.items() for value in bad]


LISTS = (4, None, [], [1, 1], [1, 1, 0, 1], [1, 1, 1, 1.5], [1, 1, 1, '1'],
         ['1'] * 4, [True] * 4, '1111')
"""What is no list of four counts."""

OWN = [
    *parts('SwinTransformer', embed_dims=(*NOT_A_COUNT, 25), depths=LISTS,
           num_heads=(*LISTS, [5] * 4), width=(3, )),
    *parts('VisionTransformer', embed_dims=(*NOT_A_COUNT, 25),
           depth=NOT_A_COUNT, num_heads=(*NOT_A_COUNT, 5), width=(3, )),
    *parts('Hiera', embed_dims=(*NOT_A_COUNT, ), num_heads=(*NOT_A_COUNT, 5),
           depths=([], [1, 0, 1, 1], 4, ['1'] * 4), width=(3, )),
    *parts('PyramidVisionTransformer', embed_dims=LISTS, depths=LISTS,
           num_heads=(*LISTS, [1, 3, 3, 4]), width=(3, ),
           mlp_ratios=(4, [4], [0] * 4, [-1] * 4, ['4'] * 4, [True] * 4)),
    *parts('PolaFormerPP', embed_dims=(*LISTS, [7, 16, 24, 32]),
           depths=LISTS, num_heads=(*LISTS, [1, 3, 3, 4]), width=(3, ),
           layer_scale=(1, [1], [0] * 4, ['1'] * 4, [-1e-6] * 4)),
    *(('SwinTransformer', dict(zip([name], [value])), name)
      for name, values in dict(
          ffn=('mpl', 'atention', None, 3, ['mlp']),
          window_size=(0, -7, 7., '7', True, [7, 7], [7, 7, 7, (7, 7, 7)],
                       [7, 7, 7, [7, 7]], [7, 7, 7, (7, 0)], [7, 7, 7, '7'],
                       [7, 7, 7, 0])).items() for value in values),
    *(('VisionTransformer', dict(zip([name], [value])), name)
      for name, values in dict(
          reg_tokens=(-1, 1., '1', None, True),
          init_values=(0., -1., '1e-5', True),
          class_token=NOT_A_FLAG,
          no_embed_class=NOT_A_FLAG,
          qk_norm=NOT_A_FLAG,
          out_type=('maps', None, 3, ['raw']),
          window_size=(0, -7, 7., '7', (7, 7, 7), (7, 0), [7]),
          attention=(['CSaN'] * 5, )).items() for value in values),
    ('SwinTransformer', dict(attention=['CSaN', ['CSaN'], 'CSaN', 'CSaN']),
     r'attention\[1\]'),
    ('VisionTransformer', dict(out_type='cls_token', class_token=False),
     'class_token'),
    ('VisionTransformer', dict(global_blocks=(1, )), 'window_size'),
    *(('VisionTransformer', dict(window_size=7, global_blocks=value),
       'global_blocks') for value in ((4, ), (-1, ), 1, '1', (1., ))),
    *(('Hiera', dict(zip([name], [value])), name)
      for name, values in dict(
          patch_kernel=(0, 7., '7', (7, 7, 7), None),
          patch_stride=(0, 4., (4, )),
          patch_padding=(-1, 3., 'corner'),
          q_pool=(4, -1, 1., True, '1'),
          q_stride=(0, 3, 2., (2, ), None),
          window_size=(8, (8, 4), (8, 3, None, None), (8, 0, None, None),
                       (8., 4, 4, 4), '8444', None),
          global_blocks=((6, ), (-1, ), 3, None, '1', (1., )),
          use_expand_proj=NOT_A_FLAG,
          abs_win_pos_embed=NOT_A_FLAG,
          abs_pos_size=(0, 14., (14, 14, 14)),
          init_values=(0., -1., '1e-5')).items() for value in values),
    ('Hiera', dict(abs_win_pos_embed=True, window_size=(None, ) * 4),
     'abs_win_pos_embed'),
    ('Hiera', dict(img_size=2, patch_kernel=7, patch_padding=0), 'img_size'),
    *(('PyramidVisionTransformer', {name: value}, name)
      for name in ('sr_ratios', 'linear_sr_ratios')
      for value in ([8, 4], [8, 4, 2, 0], '8421', 0, 2., [2.] * 4, True,
                    [[1], [1], [1], [1]])),
    *(('PolaFormerPP', {name: value}, name) for name, values in dict(
        img_size=((224, 224), None),
        mlp_ratio=([1, 2], [0] * 4, ['4'] * 4, [[3.5] * 2] * 4),
        conv_norm_cfg=('BN', None, {}, dict(type='NoSuchNorm'),
                       dict(type='BN', epsilon=1),
                       dict(type='GN', num_groups=5), dict(type='GN'),
                       dict(type='BN', eps='0'))).items()
      for value in values),
]
"""Backbone, arguments, and what the error must hold."""

UNKNOWN_NAMES = [(dict(arch='no-such-arch'), 'arch .*Known: '),
                 (dict(attention='Atention'), 'CSaN'),
                 (dict(attention=dict(type='atention')), 'CSaN')]


def of_each_backbone(table):
    return [(backbone, kwargs, word) for backbone in BACKBONES
            for kwargs, word in table
            if all(takes(backbone, name) or name in ('drop_path', 'unknown')
                   for name in kwargs)]


BAD = of_each_backbone(COMMON) + OWN + [
    # Pola and PolaPP keep groups whole, so any width does for these.
    ('PolaFormerPP', dict(attention=attention), word)
    for attention, word in OF_ATTENTIONS
]


def test_every_backbone_is_here():
    assert set(BACKBONES) == set(ARCHS) and len(BAD) > 300
    for backbone in BACKBONES:
        assert len(build(backbone).stages) == 4


@pytest.mark.parametrize('name', sorted(CHECKED))
def test_every_argument_has_an_entry(name):
    arguments = inspect.signature(CHECKED[name].__init__).parameters
    assert set(arguments) - {'self'} <= set(CHECKED[name].allowed_arguments())


@pytest.mark.parametrize('backbone, kwargs, word', BAD)
def test_bad_arguments(backbone, kwargs, word):
    with pytest.raises((ValueError, TypeError), match=word):
        build(backbone, **kwargs)


@pytest.mark.parametrize('backbone, kwargs, word',
                         of_each_backbone(UNKNOWN_NAMES))
def test_unknown_names(backbone, kwargs, word):
    with pytest.raises(KeyError, match=word):
        build(backbone, **kwargs)


NECKS = {
    'SimpleFeaturePyramid': dict(in_channels=16, out_channels=8),
    'ProjectedPooling': dict(in_channels=8, out_channels=16),
}
OF_NECKS = [
    *((neck, {name: value}, name) for neck in NECKS
      for name in ('in_channels', 'out_channels') for value in NOT_A_COUNT),
    *((neck, dict(norm_cfg=value), 'norm_cfg') for neck in NECKS
      for value in ('LN', None, {}, dict(type='NoSuchNorm'),
                    dict(type='BN', epsilon=1), dict(type='BN', eps='0'),
                    dict(type='GN', num_groups=3))),
    *((neck, dict(init_cfg=value), 'init_cfg') for neck in NECKS
      for value in (3, 'a.pth', dict(checkpoint='a'))),
    *((neck, dict(unknown=3), 'unknown') for neck in NECKS),
    *(('ProjectedPooling', dict(act_cfg=value), 'act_cfg')
      for value in ('SiLU', None, {}, dict(type='NoSuchAct'),
                    dict(type='SiLU', slope=1))),
    *(('SimpleFeaturePyramid', dict(scales=value), 'scales')
      for value in ((3, 1), (0, ), (), 4, '42', (4, '2'), (True, ), (1, 2),
                    (2, 2), (-1, ), (32, ), None)),
    *(('SimpleFeaturePyramid', dict(num_outs=value), 'num_outs')
      for value in (*NOT_A_COUNT, 3)),
    ('SimpleFeaturePyramid', dict(in_channels=18), 'in_channels'),
]


@pytest.mark.parametrize('neck, kwargs, word', OF_NECKS)
def test_bad_arguments_of_necks(neck, kwargs, word):
    with pytest.raises((ValueError, TypeError), match=word):
        MODELS.build({**NECKS[neck], 'type': f'mmcsan.{neck}', **kwargs})


@pytest.mark.parametrize('neck', NECKS)
def test_a_neck_needs_its_channels(neck):
    assert set(NECKS) == set(CHECKED) - set(BACKBONES)
    with pytest.raises(TypeError, match='in_channels'):
        MODELS.build(dict(type=f'mmcsan.{neck}'))


GOOD_OF_ALL = [
    dict(out_indices=[0, 3]),
    dict(out_indices=(-1, )),
    dict(out_indices=2),
    dict(out_indices=range(1, 3)),
    dict(out_indices=np.array([0, 1])),
    dict(frozen_stages=np.int64(1), in_channels=np.int32(4)),
    dict(drop_rate=0, drop_path_rate=np.float32(0.2), mlp_ratio=2),
    dict(with_cp=np.bool_(True), norm_eval=np.True_),
    dict(norm_cfg=None, init_cfg=[]),
    dict(norm_cfg=ConfigDict(type='LN', eps=1e-5, requires_grad=False)),
    dict(init_cfg=ConfigDict(type='Pretrained', checkpoint='a.pth')),
    dict(init_cfg=[dict(type='TruncNormal', layer='Linear', std=.02)]),
    dict(attention=ConfigDict(type='CSaN', variant='bounded'),
         drop_rate=0.1),
    dict(attention=['CSaN', dict(type='CSaN'), 'CSaN', 'CSaN']),
    dict(attention=('CSaN', ConfigDict(type='CSaN'), 'CSaN', 'CSaN')),
    dict(img_size=np.int64(64)),
]
GOOD = [(backbone, dict(kwargs)) for backbone in BACKBONES
        for kwargs in GOOD_OF_ALL
        if all(takes(backbone, name) for name in kwargs)] + [
    ('SwinTransformer', dict(window_size=np.int64(4))),
    ('SwinTransformer', dict(window_size=[4, None, (2, 3), np.int64(2)])),
    ('SwinTransformer', dict(window_size=[4, [4, (2, 3)], 2, None])),
    ('SwinTransformer', dict(img_size=(64, 32), ffn='attention')),
    ('VisionTransformer', dict(window_size=[4, 2], global_blocks=[])),
    ('VisionTransformer', dict(window_size=4, global_blocks=(0, 2))),
    ('VisionTransformer', dict(init_values=1e-5, reg_tokens=4)),
    ('Hiera', dict(window_size=[8, [4, 2], None, None],
                   global_blocks=[3])),
    ('Hiera', dict(patch_padding=0, q_stride=[1, 2], q_pool=0)),
    ('PyramidVisionTransformer', dict(attention='Softmax', sr_ratios=2)),
    ('PyramidVisionTransformer',
     dict(attention='Softmax', sr_ratios=[4, [2, 1], 1, np.int64(1)])),
    ('PolaFormerPP', dict(mlp_ratio=[2, 2.5, [3], np.float64(3)])),
    ('PolaFormerPP', dict(conv_norm_cfg=ConfigDict(type='SyncBN'))),
    ('PolaFormerPP', dict(conv_norm_cfg=dict(type='GN', num_groups=2))),
]


@pytest.mark.parametrize('backbone, kwargs', GOOD)
def test_good_arguments(backbone, kwargs):
    model = build(backbone, **kwargs)
    assert all(type(index) is int for index in model.out_indices)


@pytest.mark.parametrize('backbone', BACKBONES)
def test_arch_of_numpy_and_config(backbone):
    plain = build(backbone)
    arch = ConfigDict({
        name: np.array(value, dtype=object if None in value else None)
        if isinstance(value, list) else np.int64(value)
        for name, value in ARCHS[backbone].items()
    })
    same = build(backbone, arch=arch)
    assert {k: v.shape for k, v in same.state_dict().items()} == {
        k: v.shape for k, v in plain.state_dict().items()}


@pytest.mark.parametrize('stages', [1, 3, 5])
@pytest.mark.parametrize('attention', ['Pola', 'Softmax'])
def test_pvt_of_any_number_of_stages(attention, stages):
    arch = {name: [1] * stages for name in ('depths', 'num_heads')}
    arch.update(embed_dims=[8] * stages, mlp_ratios=[2] * stages)
    model = build('PyramidVisionTransformer', arch, attention=attention)
    ratios = [a.sr_ratio for a in model.attentions()]
    linear = attention == 'Pola'
    assert ratios == [1 if linear else 2**i for i in range(stages)][::-1]


def test_a_backbone_of_others_has_the_checks():
    """Deriving is all it takes, and what it adds may be named likewise."""

    class Plain(BaseBackbone):

        def __init__(self, in_channels=3, with_cp=False, extra=1, **kwargs):
            super().__init__((0, ), 1, -1, False, with_cp, None)
            self.stages = nn.ModuleList()

        def stem_modules(self):
            return []

        def forward(self, x):
            return (x, )

    class Derived(CHECKED['SwinTransformer']):

        def __init__(self, size, **kwargs):
            super().__init__(ARCHS['SwinTransformer'], img_size=size,
                             **kwargs)

    assert Plain(extra='anything').with_cp is False
    for kwargs in (dict(with_cp='no'), dict(in_channels=0),
                   dict(drop_rate=2)):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            Plain(**kwargs)
    with pytest.raises(ValueError, match='img_size'):
        Derived(0)
    with pytest.raises(ValueError, match='ffn'):
        Derived(64, ffn='mpl')
