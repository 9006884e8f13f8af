"""Attentions plugged into backbones of other projects."""
import copy
import pickle

import pytest
import torch
import torch.nn as nn
from foreign_networks import (HOSTS, IDENTITY, image, outputs, own_names,
                              plugged_cfg, provide_timm, same, shake,
                              stand_ins, trained)
from mmengine.config import ConfigDict
from mmengine.runner.checkpoint import load_checkpoint, save_checkpoint

import mmcsan
from mmcsan.attentions import CSaN
from mmcsan.plugging import PluggedNetwork
from mmcsan.registry import MODELS

hosts = pytest.mark.parametrize('name', HOSTS)
kinds = pytest.mark.parametrize(
    'name', ['mmdet Swin', 'mmpretrain ViT', 'mmseg ViT', 'timm Swin'])
FUSED = 'timm Swin, fused'
"""Its own kernel adds biases to logits: the same up to rounding."""


@pytest.fixture(autouse=True)
def timm(monkeypatch):
    provide_timm(monkeypatch)


@pytest.mark.parametrize('odd, posinfo', [(False, True), (True, False)])
@hosts
def test_identity_changes_no_output(name, odd, posinfo):
    model = trained(name)
    x = image(name, odd)
    if name == FUSED:
        model, x = model.double(), x.double()
    before = outputs(model, x)
    assert mmcsan.plug_attention(model, dict(IDENTITY,
                                             posinfo=posinfo)) is model
    same(before, outputs(model, x))
    assert all(a.abs().max() > 1 for a in before)
    # in training kernels of their own serve, which round differently
    for a, b in zip(before, outputs(model.train(), x)):
        assert torch.allclose(a, b, atol=1e-5)


@kinds
def test_the_attention_is_in_use(name):
    model = trained(name)
    x = image(name)
    before = outputs(model, x)
    mmcsan.plug_attention(model, 'CSaN')
    assert all(isinstance(a, CSaN) for a in stand_ins(model))
    shake(model)
    for a, b in zip(before, outputs(model, x)):
        assert (a - b).abs().max() > 1e-2
    sum(out.square().sum() for out in outputs(model, x)).backward()
    for key in own_names(model):
        grad = model.get_parameter(key).grad
        assert grad is not None and grad.abs().max() > 0, key


@hosts
def test_the_very_tensors_stay(name):
    model = trained(name)
    before = dict(model.named_parameters())
    values = {k: v.clone() for k, v in model.state_dict().items()}
    mmcsan.plug_attention(model, 'CSaN')
    after = dict(model.named_parameters())
    new = own_names(model)
    kept = {id(after[k]) for k in after if k not in new}
    assert kept == {id(param) for param in before.values()}
    if not name.startswith('mmseg ViT'):  # torch's own names are replaced
        assert set(after) - new == set(before)
        assert set(model.state_dict()) - new == set(values)
        for key, value in values.items():
            assert torch.equal(model.state_dict()[key], value), key


@hosts
def test_a_checkpoint_of_the_network_fits(name, tmp_path):
    """By strict=False, as load_from does: only what is new is missing."""
    model = trained(name)
    path = str(tmp_path / 'plain.pth')
    save_checkpoint(dict(state_dict=model.state_dict()), path)
    torch.manual_seed(5)
    plugged = MODELS.build(plugged_cfg(name, 'CSaN'))
    start = {
        key: plugged.get_parameter(key).clone()
        for key in own_names(plugged)
    }
    report = plugged.load_state_dict(model.state_dict(), strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) == set(start)
    plugged = MODELS.build(plugged_cfg(name))
    load_checkpoint(plugged, path)
    x = image(name).double()
    same(outputs(model.double(), x), outputs(plugged.double().eval(), x))


