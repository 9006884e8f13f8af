"""Checkpoints of ViT, by every name, into every attention."""
import pytest
import torch

from mmcsan.backbones import VisionTransformer
from mmcsan.checkpoints import (CheckpointError, convert_checkpoint,
                                load_classification_checkpoint)

ARCH = dict(embed_dims=24, depth=3, num_heads=3)
TO_TIMM = (('patch_embed.projection', 'patch_embed.proj'),
           ('ffn.layers.0.0', 'mlp.fc1'), ('ffn.layers.1', 'mlp.fc2'),
           ('ls1.weight', 'ls1.gamma'), ('ffn.gamma2.weight', 'ls2.gamma'))
TO_MMPRETRAIN = (('blocks.', 'layers.'), ('.norm1.', '.ln1.'),
                 ('.norm2.', '.ln2.'), ('ls1.weight', 'attn.gamma1.weight'))
TO_MMSEG = (('attn.qkv.', 'attn.attn.in_proj_'),
            ('attn.proj.', 'attn.attn.out_proj.'))


def build(attention='Softmax', **kwargs):
    kwargs = dict(
        dict(arch=ARCH, img_size=32, patch_size=8, out_indices=(1, 2)),
        **kwargs)
    model = VisionTransformer(attention=attention, **kwargs)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=generator) * .2)
    return model.eval()


def rename(weights, table, last, head):
    """The names of another project, with its classifier's head."""
    out = {}
    for key, value in weights.items():
        if key.startswith('norm1.'):
            continue  # of a map that a classifier does not return
        key = key.replace('norm2.', last, 1) if key.startswith(
            'norm2.') else key
        for ours, theirs in table:
            key = key.replace(ours, theirs)
        out[key] = value
    width = weights['pos_embed'].shape[-1]
    out[f'{head}.weight'] = torch.zeros(10, width)
    out[f'{head}.bias'] = torch.zeros(10)
    return out


def timm(weights, last='norm.'):
    return rename(weights, TO_TIMM, last, 'head')


def mmpretrain(weights, last='ln1.'):
    out = rename(weights, TO_MMPRETRAIN, last, 'head.layers.head')
    return {
        key if key.startswith('head') else f'backbone.{key}': value
        for key, value in out.items()
    }


def mmseg(weights):
    out = mmpretrain(weights)
    for ours, theirs in TO_MMSEG:
        out = {key.replace(ours, theirs): v for key, v in out.items()}
    return out


def image():
    return torch.randn(
        1, 3, 40, 56, generator=torch.Generator().manual_seed(3))


NEW = {'norm1.weight', 'norm1.bias'}


@pytest.mark.parametrize('make', [timm, mmpretrain, mmseg])
@pytest.mark.parametrize('form', [
    dict(), dict(class_token=False), dict(reg_tokens=1, init_values=.1)])
def test_plain(make, form):
    theirs = build(**form)
    ours = build(**form)
    ours.norm1 = theirs.norm1
    with torch.no_grad():
        for param in ours.parameters():
            param.add_(1)
    report = load_classification_checkpoint(ours, make(theirs.state_dict()))
    assert report.coverage == 1 and set(report.new) == NEW
    assert len(report.dropped) == 2 and not report.unexpected
    for a, b in zip(ours(image()), theirs(image())):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize('make', [timm, mmpretrain])
def test_plain_becomes_csan(make):
    """With the identity start, features are those of the plain network."""
    theirs = build()
    ours = build(dict(type='CSaN', init='identity'))
    for attention in ours.attentions():
        attention.reset_parameters()
    report = load_classification_checkpoint(ours, make(theirs.state_dict()))
    assert report.coverage == 1
    own = [key for key in report.new if '.attn.' in key]
    assert len(own) == 3 * 14
    gap = ours(image())[1] - theirs(image())[1]
    assert gap.abs().max() < 1e-6 * theirs(image())[1].abs().max()
    gap = (ours.double()(image().double())[1]
           - theirs.double()(image().double())[1])
    assert gap.abs().max() < 1e-10


def test_csan_by_its_own_names():
    theirs = build('CSaN', qk_norm=True)
    ours = build('CSaN', qk_norm=True)
    weights = timm(theirs.state_dict())
    wrapped = dict(
        model={f'module.{key}': value for key, value in weights.items()})
    for source in (weights, wrapped, theirs.state_dict()):
        report = load_classification_checkpoint(ours, source)
        assert report.coverage == 1
        assert 'CSaN' in report.format or 'mmcsan' in report.format
    for a, b in zip(ours(image()), theirs(image())):
        assert torch.equal(a, b)


