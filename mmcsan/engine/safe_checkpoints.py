"""Checkpoints that are whole or not there, and which one to go on from."""
import logging
import os
import os.path as osp
import re
import shutil
import zipfile
from pathlib import Path
from typing import List, Optional

from mmengine.dist import barrier, is_main_process
from mmengine.fileio.backends import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcsan.checkpoints import CheckpointError
from mmcsan.registry import HOOKS
from .guards import check_weights_finite

PARTIAL = '.partial'
"""Ends the names of files that are still being written."""
POINTER = 'last_checkpoint'
"""mmengine's file with the path of the newest checkpoint."""

_OUTDATED = 'outdated_ckpt_ids'
_NUMBERED = re.compile(r'(.*?)(\d+)(\.pth)')
_DEFAULT_STEMS = ('epoch_', 'iter_')


def _sync(path: str) -> None:
    """Have the disk hold a file, or the names in a folder."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _put_in_place(partial: str, path: str) -> None:
    """Give a finished file, or folder of shards, its name."""
    if osp.isdir(partial):
        shutil.rmtree(path, ignore_errors=True)
    else:
        _sync(partial)
    os.replace(partial, path)
    if os.name == 'posix':
        _sync(osp.dirname(path) or '.')


def _remove(path: str) -> None:
    if osp.isdir(path):
        shutil.rmtree(path)
    elif osp.lexists(path):
        os.remove(path)


def _cannot_write(path: str, error: OSError) -> OSError:
    return type(error)(
        error.errno, f'{error.strerror or error}: the checkpoint cannot be '
        'written, and training stops; those before it are whole. Make room, '
        'then go on with --resume', path)


class _WholeFiles:
    """A runner that saves under another name first.

    Args:
        runner (Runner | FlexibleRunner): The runner of the training.
    """

    def __init__(self, runner) -> None:
        self.runner = runner

    def __getattr__(self, name: str):
        return getattr(self.runner, name)

    def save_checkpoint(self, out_dir: str, filename: str, *args,
                        **kwargs) -> None:
        """Save as the runner does; the name appears when all is written."""
        check_weights_finite(self.runner.model)
        path = osp.join(out_dir, filename)
        partial = path + PARTIAL
        try:
            self.runner.save_checkpoint(out_dir, filename + PARTIAL, *args,
                                        **kwargs)
            if not isinstance(self.runner, Runner):
                barrier()  # of sharded ones each rank writes a file
            if is_main_process():
                _put_in_place(partial, path)
        except OSError as e:
            if is_main_process():
                _remove(partial)
            raise _cannot_write(path, e) from e


class _RemovesLater:
    """A file backend that keeps in mind what it is told to remove."""

    def __init__(self, backend) -> None:
        self.backend = backend
        self.outdated: List[str] = []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        """Note a path."""
        self.outdated.append(path)

    rmtree = remove


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's hook, for runs that may be killed at any moment.

    mmengine removes the oldest checkpoint, then writes the newest in place: a
    run that is killed, or finds the disk full, in between may be left with
    half a file. Here each file is written under a name that ends in
    ``.partial``, brought to disk, then renamed; so is ``last_checkpoint``.
    What is outdated goes after that, so that there is room needed for one
    checkpoint more. What a killed run left half-written is removed when the
    next one starts. Weights that are not finite are never saved.

    Folders that are not local are written as mmengine does.

    Args:
        args, kwargs: Those of ``mmengine.hooks.CheckpointHook``.

    Examples:
        >>> default_hooks = dict(checkpoint=dict(
        ...     type='mmcsan.SafeCheckpointHook', interval=1))
    """

    def before_train(self, runner) -> None:
        """Prepare the folder, and clear it of what is half-written.

        Args:
            runner (Runner): The runner of the training.
        """
        super().before_train(runner)
        self._is_local = isinstance(self.file_backend, LocalBackend)
        if not self._is_local or not is_main_process():
            return
        # of a run that was killed between writing and removing
        for step in runner.message_hub.runtime_info.get(_OUTDATED, ()):
            _remove(self._path(step))
        for folder in {self.out_dir, runner.work_dir}:
            for name in ('*.pth', POINTER):
                for path in Path(folder).glob(name + PARTIAL):
                    _remove(str(path))
                    runner.logger.warning(
                        f'{path} was being written when a run stopped, and '
                        'is removed')

    def _save_checkpoint_with_step(self, runner, step: int,
                                   meta: dict) -> None:
        """Write a checkpoint, then remove the outdated one.

        Args:
            runner (Runner): The runner of the training.
            step (int): Epoch or iteration, for the name.
            meta (dict): Epoch and iteration, for the file.
        """
        if not self._is_local:
            super()._save_checkpoint_with_step(runner, step, meta)
            return
        if not isinstance(runner, _WholeFiles):
            runner = _WholeFiles(runner)
        outdated = self._outdate(runner, step)
        name = self.filename_tmpl.format(step)
        self.last_ckpt = osp.join(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args)
        if is_main_process():
            self._point_to_last(runner.work_dir)
            for old in outdated:
                _remove(self._path(old))

    def _path(self, step: int) -> str:
        return osp.join(self.out_dir, self.filename_tmpl.format(step))

    def _outdate(self, runner, step: int) -> List[int]:
        """Note a step; the steps that are no longer kept."""
        steps = list(getattr(self, 'keep_ckpt_ids', ()))
        if self.max_keep_ckpts <= 0 or step in steps[-1:]:
            return []
        steps.append(step)
        kept = steps[-self.max_keep_ckpts:]
        outdated = [old for old in steps if old not in kept]
        self.keep_ckpt_ids.clear()
        self.keep_ckpt_ids.extend(kept)
        # both are saved, for the run that goes on from this checkpoint
        runner.message_hub.update_info('keep_ckpt_ids', kept)
        runner.message_hub.update_info(_OUTDATED, outdated)
        return outdated

    def _point_to_last(self, work_dir: str) -> None:
        """Write the path of the newest checkpoint, as mmengine reads it."""
        path = osp.join(work_dir, POINTER)
        try:
            with open(path + PARTIAL, 'w') as file:
                file.write(self.last_ckpt)
            _put_in_place(path + PARTIAL, path)
        except OSError as e:
            _remove(path + PARTIAL)
            raise _cannot_write(path, e) from e

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        """Write the best checkpoint, then remove the one before.

        Args:
            runner (Runner): The runner of the training.
            metrics (dict): Scores by name.
        """
        if not self._is_local:
            super()._save_best_checkpoint(runner, metrics)
            return
        backend = self.file_backend
        self.file_backend = later = _RemovesLater(backend)
        try:
            super()._save_best_checkpoint(_WholeFiles(runner), metrics)
        finally:
            self.file_backend = backend
        if self.save_best:
            best = getattr(self, 'best_ckpt_path_dict', {})
            current = {getattr(self, 'best_ckpt_path', None), *best.values()}
            for path in later.outdated:
                if path not in current:
                    _remove(path)


