"""Runs of tools/train.py in processes that may be killed at any moment."""
import os
import random
import shutil
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / 'tools'), str(ROOT / 'tests' / 'test_tools')
]

import torch  # noqa: E402
import train as tool  # noqa: E402
from tiny import write_config, write_images  # noqa: E402

from mmcsan.engine import safe_checkpoints  # noqa: E402

INTERVAL, EPOCHS, ITERS_AN_EPOCH = 2, 4, 2
"""Iterations from one checkpoint to the next, epochs, and their length."""
KEPT = 2

RUN = f"""
train_cfg.update(max_epochs={EPOCHS})
val_cfg = val_dataloader = val_evaluator = None
default_hooks['checkpoint']['max_keep_ckpts'] = {KEPT}
custom_hooks = [
    dict(type='mmcsan.ExactResumeHook'), dict(type='ProgressHook')]
"""

STAGES = {
    'half of the file': ('put', 'pth', 'half'),
    'whole, not yet named': ('replace', 'pth', 'before'),
    'named, not yet pointed to': ('replace', 'pth', 'after'),
    'pointer not yet named': ('replace', 'last_checkpoint', 'before'),
    'pointed to, none removed': ('remove', 'pth', 'before'),
}
"""Where a write is cut: the call, the file, and when."""


def context():
    """Processes that start with everything imported."""
    found = get_context('forkserver')
    found.set_forkserver_preload(
        ['mmcsan', 'mmpretrain.models', 'mmpretrain.datasets', 'faulty_runs'])
    return found


def config_path(folder):
    """Where a test's config goes.

    mmengine tells runs of one process apart by the name of the config and the
    second, so that each test has a name of its own.
    """
    return folder / f'{folder.name}.py'


def make(folder):
    """A config and its data."""
    write_images(folder)
    path = write_config(config_path(folder), folder, 'mmpretrain')
    path.write_text(path.read_text() + RUN)
    return path


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _cut(stage, number):
    """Have the process die in the writing of a numbered checkpoint."""
    from mmengine.fileio.backends import LocalBackend
    call, file, when = STAGES[stage]
    owner = LocalBackend if call == 'put' else os
    original, seen = getattr(owner, call), [0]

    def dying(*args, **kwargs):
        path = str(args[2 if call == 'put' else 0])
        name = os.path.basename(path)
        is_it = name.startswith(file) or f'.{file}' in name
        seen[0] += is_it
        if not is_it or seen[0] != number:
            return original(*args, **kwargs)
        if when == 'half':
            with open(path, 'wb') as half:
                half.write(args[1][:len(args[1]) // 2])
        if when == 'after':
            original(*args, **kwargs)
        _die()

    setattr(owner, call, dying)


def _note_progress(path):
    """Write each iteration down when it is done, before it is saved."""
    from mmengine.hooks import Hook
    from mmengine.registry import HOOKS

    @HOOKS.register_module(force=True)
    class ProgressHook(Hook):

        def after_train_iter(self, runner, *args, **kwargs):
            # whole at any moment, as it is read meanwhile
            part = path.with_suffix('.part')
            part.write_text(str(runner.iter + 1))
            part.replace(path)


def _hurry():
    """Leave out what takes longer than these runs themselves."""
    import gc

    import mmengine.config.config
    import mmengine.runner.runner
    torch.set_num_threads(1)
    gc.freeze()
    mmengine.runner.runner.collect_env = dict
    mmengine.config.config.FormatCode = lambda text, **options: (text, True)


def train(config, work, resume, cut=None):
    """Run the tool; the target of a process.

    Args:
        config (Path): The config.
        work (Path): The work dir.
        resume (bool): Whether to go on.
        cut (tuple, optional): A stage of ``STAGES`` and the number of the
            checkpoint to die in.
    """
    _hurry()
    work.mkdir(exist_ok=True)
    log = os.open(work / 'output.txt', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _note_progress(work / 'progress')
    if cut:
        _cut(*cut)
    sys.argv = ['train', str(config), '--work-dir', str(work)]
    sys.argv += ['--resume'] * resume
    tool.main()


def start(*args):
    """Start :func:`train` in a process.

    Returns:
        Process: It runs.
    """
    process = context().Process(target=train, args=args)
    process.start()
    return process


def finish(*args):
    """Run :func:`train` in a process to its end.

    Returns:
        int: How it ended; minus the number of the signal that killed it.
    """
    process = start(*args)
    process.join()
    return process.exitcode


def read(path):
    return torch.load(path, weights_only=False)


def done(progress):
    """The iteration that a run came to."""
    return int(progress.read_text() or 0) if progress.exists() else 0


def assert_little_is_lost(work):
    """What is there is whole, and at most one interval old."""
    assert all(safe_checkpoints.damage(p) is None for p in work.glob('*.pth'))
    newest = safe_checkpoints.latest_checkpoint(str(work))
    saved = read(newest)['meta']['iter'] if newest else 0
    assert done(work / 'progress') - saved <= INTERVAL
    return saved


def kill_at_random(config, work, times, seed):
    """Start or go on with a run, and kill it, some times.

    Each is let come to a random iteration, then killed within the time that
    some more of them take, or a checkpoint.

    Returns:
        list[int]: The newest iteration that was saved at each kill.
    """
    moments, saved = random.Random(seed), []
    last = EPOCHS * ITERS_AN_EPOCH
    progress = work / 'progress'
    for _ in range(times):
        before = saved[-1] if saved else 0
        if before >= last - INTERVAL:  # anew, from the start
            before = 0
        if not before:
            shutil.rmtree(work, ignore_errors=True)
        progress.unlink(missing_ok=True)
        target = before + moments.randint(1, INTERVAL + 1)
        process = start(config, work, before > 0)
        while process.is_alive() and done(progress) < target:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.join()
        saved.append(assert_little_is_lost(work))
        assert saved[-1] >= before
    return saved
