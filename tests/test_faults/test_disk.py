"""Disks that are full, folders that cannot be made."""
import errno
import os
import resource
import sys
import tempfile

import faulty_runs
import pytest
from faulty_runs import context, make
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmcsan.engine import SafeCheckpointHook
from mmcsan.engine.safe_checkpoints import PARTIAL, damage


def full_disk(config, work, limit, end):
    """Train where no file may be larger; send how it ended."""
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    original = os.replace

    def filling(old, new):
        original(old, new)
        # checkpoint and pointer of the first epoch are on disk
        if str(new).endswith('last_checkpoint'):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    os.replace = filling
    try:
        faulty_runs.train(config, work, False)
    except SystemExit as e:
        # the output file is full, too
        end.send(str(e))


def test_full_disk(tmp_path):
    config, work = make(tmp_path), tmp_path / 'work'
    ours, theirs = context().Pipe()
    # Small enough for no checkpoint, large enough for logs.
    process = context().Process(
        target=full_disk, args=(config, work, 100_000, theirs))
    process.start()
    process.join()
    assert ours.poll(), (work / 'output.txt').read_text()
    message = ours.recv()
    assert 'epoch_2.pth' in message and 'Make room' in message, message
    assert [p.name for p in work.glob('*.pth*')] == ['epoch_1.pth']
    assert damage(str(work / 'epoch_1.pth')) is None
    assert not list(work.glob('*' + PARTIAL))
    assert (work / 'last_checkpoint').read_text().endswith('epoch_1.pth')
    # With room again it goes on.
    assert faulty_runs.finish(config, work, True) == 0
    assert (work / f'epoch_{faulty_runs.EPOCHS}.pth').is_file()


@pytest.mark.parametrize('failing', ['log', 'checkpoint'])
def test_no_space(failing, tmp_path, monkeypatch):
    """ENOSPC, wherever it comes up first."""
    from mmengine.fileio.backends import LocalBackend
    from mmengine.visualization import LocalVisBackend

    def refuse(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    faulty_runs._note_progress(tmp_path / 'progress')
    if failing == 'log':
        monkeypatch.setattr(LocalVisBackend, '_dump', refuse)
    else:
        monkeypatch.setattr(LocalBackend, 'put', refuse)
    config = make(tmp_path)
    config.write_text(config.read_text() + (
        "default_hooks['logger'] = dict(type='LoggerHook', interval=1)\n"))
    monkeypatch.setattr(sys, 'argv', [
        'train', str(config), '--work-dir', str(tmp_path / 'work')])
    with pytest.raises(SystemExit, match='No space left.*disk is full'):
        faulty_runs.tool.main()


BEST = """
default_hooks['checkpoint'].update(save_best='score', rule='greater')
custom_hooks.append(dict(type='ScoreHook', priority='LOWEST'))
"""


@pytest.mark.parametrize('room', [True, False])
def test_best_is_kept_until_a_better_one_is_written(room, tmp_path,
                                                    monkeypatch):
    from mmengine.fileio.backends import LocalBackend
    put = LocalBackend.put

    @HOOKS.register_module(force=True)
    class ScoreHook(Hook):
        """Each epoch is better than the one before."""

        def after_train_epoch(self, runner):
            for hook in runner.hooks:
                if isinstance(hook, SafeCheckpointHook):
                    hook.after_val_epoch(runner, dict(score=runner.epoch + 1))

    def scarce(backend, content, path):
        if not room and 'best_score_epoch_2' in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(backend, content, path)

    monkeypatch.setattr(LocalBackend, 'put', scarce)
    faulty_runs._note_progress(tmp_path / 'progress')
    config, work = make(tmp_path), tmp_path / 'work'
    config.write_text(config.read_text() + BEST)
    monkeypatch.setattr(sys, 'argv', [
        'train', str(config), '--work-dir', str(work)])
    if room:
        faulty_runs.tool.main()
        expect = f'best_score_epoch_{faulty_runs.EPOCHS - 1}.pth'
    else:
        with pytest.raises(SystemExit, match='best_score_epoch_2'):
            faulty_runs.tool.main()
        expect = 'best_score_epoch_1.pth'
    [best] = work.glob('best*')
    assert best.name == expect and damage(str(best)) is None


@pytest.mark.parametrize('why', ['a file', 'read-only'])
def test_work_dir_that_cannot_be_written(why, tmp_path, monkeypatch):
    config, work = make(tmp_path), tmp_path / 'work'
    if why == 'a file':
        work.write_text(why)
    else:
        # root may write to any folder that is not mounted so
        def refuse(*args, **kwargs):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(tempfile, 'TemporaryFile', refuse)
    monkeypatch.setattr(sys, 'argv', [
        'train', str(config), '--work-dir', str(work)])
    with pytest.raises(SystemExit, match='--work-dir') as e:
        faulty_runs.tool.main()
    assert str(work) in str(e.value)
