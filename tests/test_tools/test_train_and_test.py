"""The tools run all three codebases, in this process to save its start."""
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import CODEBASES, write_config, write_images

GPU = torch.cuda.is_available()


@pytest.fixture(scope='session')
def tool(root):
    """Run a tool with command line arguments."""
    sys.path.insert(0, str(root / 'tools'))
    mains = {}
    for name in ('train', 'test'):
        spec = importlib.util.spec_from_file_location(
            f'tool_{name}', root / 'tools' / f'{name}.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        mains[name] = module.main

    def run(name, *args):
        argv, threads = sys.argv, torch.get_num_threads()
        sys.argv = [name, *map(str, args)]
        # more would only wait for each other on images this small
        torch.set_num_threads(1)
        try:
            mains[name]()
        finally:
            sys.argv = argv
            torch.set_num_threads(threads)

    return run


@pytest.fixture(scope='session')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data')
    write_images(folder)
    return folder


@pytest.fixture(scope='session', params=CODEBASES)
def trained(request, data, tool, tmp_path_factory):
    """A config and the work dir that a training of it left."""
    folder = tmp_path_factory.mktemp(request.param)
    config = write_config(folder / f'{request.param}.py', data, request.param)
    tool('train', config, '--work-dir', folder / 'work')
    return config, folder / 'work'


@pytest.fixture
def config(data, tmp_path):
    return write_config(tmp_path / 'tiny.py', data, 'mmseg')


def weights(path):
    content = torch.load(path, weights_only=False)
    return content['state_dict']


def test_train_saves(trained):
    _, work = trained
    assert {p.name for p in work.glob('*.pth')} == {
        'epoch_1.pth', 'epoch_2.pth'
    }


def test_predictions_and_drawings(trained, tool, tmp_path):
    config, work = trained
    out = tmp_path / 'predictions.pkl'
    tool('test', config, work / 'epoch_2.pth', '--work-dir', tmp_path, '--out',
         out, '--show-dir', tmp_path / 'drawn')
    predictions = pickle.loads(out.read_bytes())
    assert len(predictions) == 4
    assert all('seg_logits' not in p for p in predictions)
    drawn = sorted(p.name for p in (tmp_path / 'drawn').rglob('*.png'))
    assert len(drawn) == 4
    for i, name in enumerate(drawn):
        assert f'{i}.png' in name


def test_tta_and_metrics(trained, tool, tmp_path):
    config, work = trained
    plain, augmented = tmp_path / 'plain.json', tmp_path / 'tta.json'
    common = (config, work / 'epoch_2.pth', '--work-dir', tmp_path, '--out')
    tool('test', *common, plain)
    tool('test', *common, augmented, '--tta')
    plain, augmented = (json.loads(p.read_text()) for p in (plain, augmented))
    assert plain and plain.keys() == augmented.keys()


def test_tta_needs_a_config_of_it(trained, tool, tmp_path):
    config, work = trained
    bare = tmp_path / 'bare.py'
    bare.write_text(config.read_text() + '\ndel tta_pipeline\n')
    with pytest.raises(SystemExit, match='--tta needs tta_pipeline'):
        tool('test', bare, work / 'epoch_2.pth', '--tta')


def test_label_maps_of_segmentation(trained, tool, tmp_path):
    config, work = trained
    args = (config, work / 'epoch_2.pth', '--work-dir', tmp_path, '--out',
            tmp_path / 'maps')
    if config.stem != 'mmseg':
        with pytest.raises(SystemExit, match='.pkl or .json'):
            tool('test', *args)
        return
    tool('test', *args)
    assert {p.name for p in (tmp_path / 'maps').iterdir()} == {
        f'{i}.png' for i in range(4)
    }


@pytest.mark.parametrize('trained', ['mmpretrain'], indirect=True)
@pytest.mark.parametrize('how', ['auto', 'path', 'moved'])
def test_resume_goes_on_as_if_never_stopped(trained, tool, tmp_path, how):
    config, whole = trained
    # what a run leaves that is stopped after its first epoch
    work = tmp_path / 'work'
    work.mkdir()
    stopped = work / 'epoch_1.pth'
    shutil.copy(whole / 'epoch_1.pth', stopped)
    if how != 'path':
        was = stopped if how == 'auto' else '/moved/away/epoch_1.pth'
        (work / 'last_checkpoint').write_text(str(was))
    source = [stopped] if how == 'path' else []
    tool('train', config, '--work-dir', work, '--resume', *source)
    ours = weights(work / 'epoch_2.pth')
    for key, value in weights(whole / 'epoch_2.pth').items():
        torch.testing.assert_close(ours[key], value, msg=key)


EXACT = """
model['backbone'] = dict(
    type='mmcsan.SwinTransformer', window_size=2, drop_path_rate=.5,
    drop_rate=.1,
    arch=dict(embed_dims=24, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2]))
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=3)]
custom_hooks = [
    dict(type='EMAHook', momentum=0.1), dict(type='mmcsan.ExactResumeHook')]
"""
ITERATIONS = """
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4, val_interval=2)
train_dataloader['sampler'] = dict(type='InfiniteSampler', shuffle=True)
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=2))
log_processor = dict(by_epoch=False)
"""
HEADS = dict(
    mmpretrain="model['head']['in_channels'] = 192",
    mmseg="model['decode_head'].update(in_channels=192, dropout_ratio=.5)",
    mmdet="model['neck']['in_channels'] = [24, 48, 96, 192]")


def assert_equal(ours, theirs, where=''):
    """Bit for bit, through nested containers."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs), where
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_equal(ours[key], theirs[key], f'{where}.{key}')
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs)):
            assert_equal(*pair, f'{where}.{index}')
    else:
        assert ours == theirs, where


@pytest.mark.parametrize('scope, by_epoch', [(scope, True)
                                             for scope in CODEBASES] +
                         [('mmseg', False)])
def test_resume_is_exact(scope, by_epoch, data, tool, tmp_path):
    """Four iterations equal two, a resume and two more: weights, average,
    AdamW's state and the learning rate; drop path and flips are drawn alike.
    """
    config = write_config(tmp_path / 'exact.py', data, scope)
    text = config.read_text().replace('prob=0.)', 'prob=0.5)')
    text = text + EXACT + HEADS[scope] + ('' if by_epoch else ITERATIONS)
    config.write_text(text + '\n')
    names = ('epoch_1.pth', 'epoch_2.pth') if by_epoch else (
        'iter_2.pth', 'iter_4.pth')
    whole, work = tmp_path / 'whole', tmp_path / 'work'
    tool('train', config, '--work-dir', whole)
    work.mkdir()
    shutil.copy(whole / names[0], work)
    tool('train', config, '--work-dir', work, '--resume', work / names[0])
    first, ours, theirs = (
        torch.load(path, weights_only=False)
        for path in (whole / names[0], work / names[1], whole / names[1]))
    for part in ('state_dict', 'ema_state_dict', 'optimizer',
                 'param_schedulers'):
        assert_equal(ours[part], theirs[part], part)
    # All of these moved, so that equality says something.
    key = 'backbone.stages.0.blocks.0.attn.qkv.weight'
    for part in ('state_dict', 'ema_state_dict'):
        name = key if key in first[part] else f'module.{key}'
        assert not torch.equal(first[part][name], ours[part][name])
    steps = [s['step'].item() for s in ours['optimizer']['state'].values()]
    assert set(steps) == {4}


def test_resume_from_nothing_starts(data, tool, tmp_path, capsys):
    config = write_config(tmp_path / 'tiny.py', data, 'mmpretrain')
    tool('train', config, '--work-dir', tmp_path / 'work', '--resume')
    assert 'training starts from the beginning' in capsys.readouterr().out
    assert (tmp_path / 'work' / 'epoch_2.pth').is_file()


def test_missing_config_suggests(tool, root, tmp_path):
    shipped = next(
        p for p in (root / 'configs').rglob('*.py')
        if '_base_' not in p.parts)
    wrong = tmp_path / f'{shipped.stem[:-1]}.py'
    with pytest.raises(SystemExit) as e:
        tool('train', wrong)
    assert str(wrong) in str(e.value) and shipped.name in str(e.value)


@pytest.mark.parametrize('option', [['--resume', 'no/epoch_9.pth'],
                                    ['--cfg-options', 'load_from=no/x.pth']])
def test_missing_checkpoint_of_train(config, tool, option):
    with pytest.raises(SystemExit, match='no checkpoint at /.*there is no'):
        tool('train', config, *option)


def test_missing_checkpoint_of_test_lists_its_folder(config, tool, tmp_path):
    (tmp_path / 'epoch_7.pth').touch()
    with pytest.raises(SystemExit, match='epoch_9.pth.*folder: epoch_7.pth'):
        tool('test', config, tmp_path / 'epoch_9.pth')


@pytest.mark.parametrize('scope', ['mmpose', None])
def test_unknown_scope(config, tool, scope):
    config.write_text(config.read_text() + f'\ndefault_scope = {scope!r}\n')
    with pytest.raises(SystemExit, match='mmpretrain, mmseg, mmdet') as e:
        tool('train', config)
    assert repr(scope) in str(e.value)


@pytest.mark.skipif(GPU, reason='there is a GPU')
@pytest.mark.parametrize('name', ['train', 'test'])
def test_amp_needs_a_gpu(config, tool, name, tmp_path):
    (tmp_path / 'x.pth').touch()
    more = [tmp_path / 'x.pth'] if name == 'test' else []
    with pytest.raises(SystemExit, match="--amp needs a GPU.*'cpu'"):
        tool(name, config, *more, '--amp')


def test_auto_scale_lr_needs_a_base(config, tool):
    config.write_text(config.read_text() + '\ndel auto_scale_lr\n')
    with pytest.raises(SystemExit, match='base_batch_size'):
        tool('train', config, '--auto-scale-lr')


def test_auto_scale_lr_scales(config, tool, tmp_path):
    # two images a batch of the four that the rate was chosen for
    tool('train', config, '--work-dir', tmp_path / 'work', '--auto-scale-lr')
    last = torch.load(tmp_path / 'work' / 'epoch_2.pth', weights_only=False)
    assert last['optimizer']['param_groups'][0]['lr'] == pytest.approx(0.005)


@pytest.mark.skipif('DISPLAY' in os.environ or 'WAYLAND_DISPLAY' in os.environ
                    or not sys.platform.startswith('linux'),
                    reason='there is a screen')
def test_show_needs_a_screen(config, tool, tmp_path):
    (tmp_path / 'x.pth').touch()
    with pytest.raises(SystemExit, match='--show-dir'):
        tool('test', config, tmp_path / 'x.pth', '--show')


class Evil:
    """Runs a command when unpickled the ordinary way."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark, )


@pytest.mark.parametrize('kind', ['evil', 'script', 'text', 'empty'])
def test_bad_checkpoints_are_refused(config, tool, tmp_path, kind):
    path, mark = tmp_path / 'bad.pth', tmp_path / 'executed'
    if kind == 'evil':
        torch.save(dict(state_dict={}, meta=Evil(mark)), path)
    elif kind == 'script':
        torch.jit.trace(torch.nn.Identity(), torch.zeros(1)).save(path)
    else:
        path.write_text('<html>not found</html>' if kind == 'text' else '')
    with pytest.raises(SystemExit, match='bad.pth'):
        tool('test', config, path, '--work-dir', tmp_path / 'work')
    assert not mark.exists()


@pytest.mark.parametrize('spelling', ['--local-rank=3', '--local_rank=3'])
def test_both_spellings_of_the_rank(tool, spelling):
    from _common import new_parser
    assert new_parser('').parse_args(['x.py', spelling]).local_rank == 3


def test_dist_train_on_cpu(config, root, tmp_path):
    env = dict(
        os.environ,
        PYTHON=sys.executable,
        PORT=str(20000 + os.getpid() % 10000),
        CUDA_VISIBLE_DEVICES='-1',
        OMP_NUM_THREADS='1')
    result = subprocess.run(
        ['bash', root / 'tools' / 'dist_train.sh', config, '2', '--work-dir',
         tmp_path / 'two ranks'],
        env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    # two ranks share the four images: one batch an epoch instead of two
    assert 'Epoch(train) [1][1/1]' in result.stdout + result.stderr
    assert (tmp_path / 'two ranks' / 'epoch_2.pth').is_file()


@pytest.mark.parametrize('script, positional', [
    ('slurm_train.sh', ['part', 'job', 'a b.py']),
    ('slurm_test.sh', ['part', 'job', 'a b.py', 'c.pth']),
])
def test_slurm_scripts_hand_on_their_arguments(root, tmp_path, script,
                                               positional):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
    srun.chmod(0o755)
    env = dict(os.environ, PATH=f'{tmp_path}:{os.environ["PATH"]}', GPUS='4',
               SRUN_ARGS='--x --y')
    path = root / 'tools' / script
    output = subprocess.run(['bash', path, *positional, '--amp'], env=env,
                            check=True, capture_output=True, text=True).stdout
    lines = output.splitlines()
    assert {'--ntasks=4', '--ntasks-per-node=4', '--x', '--y'} <= set(lines)
    program = Path(script).stem.split('_')[1] + '.py'
    start = next(i for i, a in enumerate(lines) if a.endswith(program))
    assert lines[start + 1:] == [
        *positional[2:], '--launcher', 'slurm', '--amp'
    ]


@pytest.mark.parametrize('script', [
    'dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh'
])
def test_scripts_tell_their_usage(root, script):
    result = subprocess.run(['bash', root / 'tools' / script],
                            capture_output=True, text=True)
    assert result.returncode == 2 and 'usage:' in result.stderr
