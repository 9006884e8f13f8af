"""Unpickle checkpoints with torch, executing nothing that is in them."""
import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn, Optional, Type

import numpy as np
import torch
from mmengine.logging.history_buffer import HistoryBuffer

from .errors import CheckpointError

little_endian = sys.byteorder == 'little'

_BUILTINS = ('bool', 'bytearray', 'bytes', 'complex', 'dict', 'float',
             'frozenset', 'int', 'list', 'set', 'slice', 'str', 'tuple')
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
                ('builtins', 'getattr'), ('__builtin__', 'getattr'),
                ('builtins', 'range'), ('__builtin__', 'xrange')}
"""The same, single objects. Bound methods are pickled as getattr calls."""


class _Stub:
    """Stands for an object of a package that is not to be run."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __setitem__(self, key, value) -> None:
        pass

    def __iter__(self):
        return iter(())

    def append(self, value) -> None:
        """Take an item of a stubbed list, and forget it."""

    def extend(self, values) -> None:
        """Take items of a stubbed list, and forget them."""

    def add(self, value) -> None:
        """Take an item of a stubbed set, and forget it."""


def _is_stub(thing) -> bool:
    return thing is _Stub or isinstance(thing, _Stub)


def _describe(thing) -> str:
    """What something is; never its content, which may be without end."""
    if isinstance(thing, type) or callable(thing):
        return getattr(thing, '__qualname__', type(thing).__name__)
    return f'a {type(thing).__name__}'


def _makes_room(function, args: tuple) -> bool:
    """Whether a call asks for memory that no data of the file fills."""
    return function in (bytes, bytearray) and any(
        isinstance(arg, int) for arg in args)


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
            _refuse(f'call {_describe(function)}')
        if _makes_room(function, args):
            _refuse('ask for empty memory')
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
            _refuse(f'call {_describe(cls)} with keywords')
        self.append(_Stub())

    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex

    def _instantiate(self, cls, args) -> None:
        """Make an object the way old protocols ask for."""
        self.append(self._call(cls, tuple(args)))

    def load_bytearray8(self) -> None:
        """Read bytes; first of all whether they are there."""
        size = int.from_bytes(self.read(8), 'little')
        data = self.read(size)
        if len(data) < size:
            _refuse('ask for empty memory')
        self.append(bytearray(data))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

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
        _refuse(f'change {_describe(thing)}')


def _history_method(owner, name):
    """``getattr`` of checkpoints: a method of mmengine's log, nothing else."""
    if owner is HistoryBuffer and name in ('min', 'max', 'current', 'mean'):
        return getattr(HistoryBuffer, name)
    return _refuse(f'read an attribute of {_describe(owner)}')


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


def _encode(text: str, encoding: str = '') -> bytes:
    """Bytes, which old protocols hold as text."""
    if not isinstance(text, str) or encoding not in ('latin1', 'latin-1'):
        _refuse('encode something else than bytes')
    return text.encode('latin1')


_HISTORY = {'_log_history', '_count_history', '_statistics_methods',
            'statistics_methods', 'max_length', '_max_length'}


def _run_objects() -> dict:
    """The objects in checkpoints of a run that are more than weights."""
    objects = {
        ('__builtin__', 'getattr'): _history_method,
        ('builtins', 'getattr'): _history_method,
        ('mmengine.logging.history_buffer', 'HistoryBuffer'): HistoryBuffer,
        ('numpy', 'ndarray'): np.ndarray,
        ('numpy', 'dtype'): _dtype,
        ('_codecs', 'encode'): _encode,
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
            if not set(state) <= _HISTORY:
                _refuse('change the log of a run')
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


class _Unnamed(io.BufferedIOBase):
    """A file without a descriptor: torch unpacks what has one as a tar."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: Optional[int] = -1) -> bytes:
        """See :meth:`io.BufferedIOBase.read`."""
        return self._file.read(size)

    def readinto(self, buffer) -> int:
        """See :meth:`io.BufferedIOBase.readinto`."""
        return self._file.readinto(buffer)

    def readline(self, size: Optional[int] = -1) -> bytes:
        """See :meth:`io.IOBase.readline`."""
        return self._file.readline(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """See :meth:`io.IOBase.seek`."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """See :meth:`io.IOBase.tell`."""
        return self._file.tell()


def _check_archive(file: BinaryIO) -> None:
    """Refuse zip archives that are programs or unpack to far more.

    Raises:
        CheckpointError: If torch.load would hand it to TorchScript, which
            runs it, or if its content is compressed: torch writes it plain.
    """
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename.endswith('/constants.pkl'):
                raise CheckpointError('it is a TorchScript program')
            if info.file_size > max(10 * info.compress_size, 1 << 24):
                raise CheckpointError(
                    f'{info.filename} in it unpacks to {info.file_size} '
                    f'bytes from {info.compress_size}, which no weights do')


def _check_legacy(file: BinaryIO) -> None:
    """Refuse files of torch before 1.6 that would be read wrongly.

    Raises:
        CheckpointError: If it is a tar archive, or its numbers have the other
            byte order.
    """
    head = file.read(512)
    file.seek(0)
    if head[257:262] == b'ustar':
        raise CheckpointError(
            'it is a tar archive, as torch before 0.1.10 wrote; save it anew '
            'with a torch of its time')
    if not head.startswith(b'\x80'):
        return
    # A magic number, the version, and what machine wrote it.
    facts = [DataUnpickler(file).load() for _ in range(3)]
    file.seek(0)
    order = facts[2].get('little_endian') if isinstance(facts[2],
                                                        dict) else None
    if order is not None and order != little_endian:
        raise CheckpointError(
            'its numbers have the byte order of another kind of machine; '
            'save it anew, there, with torch 1.6 or later')


def load_torch(file: BinaryIO,
               name: str,
               unpickler: Type[DataUnpickler] = DataUnpickler,
               map_location: Any = 'cpu'):
    """``torch.load`` that builds data and runs nothing.

    Args:
        file (BinaryIO): Open for reading, at its start.
        name (str): What to call it in errors.
        unpickler (type): What may be built beside tensors and containers.
        map_location: See ``torch.load``. Defaults to ``'cpu'``.

    Returns:
        object: What the file holds.

    Raises:
        CheckpointError: If it is damaged, no checkpoint, or would run code.
    """
    try:
        # By what torch goes by: others may be archives behind their start.
        zipped = file.read(4) == b'PK\x03\x04'
        file.seek(0)
        if zipped:
            _check_archive(file)
        else:
            _check_legacy(file)
            file = _Unnamed(file)
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
            f'or of another kind ({type(e).__name__}: {str(e)[:300]})') from e


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