def damage(path: str) -> Optional[str]:
    """What keeps a file that a run saved from being read.

    Every byte is read and compared with its checksum; nothing is unpickled.

    Args:
        path (str): A checkpoint of a run: a ``.pth`` of ``torch.save``.

    Returns:
        str | None: None if it is whole.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as e:
        return f'{type(e).__name__}: {e}'
    return broken and f'{broken} in it has another checksum'


def _named_last(work_dir: str) -> Optional[str]:
    """The checkpoint that ``last_checkpoint`` names, wherever it was."""
    pointer = osp.join(work_dir, POINTER)
    try:
        with open(pointer) as file:
            named = file.read().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    if named and not osp.exists(named):
        named = osp.join(work_dir, osp.basename(named))
    return named or None


def _numbered(folder: str, stems) -> List[tuple]:
    """Checkpoints of a folder with the numbers in their names."""
    found = []
    for path in Path(folder).glob('*.pth'):
        match = _NUMBERED.fullmatch(path.name)
        if match and match[1] in stems:
            found.append((int(match[2]), str(path)))
    return found


def _candidates(work_dir: str) -> List[str]:
    """What a run may go on from, the newest first."""
    named = _named_last(work_dir)
    match = named and _NUMBERED.fullmatch(osp.basename(named))
    if not named:
        found = _numbered(work_dir, _DEFAULT_STEMS)
        return sorted((path for _, path in found),
                      key=osp.getmtime, reverse=True)
    if not match:
        return [named]
    # Higher numbers are of a run before this one in the same folder, unless
    # they were written when the run was about to name them.
    written = osp.getmtime(osp.join(work_dir, POINTER))
    number = int(match[2])
    others = _numbered(osp.dirname(named), {match[1]})
    kept = {
        other: path
        for other, path in others
        if other < number or osp.getmtime(path) > written
    }
    kept[number] = named
    return [kept[other] for other in sorted(kept, reverse=True)]


def latest_checkpoint(work_dir: str) -> Optional[str]:
    """The newest whole checkpoint of a work dir, also of one that was moved.

    Args:
        work_dir (str): The folder of a run.

    Returns:
        str | None: None if nothing was saved there yet.

    Raises:
        CheckpointError: If there are checkpoints, but none is whole.
    """
    damaged = []
    for path in _candidates(work_dir):
        # folders of shards are left to what wrote them
        reason = None if osp.isdir(path) else damage(path)
        if reason is None:
            return path
        damaged.append(path)
        print_log(
            f'{path} is damaged ({reason}); the checkpoint before it is '
            'looked for',
            logger='current',
            level=logging.WARNING)
    if damaged:
        raise CheckpointError(
            f'no checkpoint in {work_dir} is whole: {", ".join(damaged)}. '
            'Name one that is by --resume FILE, or remove them to start anew')
    return None
