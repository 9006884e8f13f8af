"""Networks of other projects, small, and what to ask of them."""
import copy
import sys

import timm_stand_in
import torch

from mmcsan.plugging.hosts import StandIn
from mmcsan.registry import MODELS

IDENTITY = dict(type='CSaN', init='identity')
SWIN = dict(
    embed_dims=16,
    depths=[2, 2, 1, 1],
    num_heads=[1, 1, 2, 4],
    window_size=3,
    drop_path_rate=0.)
VIT = dict(embed_dims=32, num_layers=3, num_heads=2)
HOSTS = {
    'mmdet Swin':
    dict(type='mmdet.SwinTransformer', **SWIN),
    'mmseg Swin':
    dict(type='mmseg.SwinTransformer', **SWIN),
    'mmpretrain Swin':
    dict(
        type='mmpretrain.SwinTransformer',
        arch=dict(embed_dims=16, depths=[2, 2, 1, 1], num_heads=[1, 1, 2, 4]),
        window_size=3,
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.,
        pad_small_map=True),
    'mmpretrain ViT':
    dict(
        type='mmpretrain.VisionTransformer',
        arch=dict(VIT, feedforward_channels=64),
        img_size=64,
        out_type='featmap',
        out_indices=[0, 2],
        layer_scale_init_value=0.3),
    'mmseg ViT':
    dict(
        type='mmseg.VisionTransformer',
        img_size=64,
        out_indices=(0, 2),
        final_norm=True,
        **VIT),
    'mmseg ViT without class token':
    dict(
        type='mmseg.VisionTransformer',
        img_size=64,
        out_indices=(0, 2),
        qkv_bias=False,
        with_cls_token=False,
        **VIT),
    'timm ViT':
    dict(type='mmpretrain.TIMMBackbone', model_name='vit'),
    'timm ViT of any size':
    dict(
        type='mmpretrain.TIMMBackbone',
        model_name='vit',
        flat=False,
        fused=False,
        qk_norm=True),
    'timm Swin':
    dict(type='mmpretrain.TIMMBackbone', model_name='swin'),
    'timm Swin, fused':
    dict(type='mmpretrain.TIMMBackbone', model_name='swin', fused=True),
}


def provide_timm(monkeypatch):
    """A timm that has what mmpretrain's wrapper asks for."""
    from mmpretrain.models.backbones import TIMMBackbone
    init = TIMMBackbone.__init__
    monkeypatch.setitem(sys.modules, 'timm', timm_stand_in)
    monkeypatch.setattr(TIMMBackbone, '__init__',
                        getattr(init, '__wrapped__', init))


def shake(model):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() > 1:
                scale = 0.5 if 'table' in name else param[0].numel()**-0.5
            elif 'norm' in name or 'ln' in name:
                continue
            else:
                scale = 0.3
            param.copy_(torch.randn(param.shape, generator=generator) * scale)
    return model


def trained(name, **kwargs):
    """A network of another project, as if it were trained."""
    cfg = copy.deepcopy(HOSTS[name])
    model = shake(MODELS.build(dict(cfg, **kwargs)))
    model.eval()  # some return nothing
    return model


def plugged_cfg(name, attention=IDENTITY, where=None, **kwargs):
    return dict(
        type='mmcsan.PluggedBackbone',
        backbone=dict(copy.deepcopy(HOSTS[name]), **kwargs),
        attention=attention,
        where=where)


def image(name, odd=True):
    size = (57, 90) if odd and name != 'timm ViT' else (64, 64)
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def outputs(model, x):
    out = model(x)
    return list(out) if isinstance(out, (list, tuple)) else [out]


def stand_ins(model):
    return [m for m in model.modules() if isinstance(m, StandIn)]


def own_names(model):
    return {
        f'{name}.{own}'
        for name, module in model.named_modules()
        if isinstance(module, StandIn) for own in module.new_names
    }


def same(before, after):
    """Whether every output is what it was, to 1e-6 in float32."""
    assert len(before) == len(after) > 0
    for a, b in zip(before, after):
        assert a.dtype == b.dtype
        bound = 1e-6 if a.dtype == torch.float32 else 1e-13
        assert (a - b).abs().max() <= bound
