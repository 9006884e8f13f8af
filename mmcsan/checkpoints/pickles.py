"""Unpickle checkpoints with torch, executing nothing that is in them."""
import codecs
import pickle
import sys
import zipfile
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NoReturn, Type

import numpy as np
import torch
from mmengine.logging.history_buffer import HistoryBuffer

from .errors import CheckpointError

little_endian = sys.byteorder == 'little'

_BUILTINS = ('bool', 'bytearray', 'bytes', 'complex', 'dict', 'float',
             'frozenset', 'int', 'list', 'range', 'set', 'slice', 'str',
             'tuple')
_REAL = {
    ('collections', 'Counter'),
    ('collections', 'OrderedDict'),
    ('collections', 'defaultdict'),
    ('collections', 'deque'),
    ('torch', 'Size'),
    ('torch', 'device'),
    ('torch._utils', '_rebuild_tensor'),
    ('torch._utils', '_rebuild_tensor_v2'),
    ('torch._utils', '_rebuild_parameter'),
    ('torch.nn.parameter', 'Parameter'),
    ('torch.serialization', '_get_layout'),
} | {(module, name)
     for name in _BUILTINS for module in ('builtins', '__builtin__')}
"""What a pickle may really call: builders of tensors and containers."""

_INERT = ('_codecs', 'addict', 'argparse', 'datetime', 'decimal', 'easydict',
          'fvcore', 'mmcls', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain',
          'mmseg', 'numpy', 'omegaconf', 'pathlib', 'timm', 'yacs', 'yaml')
"""Packages whose objects are bookkeeping; stand-ins take their place."""

_INERT_NAMES = {('torch.torch_version', 'TorchVersion'),
                ('builtins', 'getattr'), ('__builtin__', 'getattr')}
"""The same, single objects. Bound methods are pickled as getattr calls."""


class _Stub:
    """Stands for an object of a package that is not to be run."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __setitem__(self, key, value) -> None:
        pass

    def append(self, value) -> None:
        """Take an item of a stubbed list, and forget it."""

    def extend(self, values) -> None:
        """Take items of a stubbed list, and forget them."""

    def add(self, value) -> None:
        """Take an item of a stubbed set, and forget it."""


def _is_stub(thing) -> bool:
    return thing is _Stub or isinstance(thing, _Stub)


def _refuse(what: str) -> NoReturn:
    raise CheckpointError(f'it would {what}, which is no weight; nothing was '
                          'run or loaded')


# The unpickler written in Python: the steps that could do more than build
# data are replaced below. Tensors are stored beside the pickle, so that its
# slowness does not matter.
class DataUnpickler(pickle._Unpickler):
    """Builds tensors and containers, replaces bookkeeping, refuses the rest.
    """

    dispatch = dict(pickle._Unpickler.dispatch)
    objects = {}

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._callable = []

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
        if (module, name) in self.objects:
            return self._allow(self.objects[module, name])
        if (module, name) in _REAL:
            return self._allow(super().find_class(module, name))
        is_dtype = module == 'torch' and isinstance(
            getattr(torch, name, None), torch.dtype)
        is_storage = module in ('torch', 'torch.storage') and name.endswith(
            'Storage')
        if is_dtype or is_storage:
            # Names of what is stored beside the pickle; never called here.
            return super().find_class(module, name)
        if module.split('.')[0] in _INERT or (module, name) in _INERT_NAMES:
            return _Stub
        return _refuse(f'run {module}.{name}')

    def _allow(self, thing):
        self._callable.append(thing)
        return thing

    def _call(self, function, args: tuple, make=None):
        """Call what may be called; a stand-in gives a stand-in."""
        if _is_stub(function):
            return _Stub()
        if not any(function is allowed for allowed in self._callable):
            _refuse(f'call {function!r}')
        return make(function, *args) if make else function(*args)

    def load_reduce(self) -> None:
        """Call a function with arguments."""
        args = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args)

    dispatch[pickle.REDUCE[0]] = load_reduce

    def load_newobj(self) -> None:
        """Make an object of a class."""
        args = self.stack.pop()
        cls = self.stack.pop()
        self.append(
            self._call(cls, args, lambda c, *a: c.__new__(c, *a)))

    dispatch[pickle.NEWOBJ[0]] = load_newobj

    def load_newobj_ex(self) -> None:
        """Make an object with keyword arguments: stand-ins alone need it."""
        self.stack.pop()
        self.stack.pop()
        cls = self.stack.pop()
        if not _is_stub(cls):
            _refuse(f'call {cls!r} with keywords')
        self.append(_Stub())

    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex

    def _instantiate(self, cls, args) -> None:
        """Make an object the way old protocols ask for."""
        self.append(self._call(cls, tuple(args)))

    def load_build(self) -> None:
        """Give an object its state."""
        state = self.stack.pop()
        self._set_state(self.stack[-1], state)

    dispatch[pickle.BUILD[0]] = load_build

    def _set_state(self, thing, state) -> None:
        if _is_stub(thing):
            return
        if type(thing) is OrderedDict and isinstance(state, dict):
            # Versions of modules beside their weights.
            if set(state) <= {'_metadata'}:
                thing.__dict__.update(state)
                return
        _refuse(f'change {thing!r:.80}')


def _history_method(owner, name):
    """``getattr`` of checkpoints: a method of mmengine's log, nothing else."""
    if owner is HistoryBuffer and name in ('min', 'max', 'current', 'mean'):
        return getattr(HistoryBuffer, name)
    return _refuse(f'read {name!r} of {owner!r}')


