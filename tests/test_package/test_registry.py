import sys

import mmengine.registry as mmengine_registry
import pytest
from mmengine.registry import DefaultScope

from mmcsan import registry
from mmcsan.registry import ATTENTIONS, HOOKS, MODELS, unknown_name
from mmcsan.version import DependencyError


def test_unknown_name_lists_and_suggests():
    text = unknown_name('arch', 'swin-tinny', ['vit', 'swin-tiny'])
    assert "'swin-tinny'" in text
    assert "Did you mean 'swin-tiny'?" in text
    assert text.endswith('Known: swin-tiny, vit')
    assert 'Did you mean' not in unknown_name('arch', 'xyz', ['swin-tiny'])


@pytest.mark.parametrize('name', ['CSaM', 'mmcsan.CSaM'])
def test_unknown_attention_lists_the_known_ones(name):
    with pytest.raises(KeyError, match='CSaN.*Softmax') as e:
        ATTENTIONS.build(dict(type=name))
    assert 'CSaM' in str(e.value)
    assert name not in ATTENTIONS


def test_attention_is_found_with_and_without_scope():
    assert ATTENTIONS.get('CSaN') is ATTENTIONS.get('mmcsan.CSaN')
    assert 'CSaN' in ATTENTIONS


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_attentions_ignore_the_default_scope(scope):
    """The scope of a run names a codebase, which has no attentions."""
    with DefaultScope.overwrite_default_scope(scope):
        with ATTENTIONS.switch_scope_and_registry(None) as found:
            assert found is ATTENTIONS


@pytest.mark.parametrize('name', [
    'MODELS', 'WEIGHT_INITIALIZERS', 'HOOKS', 'OPTIM_WRAPPER_CONSTRUCTORS',
    'DATASETS', 'TRANSFORMS'
])
def test_registries_are_children_and_fill_themselves(name):
    child = getattr(registry, name)
    parent = getattr(mmengine_registry, name)
    assert parent.children['mmcsan'] is child
    child.import_from_location()
    for key, cls in child.module_dict.items():
        assert cls.__module__.startswith('mmcsan.'), key
        assert parent.get(f'mmcsan.{key}') is cls


def test_parents_and_full_paths_are_still_found():
    assert HOOKS.get('CheckpointHook').__module__.startswith('mmengine')
    path = 'mmcsan.backbones.swin.SwinTransformer'
    assert MODELS.get(path) is MODELS.get('SwinTransformer')


def test_a_missing_codebase_is_named_with_the_cure(tmp_path, monkeypatch):
    (tmp_path / 'needs_mmdet.py').write_text('import mmdet\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, 'mmdet', None)
    lonely = registry._RootRegistry(
        'thing', scope='mmcsan', locations=['needs_mmdet'])
    with pytest.raises(DependencyError, match='mmdet.*pip install'):
        lonely.get('Thing')


def test_other_missing_modules_are_left_as_they_are(tmp_path, monkeypatch):
    (tmp_path / 'needs_more.py').write_text('import no_such_module\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    lonely = registry._RootRegistry(
        'thing', scope='mmcsan', locations=['needs_more'])
    with pytest.raises(ModuleNotFoundError, match='no_such_module'):
        lonely.get('Thing')
