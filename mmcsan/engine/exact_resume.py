"""Random numbers that depend on where a run is, not on how it got there."""
import random

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook

from mmcsan.registry import HOOKS

DATA, EPOCH, ITERATION = range(3)
"""What numbers are drawn for; each has streams of its own."""


def seed_for(seed: int, rank: int, purpose: int, index: int) -> None:
    """Start Python's, NumPy's and PyTorch's streams for one purpose.

    Args:
        seed (int): Seed of the run.
        rank (int): Rank of the process.
        purpose (int): ``DATA``, ``EPOCH`` or ``ITERATION``.
        index (int): Which batch, epoch or iteration.
    """
    # Neighbouring seeds give unlike streams once they are mixed.
    mixed = np.random.SeedSequence([seed, rank, purpose, index])
    state = int(mixed.generate_state(1)[0])
    random.seed(state)
    np.random.seed(state)
    torch.manual_seed(state)


class _SeededIterator:
    """The batches of an iteration-based loop, a stream for each."""

    def __init__(self, iterator, seed: int) -> None:
        self._iterator = iterator
        self._seed = seed
        self._index = 0

    def __iter__(self):
        return self

    def __next__(self):
        seed_for(self._seed, get_rank(), DATA, self._index)
        self._index += 1
        return next(self._iterator)

    def skip_iter(self, num_iters: int) -> None:
        """Go past batches that a resumed run has had."""
        self._index += num_iters
        self._iterator.skip_iter(num_iters)

    def __getattr__(self, name: str):
        return getattr(self._iterator, name)


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Make a resumed run draw what the run would have drawn without a stop.

    mmengine saves weights, optimizer, averages and schedules, but not where
    the random numbers were: dropout and drop path go another way after a
    resume. This hook starts the streams anew at each epoch, batch and
    iteration, from the seed of the run (which checkpoints hold), the rank and
    the index alone.

    What data-loading workers draw is theirs: with ``num_workers > 0`` an
    iteration-based run augments the batches after a resume in another way.
    Epoch-based runs that do not keep their workers, and runs without workers,
    are exact.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner) -> None:
        """Give each batch of an iteration-based loop a stream."""
        loop = runner.train_loop
        iterator = getattr(loop, 'dataloader_iterator', None)
        if iterator is not None:
            loop.dataloader_iterator = _SeededIterator(iterator, runner.seed)

    def before_train_epoch(self, runner) -> None:
        """Start the streams of an epoch, and of its first batch."""
        seed_for(runner.seed, get_rank(), EPOCH, runner.epoch)

    def before_train_iter(self,
                          runner,
                          batch_idx: int,
                          data_batch=None) -> None:
        """Start the streams of an iteration, and of the batch after it."""
        seed_for(runner.seed, get_rank(), ITERATION, runner.iter)
