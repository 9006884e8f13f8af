import pytest
import torch
import torch.nn as nn
from mmengine.registry import MODELS

from mmcsan.necks import LayerNorm2d, SimpleFeaturePyramid


def build(**kwargs):
    torch.manual_seed(0)
    return SimpleFeaturePyramid(
        **dict(dict(in_channels=16, out_channels=8), **kwargs))


@pytest.mark.parametrize('size', [(1, 1), (7, 9), (64, 64)])
def test_levels(size):
    maps = build()((torch.randn(2, 16, *size), ))
    expect = [[4 * s for s in size], [2 * s for s in size], list(size),
              [-(-s // 2) for s in size], [-(-s // 4) for s in size]]
    assert [list(m.shape) for m in maps] == [[2, 8, *s] for s in expect]
    assert torch.equal(maps[4], maps[3][..., ::2, ::2])


def test_takes_a_map_alone_or_in_a_tuple():
    neck, x = build().eval(), torch.randn(1, 16, 4, 4)
    for a, b in zip(neck(x), neck([x])):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match='out_indices'):
        neck((x, x))


def test_levels_come_from_the_map_alone():
    """No level depends on another: each has its own parameters."""
    neck = build()
    maps = neck(torch.randn(1, 16, 4, 4))
    for index, level in enumerate(neck.levels):
        neck.zero_grad()
        maps[index].square().sum().backward(retain_graph=True)
        for other, module in enumerate(neck.levels):
            grads = [p.grad for p in module.parameters()]
            if other == index:
                assert all(g.abs().max() > 0 for g in grads)
            else:
                assert not any(g is not None and g.abs().max() for g in grads)
        assert level[-1].with_bias is False


def test_scales_and_norms():
    neck = build(scales=(2, 1, .25), num_outs=3,
                 norm_cfg=dict(type='BN'))
    maps = neck(torch.randn(2, 16, 9, 5))
    assert [tuple(m.shape[2:]) for m in maps] == [(18, 10), (9, 5), (3, 2)]
    assert any(isinstance(m, nn.BatchNorm2d) for m in neck.modules())


def test_norm_is_over_channels():
    norm = MODELS.build(dict(type='mmcsan.LN2d', normalized_shape=16))
    assert isinstance(norm, LayerNorm2d)
    x = torch.randn(2, 16, 3, 5) * 4 + 1
    out = norm(x)
    assert out.mean(1).abs().max() < 1e-5
    assert (out.var(1, unbiased=False) - 1).abs().max() < 1e-3


def test_behind_a_backbone():
    backbone = MODELS.build(
        dict(
            type='mmcsan.VisionTransformer',
            arch=dict(embed_dims=16, depth=4, num_heads=2),
            img_size=64,
            window_size=2,
            class_token=False))
    neck = MODELS.build(
        dict(
            type='mmcsan.SimpleFeaturePyramid',
            in_channels=backbone.out_channels[0],
            out_channels=8))
    maps = neck(backbone(torch.randn(1, 3, 96, 128)))
    assert [tuple(m.shape[2:]) for m in maps] == [
        (24, 32), (12, 16), (6, 8), (3, 4), (2, 2)]
    sum(m.square().sum() for m in maps).backward()
    for name, param in [*backbone.named_parameters(),
                        *neck.named_parameters()]:
        assert param.grad is not None, name


def test_multi_level_maps_for_segmentors():
    """Several blocks' maps, scaled by mmseg's own neck."""
    pytest.importorskip('mmseg')
    backbone = MODELS.build(
        dict(
            type='mmcsan.VisionTransformer',
            arch=dict(embed_dims=16, depth=4, num_heads=2),
            img_size=64,
            out_indices=(0, 1, 2, 3)))
    neck = MODELS.build(
        dict(
            type='mmseg.MultiLevelNeck',
            in_channels=backbone.out_channels,
            out_channels=8,
            scales=[4, 2, 1, 0.5]))
    maps = neck(backbone(torch.randn(1, 3, 96, 128)))
    assert [tuple(m.shape[2:]) for m in maps] == [
        (24, 32), (12, 16), (6, 8), (3, 4)]
