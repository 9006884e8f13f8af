"""Unpickle checkpoints with torch, executing nothing that is in them."""
import codecs
import pickle
import zipfile
from types import SimpleNamespace
from typing import Any, Type

import numpy as np
import torch
from mmengine.logging.history_buffer import HistoryBuffer

from .errors import CheckpointError

_BUILTINS = ('bool', 'bytearray', 'bytes', 'complex', 'dict', 'float',
             'frozenset', 'int', 'list', 'range', 'set', 'slice', 'str',
             'tuple')
_REAL = {
    ('collections', 'Counter'),
    ('collections', 'OrderedDict'),
    ('collections', 'defaultdict'),
    ('torch', 'Size'),
    ('torch', 'device'),
    ('torch._tensor', '_rebuild_from_type_v2'),
    ('torch._utils', '_rebuild_tensor'),
    ('torch._utils', '_rebuild_tensor_v2'),
    ('torch._utils', '_rebuild_parameter'),
    ('torch.nn.parameter', 'Parameter'),
    ('torch.serialization', '_get_layout'),
} | {(module, name)
     for name in _BUILTINS for module in ('builtins', '__builtin__')}
"""What a pickle may really call: builders of tensors and containers."""

_INERT = ('_codecs', 'addict', 'argparse', 'datetime', 'easydict', 'fvcore',
          'mmcls', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg', 'numpy',
          'omegaconf', 'pathlib', 'timm', 'yacs', 'yaml')
"""Packages whose objects are bookkeeping; stand-ins take their place."""


class _Stub:
    """Stands for an object of a package that is not to be run."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __call__(self, *args, **kwargs) -> '_Stub':
        return _Stub()

    def __setstate__(self, state) -> None:
        pass

    def __setitem__(self, key, value) -> None:
        pass

    def append(self, value) -> None:
        """Take an item of a stubbed list, and forget it."""

    def extend(self, values) -> None:
        """Take items of a stubbed list, and forget them."""

    def add(self, value) -> None:
        """Take an item of a stubbed set, and forget it."""


class DataUnpickler(pickle.Unpickler):
    """Builds tensors and containers, replaces bookkeeping, refuses the rest.
    """

    def find_class(self, module: str, name: str):
        """What a file's name for an object stands for.

        Args:
            module (str): Module in the file.
            name (str): Name in it.

        Returns:
            object: The object, or a stand-in.

        Raises:
            CheckpointError: If calling it might do more than build data.
        """
        if (module, name) in _REAL:
            return super().find_class(module, name)
        is_dtype = module == 'torch' and isinstance(
            getattr(torch, name, None), torch.dtype)
        is_storage = module in ('torch', 'torch.storage') and name.endswith(
            'Storage')
        if is_dtype or is_storage:
            return super().find_class(module, name)
        # Bound methods inside bookkeeping are pickled as getattr calls.
        if module.split('.')[0] in _INERT or name == 'getattr':
            return _Stub
        raise CheckpointError(
            f'it would run {module}.{name}, which is no weight; nothing was '
            'run or loaded')


def _history_method(owner, name):
    """``getattr`` of checkpoints: a method of mmengine's log, nothing else."""
    if owner is HistoryBuffer and name in ('min', 'max', 'current', 'mean'):
        return getattr(HistoryBuffer, name)
    raise CheckpointError(f'it would read {name!r} of {owner!r}')


def _run_objects() -> dict:
    """The objects in checkpoints of a run that are more than weights."""
    objects = {
        ('__builtin__', 'getattr'): _history_method,
        ('builtins', 'getattr'): _history_method,
        ('mmengine.logging.history_buffer', 'HistoryBuffer'): HistoryBuffer,
        ('numpy', 'ndarray'): np.ndarray,
        ('numpy', 'dtype'): np.dtype,
        ('_codecs', 'encode'): codecs.encode,
    }
    # numpy 2 renamed the module; files of either version are read by either.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        objects[module, '_reconstruct'] = np.zeros(1).__reduce__()[0]
        objects[module, 'scalar'] = np.float64(0).__reduce__()[0]
    return objects


class RunUnpickler(DataUnpickler):
    """Reads what a run saved to go on from: weights, logs and numbers."""

    objects = _run_objects()

    def find_class(self, module: str, name: str):
        """See :meth:`DataUnpickler.find_class`."""
        if (module, name) in self.objects:
            return self.objects[module, name]
        return super().find_class(module, name)


def _is_program(file) -> bool:
    """Whether torch.load would hand a file to TorchScript, which runs it."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(n.endswith('/constants.pkl') for n in archive.namelist())


def load_torch(file,
               name: str,
               unpickler: Type[DataUnpickler] = DataUnpickler,
               map_location: Any = 'cpu'):
    """``torch.load`` that builds data and runs nothing.

    Args:
        file (file): Open for reading in binary mode, at its start.
        name (str): What to call it in errors.
        unpickler (type): What may be built beside tensors and containers.
        map_location: See ``torch.load``. Defaults to ``'cpu'``.

    Returns:
        object: What the file holds.

    Raises:
        CheckpointError: If it is damaged, no checkpoint, or would run code.
    """
    try:
        if _is_program(file):
            raise CheckpointError('it is a TorchScript program')
        file.seek(0)
        try:
            return torch.load(
                file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError:
            # Bookkeeping beside the weights, or something worse.
            return _load_foreign(file, unpickler, map_location)
    except CheckpointError as e:
        raise CheckpointError(f'{name} is refused: {e}') from e
    except Exception as e:
        raise CheckpointError(
            f'{name} cannot be read as a checkpoint, it is damaged, cut off '
            f'or of another kind ({type(e).__name__}: {e})') from e


def _load_foreign(file, unpickler: Type[DataUnpickler], map_location):
    file.seek(0)
    # torch unpickles with this in place of the pickle module.
    module = SimpleNamespace(
        Unpickler=unpickler,
        load=lambda f, **kwargs: unpickler(f, **kwargs).load(),
        __name__=__name__)
    return torch.load(
        file,
        map_location=map_location,
        pickle_module=module,
        weights_only=False)
