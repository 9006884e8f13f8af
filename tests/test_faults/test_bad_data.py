"""Bad data and bad numbers: handled, or named before work is lost."""
import json
import sys

import numpy as np
import pytest
import torch
from faulty_runs import config_path, tool
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from PIL import Image
from tiny import CODEBASES, SIZE, write_config, write_images

from mmcsan.engine.safe_checkpoints import damage

VICTIM = dict(
    mmpretrain='cls/even/2.png', mmseg='images/2.png', mmdet='images/2.png')
MASK = 'masks/2.png'


def remove(path):
    path.unlink()


def spoil(path):
    path.write_bytes(b'no image')


def empty(path):
    path.write_bytes(b'')


def cut(path):
    path.write_bytes(path.read_bytes()[:1500])


def cut_jpeg(path):
    # decoders go by what is in a file, not by its name
    Image.open(path).save(path, 'JPEG')
    path.write_bytes(path.read_bytes()[:-100])


def label(value, size=SIZE):
    return lambda path: Image.fromarray(
        np.full((size, size), value, np.uint8)).save(path)


@HOOKS.register_module()
class FaultHook(Hook):
    """Do something to the second epoch of a run."""

    def __init__(self, what):
        self.what = FAULTS[what]

    def before_train_epoch(self, runner):
        if runner.epoch == 1:
            self.what(runner)


FAULTS = {}


@pytest.fixture
def run(tmp_path, monkeypatch, request):
    """Train a tiny model whose second epoch goes wrong."""
    import mmengine.runner.runner
    monkeypatch.setattr(mmengine.runner.runner, 'collect_env', dict)
    monkeypatch.setattr(torch, 'set_num_threads', lambda n: None)
    write_images(tmp_path)

    def run(scope, fault, more=''):
        FAULTS[request.node.name] = fault
        config = write_config(config_path(tmp_path), tmp_path, scope)
        config.write_text(config.read_text() + f"""
val_cfg = val_dataloader = val_evaluator = None
default_hooks['finite'] = dict(type='mmcsan.StopOnNaNHook')
custom_hooks = [dict(type='FaultHook', what={request.node.name!r})]
""" + more)
        monkeypatch.setattr(sys, 'argv', [
            'train', str(config), '--work-dir', str(tmp_path / 'work')])
        tool.main()

    return run


def assert_first_epoch_is_safe(folder):
    """It is whole, and nothing was saved after it."""
    [saved] = (folder / 'work').glob('*.pth*')
    assert saved.name == 'epoch_1.pth' and damage(str(saved)) is None
    weights = torch.load(saved, weights_only=False)['state_dict']
    assert all(w.isfinite().all() for w in weights.values())
    assert (folder / 'work' / 'last_checkpoint').read_text() == str(saved)


@pytest.mark.parametrize('scope, act, of_mask, workers', [
    ('mmpretrain', remove, False, 0), ('mmpretrain', spoil, False, 0),
    ('mmpretrain', empty, False, 1), ('mmseg', remove, False, 0),
    ('mmseg', cut, False, 0), ('mmseg', remove, True, 0),
    ('mmseg', spoil, True, 0), ('mmdet', remove, False, 0),
    ('mmdet', cut_jpeg, False, 0)
], ids=lambda v: getattr(v, '__name__', str(v)))
def test_unreadable_files_are_named(scope, act, of_mask, workers, run,
                                    tmp_path):
    victim = tmp_path / (MASK if of_mask else VICTIM[scope])
    with pytest.raises(SystemExit) as e:
        run(scope, lambda runner: act(victim),
            f'train_dataloader.update(num_workers={workers})')
    assert str(victim) in str(e.value) and '--resume' in str(e.value)
    assert str(e.value).startswith('error: sample ')
    assert 'Traceback' not in str(e.value)
    assert_first_epoch_is_safe(tmp_path)


@pytest.mark.parametrize('act', [label(9), label(1, 8)],
                         ids=['label', 'size'])
def test_batches_that_fail_are_named(act, run, tmp_path, capfd):
    """Labels out of range, masks of another size than the image."""
    with pytest.raises((RuntimeError, IndexError)):
        run('mmseg', lambda runner: act(tmp_path / MASK))
    log, = (tmp_path / 'work').glob('*/*.log')
    line = [t for t in log.read_text().splitlines() if 'the error came' in t]
    assert len(line) == 1 and '/images/' in line[0]
    assert_first_epoch_is_safe(tmp_path)


def ignore_all(folder):
    for index in range(4):
        label(255)(folder / 'masks' / f'{index}.png')


def without_boxes(folder):
    content = json.loads((folder / 'boxes.json').read_text())
    (folder / 'boxes.json').write_text(json.dumps(dict(
        content, annotations=content['annotations'][:1])))


@pytest.mark.parametrize('scope, prepare, more', [
    ('mmseg', ignore_all, ''),
    ('mmdet', without_boxes,
     "train_dataloader['dataset']['filter_cfg'] = "
     'dict(filter_empty_gt=False)'),
], ids=['mask', 'boxes'])
def test_nothing_to_learn_from_is_no_fault(scope, prepare, more, run,
                                           tmp_path):
    """Masks of ignored pixels alone, images without a box."""
    prepare(tmp_path)
    seen = []
    run(scope, lambda runner: seen.append(
        float(runner.message_hub.get_scalar('train/loss').current())), more)
    assert np.isfinite(seen).all() and len(seen) == 1
    assert damage(str(tmp_path / 'work' / 'epoch_2.pth')) is None


@pytest.mark.parametrize('scope', CODEBASES)
def test_first_bad_loss_stops(scope, run, tmp_path):
    def fault(runner):
        next(runner.model.parameters()).data.fill_(float('nan'))

    with pytest.raises(SystemExit) as e:
        run(scope, fault)
    message = str(e.value)
    assert 'iteration 3: ' in message and 'loss nan' in message
    assert message.count('.png') == 2
    assert_first_epoch_is_safe(tmp_path)


def test_first_bad_gradient_stops(run, tmp_path):
    """The loss is still finite."""

    def fault(runner):
        weight = next(runner.model.parameters())
        weight.register_hook(lambda g: g * float('inf'))

    with pytest.raises(SystemExit, match='iteration 3: norm of gradients'):
        run('mmpretrain', fault,
            'optim_wrapper["clip_grad"] = dict(max_norm=1.)')
    assert_first_epoch_is_safe(tmp_path)


def test_bad_weights_are_not_saved(run, tmp_path):
    """Spoiled by the last step before a checkpoint."""

    class Spoils(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            next(runner.model.parameters()).data.fill_(float('inf'))

    with pytest.raises(SystemExit, match='no checkpoint is written'):
        run('mmpretrain', lambda runner: runner.register_hook(Spoils()),
            'train_dataloader["batch_size"] = 4')
    assert_first_epoch_is_safe(tmp_path)