def _dtype(name: str, *args) -> np.dtype:
    """The dtype of plain numbers and texts; never one of objects."""
    dtype = np.dtype(name) if isinstance(name, str) else None
    if dtype is None or dtype.kind not in 'biufcSU':
        _refuse(f'build numpy data of type {name!r}')
    return dtype


def _array(*args) -> np.ndarray:
    """An array that is filled when its state is given."""
    return np.zeros(0)


def _scalar(dtype: np.dtype, data: bytes) -> np.generic:
    """A number of numpy."""
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes):
        _refuse('build numpy data of something else')
    return np.frombuffer(data, dtype)[0]


def _run_objects() -> dict:
    """The objects in checkpoints of a run that are more than weights."""
    objects = {
        ('__builtin__', 'getattr'): _history_method,
        ('builtins', 'getattr'): _history_method,
        ('mmengine.logging.history_buffer', 'HistoryBuffer'): HistoryBuffer,
        ('numpy', 'ndarray'): np.ndarray,
        ('numpy', 'dtype'): _dtype,
        ('_codecs', 'encode'): codecs.encode,
    }
    # numpy 2 renamed the module; files of either version are read by either.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        objects[module, '_reconstruct'] = _array
        objects[module, 'scalar'] = _scalar
    return objects


class RunUnpickler(DataUnpickler):
    """Reads what a run saved to go on from: weights, logs and numbers."""

    objects = _run_objects()

    def _call(self, function, args: tuple, make=None):
        if function is np.ndarray:
            _refuse('build a numpy array over foreign memory')
        return super()._call(function, args, make)

    def _set_state(self, thing, state) -> None:
        if type(thing) is HistoryBuffer and isinstance(state, dict):
            thing.__dict__.update(state)
        elif isinstance(thing, np.dtype):
            # Of the byte order of this machine, as dtypes are built here.
            if state[1] not in ('|', '=', '<' if little_endian else '>'):
                _refuse('read numbers of another byte order')
        elif type(thing) is np.ndarray:
            _, shape, dtype, fortran, data = state
            if not isinstance(dtype, np.dtype) or not isinstance(data, bytes):
                _refuse('fill an array with something else than numbers')
            filled = np.frombuffer(data, dtype).copy().reshape(
                shape, order='F' if fortran else 'C')
            thing.__setstate__(filled.__reduce__()[2])
        else:
            super()._set_state(thing, state)


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
