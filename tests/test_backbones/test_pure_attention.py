"""Stacks of attention alone, without any FFN."""
import copy

import pytest
import torch
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.transformer import FFN

from mmcsan.attentions import CSaN, Softmax
from mmcsan.backbones import SwinTransformer

SMALL = dict(embed_dims=24, depths=[1, 2], num_heads=[1, 2])
HEAD = 768 * 1000 + 1000


def build(attention='CSaN', **kwargs):
    kwargs = dict(
        dict(arch=SMALL, window_size=4, drop_path_rate=0., ffn='attention'),
        **kwargs)
    return SwinTransformer(attention=attention, **kwargs)


def image(height=61, width=45):
    return torch.randn(
        1, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('attention, ffn, millions', [
    ('Softmax', 'attention', 8.628),
    ('CSaN', 'attention', 9.511),
    ('CSaN', 'mlp', 12.197),
])
def test_published_numbers_of_parameters(attention, ffn, millions):
    """Of Swin-Min as a classifier, with its final norm and 1,000 classes."""
    with torch.device('meta'):
        model = SwinTransformer(
            'swin-min', attention=attention, ffn=ffn, out_indices=(3, ))
    count = sum(p.numel() for p in model.parameters()) + HEAD
    assert round(count / 1e6, 3) == millions


def test_every_ffn_gives_way_to_an_attention_with_its_own_norm():
    plain, pure = build('Softmax', ffn='mlp'), build('Softmax')
    assert not any(isinstance(m, FFN) for m in pure.modules())
    assert len(pure.attentions()) == 2 * len(plain.attentions()) == 6
    for stage in pure.stages:
        for block in stage.blocks:
            assert block.norm1 is not block.norm2
            own = dict(block.attn.named_parameters())
            for name, param in block.ffn.named_parameters():
                assert param is not own[name]
                assert param.shape == own[name].shape


@pytest.mark.parametrize('attention', [
    'Softmax', 'CSaN', dict(type='CSaN', posinfo=True), 'Pola',
    ['CSaN', ['Softmax', 'CSaN']]
])
def test_runs_and_trains(attention):
    model = build(attention)
    maps = model(image())
    assert [tuple(m.shape[1:]) for m in maps] == [(24, 16, 12), (48, 8, 6)]
    sum(out.square().sum() for out in maps).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name


def test_attentions_by_stage_and_block():
    model = build(['CSaN', ['Softmax', 'CSaN']])
    kinds = [type(a) for a in model.attentions()]
    assert kinds == [CSaN] * 2 + [Softmax] * 2 + [CSaN] * 2


def test_checkpointing_changes_nothing():
    torch.manual_seed(0)
    plain = build().double()
    cheap = build(with_cp=True).double()
    cheap.load_state_dict(plain.state_dict())
    grads = []
    for model in (plain, cheap):
        sum(out.square().sum() for out in model(image().double())).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads):
        assert torch.equal(a, b)


def test_identity_is_plain_attention():
    plain = build('Softmax').double().eval()
    ours = build(dict(type='CSaN', init='identity')).double().eval()
    report = ours.load_state_dict(plain.state_dict(), strict=False)
    assert not report.unexpected_keys
    for a, b in zip(plain(image().double()), ours(image().double())):
        assert (a - b).abs().max() < 1e-12


def test_drop_path_is_that_of_an_attention_branch():
    block = build('CSaN', drop_path_rate=0.3).stages[-1].blocks[-1]
    assert block.drop_path.drop_prob == pytest.approx(0.1)
    assert not any(isinstance(m, DropPath) for m in block.ffn.modules())


def test_saves_loads_and_tells_depths():
    first, again = build(), build()
    again.load_state_dict(copy.deepcopy(first.state_dict()), strict=True)
    assert first.get_layer_depth('stages.1.blocks.1.ffn.qkv.weight') == (3, 5)
