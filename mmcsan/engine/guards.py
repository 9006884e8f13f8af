"""Stop before work is lost, and name what is to blame."""
import logging
import math
from functools import wraps
from typing import List

import torch
import torch.nn as nn
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.logging import print_log

from mmcsan.registry import HOOKS

_FILES = ('img_path', 'seg_map_path', 'file_name')


class BadDataError(RuntimeError):
    """A sample of a data set cannot be read."""


class NonFiniteError(RuntimeError):
    """A loss, gradient or weight is not a finite number."""


def _prepare_named(prepare):
    """``prepare_data`` whose errors name the files of the sample."""

    @wraps(prepare)
    def prepare_data(dataset, idx):
        try:
            return prepare(dataset, idx)
        except Exception as e:
            info = dataset.get_data_info(idx)
            files = [str(info[key]) for key in _FILES if info.get(key)]
            raise BadDataError(
                f'sample {idx} of {type(dataset).__name__} cannot be read '
                f'({type(e).__name__}: {e}). Its files: '
                f'{", ".join(files) or "none"}. Mend or remove them, then go '
                'on with --resume') from e

    prepare_data.names_files = True
    return prepare_data


def name_bad_data() -> None:
    """Have data sets name the files of a sample that cannot be read.

    All data sets of the codebases derive from mmengine's, whose method is
    wrapped. Workers of data loaders see it where they are forked, as the
    configs here ask for.
    """
    if not hasattr(BaseDataset.prepare_data, 'names_files'):
        BaseDataset.prepare_data = _prepare_named(BaseDataset.prepare_data)


def image_files(data_batch) -> List[str]:
    """The image files of a batch.

    Args:
        data_batch (dict): A batch of a data loader, before preprocessing.

    Returns:
        list[str]: Their paths, as far as the data set tells them.
    """
    samples = data_batch.get('data_samples', ()) if isinstance(
        data_batch, dict) else ()
    found = [
        getattr(sample, 'metainfo', {}).get('img_path') for sample in samples
    ]
    return [str(path) for path in found if path]


def check_weights_finite(model: nn.Module) -> None:
    """Refuse weights that are not finite.

    Args:
        model (nn.Module): Any model, wrapped or not.

    Raises:
        NonFiniteError: If a parameter holds NaN or infinity; names it.
    """
    for name, param in model.named_parameters():
        # shards of FSDP tell their own part
        values = param.to_local() if hasattr(param, 'to_local') else param
        if not bool(torch.isfinite(values).all()):
            raise NonFiniteError(
                f'{name} holds values that are not finite, so no checkpoint '
                'is written; those before it stay as they are')


@HOOKS.register_module()
class StopOnNaNHook(Hook):
    """Stop at the first loss, or norm of gradients, that is not finite.

    A loss of NaN turns all weights into NaN, and the run goes on for days,
    replacing its good checkpoints. This hook looks after each step, before
    checkpoints are saved, and raises an error with the iteration and the
    images of the batch. Norms are looked at where gradients are clipped and
    no loss scaler is at work, which meets infinite ones by design.

    The numbers are those that are logged anyway.
    """

    priority = 'ABOVE_NORMAL'
    files: List[str] = []

    def before_train_iter(self,
                          runner,
                          batch_idx: int,
                          data_batch=None) -> None:
        """Keep the names of a batch, for errors of any kind in it."""
        self.files = image_files(data_batch)

    def after_train_iter(self,
                         runner,
                         batch_idx: int,
                         data_batch=None,
                         outputs=None) -> None:
        """Look at the losses.

        Args:
            runner (Runner): The runner of the training.
            batch_idx (int): Index of the batch in the epoch.
            data_batch (dict, optional): The batch.
            outputs (dict, optional): The losses by name.

        Raises:
            NonFiniteError: If one is not finite.
        """
        losses = {
            name: float(torch.as_tensor(value).detach())
            for name, value in (outputs or {}).items() if 'loss' in name
        }
        bad = {k: v for k, v in losses.items() if not math.isfinite(v)}
        if not bad:
            bad = self._bad_norm(runner)
        if bad:
            values = ', '.join(f'{k} {v}' for k, v in bad.items())
            files = ', '.join(self.files) or 'not told'
            raise NonFiniteError(
                f'iteration {runner.iter + 1}: {values}. Images of the '
                f'batch: {files}. The checkpoints in {runner.work_dir} are '
                'from before. Look at these images and their annotations; '
                'else lower the learning rate, clip gradients '
                '(optim_wrapper.clip_grad), or use bfloat16 in place of '
                'float16')

    def _bad_norm(self, runner) -> dict:
        """The norm of the last step's gradients, if it is not finite."""
        scales = hasattr(runner.optim_wrapper, 'loss_scaler')
        history = runner.message_hub.log_scalars.get('train/grad_norm')
        if scales or history is None or not len(history.data[0]):
            return {}
        norm = float(history.current())
        return {} if math.isfinite(norm) else {'norm of gradients': norm}


def tell_batch(runner) -> None:
    """Log which images a run was at when an error stopped it.

    Args:
        runner (Runner): A runner; one without ``StopOnNaNHook``, or one that
            did not train yet, has nothing to tell.
    """
    for hook in runner.hooks:
        if isinstance(hook, StopOnNaNHook) and hook.files:
            print_log(
                f'the error came in iteration {runner.iter + 1}, after these '
                f'images were loaded: {", ".join(hook.files)}',
                logger='current',
                level=logging.ERROR)
