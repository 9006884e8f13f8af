"""Read checkpoint files as data: nothing in one is executed."""
import io
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Dict, List, Union

import torch
from mmengine.fileio import get as fetch
from torch import Tensor

from .errors import CheckpointError

SEARCH_VARIABLE = 'MMCSAN_CHECKPOINTS'
"""Environment variable that names a directory to look in."""

WRAPPERS = ('state_dict', 'model', 'model_state', 'module', 'net')
"""Entries that hold the weights in files of various frameworks."""

EMA_WRAPPERS = ('state_dict_ema', 'model_ema', 'ema_state_dict')
"""Entries that hold averaged weights; read on request only."""

_BUILTINS = ('bool', 'bytearray', 'bytes', 'complex', 'dict', 'float',
             'frozenset', 'int', 'list', 'range', 'set', 'slice', 'str',
             'tuple')
_REAL = {
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

_INERT = ('_codecs', 'argparse', 'addict', 'datetime', 'easydict', 'fvcore', 'mmcls',
          'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg', 'numpy',
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


class _DataUnpickler(pickle.Unpickler):
    """Builds tensors and containers, replaces bookkeeping, refuses the rest.
    """

    def find_class(self, module: str, name: str):
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


def _unpickle(file, **kwargs):
    return _DataUnpickler(file, **kwargs).load()


_PICKLE = SimpleNamespace(
    Unpickler=_DataUnpickler,
    load=_unpickle,
    loads=lambda data, **kwargs: _unpickle(io.BytesIO(data), **kwargs),
    __name__='mmcsan.checkpoints.reader')
"""What torch takes for the pickle module."""


def find_checkpoint(path: Union[str, Path]) -> Path:
    """Find a file where it is named, or in ``$MMCSAN_CHECKPOINTS``.

    Args:
        path (str | Path): Path or name of a file.

    Returns:
        Path: The file.

    Raises:
        CheckpointError: If there is none; says where it was looked for.
    """
    places: List[Path] = [Path(path).expanduser()]
    directory = os.environ.get(SEARCH_VARIABLE)
    if directory and not places[0].is_absolute():
        places.append(Path(directory).expanduser() / path)
    for place in places:
        if place.is_file():
            return place
    looked = ', '.join(str(place.absolute()) for place in places)
    hint = '' if directory else (f'; set {SEARCH_VARIABLE} to look in a '
                                 'directory of your own, too')
    kind = 'is a directory' if places[0].is_dir() else 'does not exist'
    raise CheckpointError(f'checkpoint {path} {kind}. Looked for a file at '
                          f'{looked}{hint}')


def read_checkpoint(source: Union[str, Path]) -> dict:
    """Read a file of any supported kind into a dict, on the CPU.

    Args:
        source (str | Path): A ``.pth``-like or ``.safetensors`` file, or an
            ``http(s)`` URL of one.

    Returns:
        dict: What the file holds; objects that are no data are stand-ins.

    Raises:
        CheckpointError: If the file is missing, empty, damaged, something
            else, or would run code.
    """
    if str(source).startswith(('http://', 'https://')):
        data = io.BytesIO(fetch(str(source)))
        return _read(data, str(source))
    path = find_checkpoint(source)
    with open(path, 'rb') as file:
        return _read(file, str(path))


def _read(file, name: str) -> dict:
    head = file.read(512)
    file.seek(0)
    if not head:
        raise CheckpointError(f'{name} is empty: copy or download it again')
    if head.lstrip()[:1] == b'<':
        raise CheckpointError(
            f'{name} is a web page, not a checkpoint: the download was '
            'answered with HTML. Download the file itself')
    if name.split('?')[0].endswith('.safetensors'):
        from safetensors import SafetensorError
        from safetensors.torch import load
        try:
            return load(file.read())
        except SafetensorError as e:
            raise CheckpointError(f'{name} is damaged: {e}') from e
    return _read_torch(file, name)


def _read_torch(file, name: str) -> dict:
    try:
        content = torch.load(file, map_location='cpu', weights_only=True)
    except pickle.UnpicklingError:
        # Bookkeeping objects inside, or something worse: read it ourselves.
        content = _read_foreign(file, name)
    except Exception as e:
        raise CheckpointError(
            f'{name} cannot be read as a checkpoint, it is damaged, cut off '
            f'or of another kind ({type(e).__name__}: {e})') from e
    if not isinstance(content, dict):
        raise CheckpointError(f'{name} holds a {type(content).__name__}, '
                              'a dict of tensors expected')
    return content


def _read_foreign(file, name: str):
    file.seek(0)
    try:
        # The pickle module given here builds data only, see _DataUnpickler.
        return torch.load(
            file,
            map_location='cpu',
            pickle_module=_PICKLE,
            weights_only=False)
    except CheckpointError as e:
        raise CheckpointError(f'{name} is refused: {e}') from e
    except Exception as e:
        raise CheckpointError(
            f'{name} cannot be read as a checkpoint, it is damaged, cut off '
            f'or of another kind ({type(e).__name__}: {e})') from e


def unwrap(content: dict, ema: bool = False) -> Dict[str, Tensor]:
    """Take the tensors out of what a file holds.

    Args:
        content (dict): Output of :func:`read_checkpoint`, or a state dict.
        ema (bool): Whether to take the averaged weights. Defaults to False.

    Returns:
        dict[str, Tensor]: The weights, under the names they have there.

    Raises:
        CheckpointError: If there are no tensors, or no averaged ones.
    """
    if ema:
        held = [key for key in EMA_WRAPPERS if key in content]
        if not held:
            raise CheckpointError('averaged (EMA) weights were asked for, but '
                                  f'there is none of {EMA_WRAPPERS} in it')
        content = content[held[0]]
    for key in WRAPPERS:
        if isinstance(content.get(key), dict):
            return unwrap(content[key])
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        raise CheckpointError('there are no tensors in it; it holds '
                              f'{", ".join(map(repr, list(content)[:8]))}')
    return tensors


def read_state_dict(source: Union[str, Path, dict],
                    ema: bool = False) -> Dict[str, Tensor]:
    """Read the weights of a file or a dict, whatever wraps them.

    Args:
        source (str | Path | dict): A file, a URL, or what one holds.
        ema (bool): Whether to take the averaged weights. Defaults to False.

    Returns:
        dict[str, Tensor]: The weights under the names they have there.

    Raises:
        CheckpointError: See :func:`read_checkpoint` and :func:`unwrap`.
    """
    if isinstance(source, dict):
        return unwrap(source, ema)
    content = read_checkpoint(source)
    try:
        return unwrap(content, ema)
    except CheckpointError as e:
        raise CheckpointError(f'{source}: {e}') from e