@pytest.mark.parametrize('attention', [IDENTITY, 'CSaN'])
@pytest.mark.parametrize('name', [n for n in HOSTS if 'timm' not in n])
def test_init_cfg_of_the_backbone(name, attention, tmp_path):
    model = trained(name)
    path = str(tmp_path / 'plain.pth')
    keys = {
        ('backbone.' if name == 'mmdet Swin' else '') + key: value
        for key, value in model.state_dict().items()
    }
    save_checkpoint(dict(state_dict=keys), path)
    cfg = ConfigDict(
        plugged_cfg(
            name,
            attention,
            init_cfg=dict(type='Pretrained', checkpoint=path)))
    plugged = MODELS.build(cfg)
    start = {
        key: plugged.get_parameter(key).clone()
        for key in own_names(plugged)
    }
    for _ in range(2):
        plugged.init_weights()
        for key, value in start.items():
            assert torch.equal(plugged.get_parameter(key), value), key
    if attention is IDENTITY:
        x = image(name)
        same(outputs(model, x), outputs(plugged.eval(), x))


@kinds
def test_initialisation_leaves_what_is_new(name):
    """Also where the network draws every linear layer anew."""
    plugged = MODELS.build(plugged_cfg(name))
    inside = nn.Module()
    inside.backbone = plugged
    # as a classifier with an init_cfg does in front of its backbone
    for module in inside.modules():
        if isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)
    plugged.init_weights()
    for attention in stand_ins(plugged):
        assert attention.temp.weight.abs().max() == 0
        assert attention.u.weight.abs().max() < 0.2
        assert attention.u.weight.std() > 0.01


def test_a_table_is_drawn_where_the_network_would():
    plugged = MODELS.build(plugged_cfg('mmpretrain Swin'))
    plugged.init_weights()
    for attention in stand_ins(plugged):
        assert attention.relative_position_bias_table.std() > 0.005


def test_what_a_checkpoint_holds_is_not_brought_back(tmp_path):
    """A plugged checkpoint as init_cfg fills what is new, too."""
    first = shake(MODELS.build(plugged_cfg('mmpretrain Swin')))
    path = str(tmp_path / 'plugged.pth')
    save_checkpoint(dict(state_dict=first.state_dict()), path)
    again = MODELS.build(
        plugged_cfg(
            'mmpretrain Swin',
            init_cfg=dict(type='Pretrained', checkpoint=path)))
    again.init_weights()
    for key, value in first.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    # loaded, then initialised by mistake: the network's own affair, but not
    # back to the start
    first.load_state_dict(first.state_dict())
    value = stand_ins(first)[0].temp.weight.clone()
    first.init_weights()
    assert torch.equal(stand_ins(first)[0].temp.weight, value)


@hosts
def test_saves_and_loads_strictly(name, tmp_path):
    first = shake(MODELS.build(plugged_cfg(name, 'CSaN'))).eval()
    path = str(tmp_path / 'plugged.pth')
    save_checkpoint(dict(state_dict=first.state_dict()), path)
    for strict in (True, False):
        again = MODELS.build(plugged_cfg(name, 'CSaN')).eval()
        load_checkpoint(again, path, strict=strict)
        x = image(name)
        for a, b in zip(outputs(first, x), outputs(again, x)):
            assert torch.equal(a, b)
    # and the function makes what the config makes
    function = trained(name)
    mmcsan.plug_attention(function, 'CSaN')
    function.load_state_dict(first.state_dict(), strict=True)


@kinds
def test_copies_and_pickles(name):
    model = shake(MODELS.build(plugged_cfg(name, dict(type='CSaN',
                                                      posinfo=True)))).eval()
    x = image(name)
    expect = outputs(model, x)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model)
        with torch.no_grad():
            stand_ins(model)[0].temp.weight.add_(0.)
        for a, b in zip(expect, outputs(again, x)):
            assert torch.equal(a, b)
        other = image(name, odd=False)
        for a, b in zip(outputs(model, other), outputs(again, other)):
            assert torch.equal(a, b)
        assert stand_ins(again)[0] is not stand_ins(model)[0]


@hosts
def test_it_stays_the_network_it_was(name):
    plain = trained(name)
    model = MODELS.build(plugged_cfg(name))
    assert isinstance(model, type(plain))
    assert isinstance(model, PluggedNetwork)
    assert type(model).__name__ == f'Plugged{type(plain).__name__}'
    assert model.train() is model and model.training
    assert model.eval() is model and not model.training
    for attribute in ('out_indices', 'num_features', 'frozen_stages'):
        assert getattr(model, attribute, None) == getattr(
            plain, attribute, None)