@pytest.mark.parametrize('make, norm', [(timm, 'fc_norm.'),
                                        (mmpretrain, 'ln2.')])
def test_norms_of_the_pooled_token_are_the_heads(make, norm):
    ours = build()
    report = load_classification_checkpoint(
        ours, make(build().state_dict(), norm))
    assert set(report.new) == NEW | {'norm2.weight', 'norm2.bias'}
    assert len(report.dropped) == 4
    broken = timm(build().state_dict())
    del broken['norm.weight'], broken['norm.bias']
    with pytest.raises(CheckpointError, match='norm2.weight'):
        load_classification_checkpoint(ours, broken)


def test_extras_of_deit_and_mae():
    weights = timm(build(reg_tokens=1).state_dict())
    weights['dist_token'] = weights.pop('reg_token')
    weights['head_dist.weight'] = torch.zeros(10, 24)
    weights['head_dist.bias'] = torch.zeros(10)
    ours = build(reg_tokens=1)
    assert load_classification_checkpoint(ours, weights).coverage == 1
    assert torch.equal(ours.reg_token, weights['dist_token'])

    weights = timm(build().state_dict())
    weights['mask_token'] = torch.zeros(1, 1, 8)
    weights['decoder_blocks.0.attn.qkv.weight'] = torch.zeros(24, 8)
    report = load_classification_checkpoint(build(), weights)
    assert report.coverage == 1 and len(report.dropped) == 4
    # DeiT III has its own name for a layer scale.
    scaled = build(init_values=.1)
    weights = {
        key.replace('ls1.gamma', 'gamma_1').replace('ls2.gamma', 'gamma_2'):
        value
        for key, value in timm(scaled.state_dict()).items()
    }
    report = load_classification_checkpoint(build(init_values=1.), weights)
    assert report.coverage == 1


def test_another_size_and_no_class_token():
    source = timm(build().state_dict())
    larger = build(img_size=(48, 32))
    report = load_classification_checkpoint(larger, source)
    assert report.resized == {'pos_embed': ((1, 17, 24), (1, 25, 24))}
    assert torch.equal(larger.pos_embed[:, 0], source['pos_embed'][:, 0])
    bare = build(class_token=False)
    report = load_classification_checkpoint(bare, source)
    assert 'cls_token' in report.dropped
    assert torch.equal(bare.pos_embed, source['pos_embed'][:, 1:])
    with pytest.raises(CheckpointError, match='cls_token'):
        load_classification_checkpoint(build(), timm(bare.state_dict()))
    with pytest.raises(CheckpointError, match='reg_token'):
        load_classification_checkpoint(
            build(), timm(build(reg_tokens=1).state_dict()))


def test_blocks_not_built_are_dropped():
    short = build(out_indices=(1, ))
    report = load_classification_checkpoint(short, timm(build().state_dict()))
    assert report.coverage == 1 and not report.unexpected
    assert any(key.startswith('blocks.2.') for key in report.dropped)


def test_guess():
    for attention in ('Softmax', dict(type='CSaN', variant='bounded')):
        weights = timm(build(attention).state_dict())
        guess = convert_checkpoint(weights).guess_arch()
        assert guess['embed_dims'] == 24 and guess['depth'] == 3
    assert guess['num_heads'] == 3
    assert guess['attention'] == dict(
        type='CSaN', variant='bounded', granularity='unit', posinfo=False)


def test_wrong_family():
    from mmcsan.backbones import Hiera
    with pytest.raises(CheckpointError, match='VisionTransformer'):
        load_classification_checkpoint(
            Hiera(dict(embed_dims=16, depths=[1, 1, 1, 1], num_heads=1)),
            timm(build().state_dict()))


def test_shapes_of_full_size_models(shared):
    import json
    path = shared / 'parity' / 'state_dict_shapes.json'
    models = json.loads(path.read_text())['models']
    seen = 0
    for name, model in models.items():
        if not name.startswith('vit_'):
            continue
        weights = {
            key: torch.zeros(shape)
            for key, shape in model['parameters'].items()
        }
        arch = name.split('_patch')[0].replace('_', '-')
        report = load_classification_checkpoint(
            VisionTransformer(arch, 'CSaN'), weights)
        assert report.coverage == 1 and not report.resized, name
        assert set(report.dropped) == {'head.weight', 'head.bias'}
        seen += 1
    assert seen
