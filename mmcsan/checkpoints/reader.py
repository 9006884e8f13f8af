"""Read checkpoint files as data: nothing in one is executed."""
import io
import json
import re
from pathlib import Path
from typing import BinaryIO, Callable, Dict, List, Optional, Tuple, Union
from urllib.parse import unquote, urljoin, urlsplit

import mmengine.runner.checkpoint as hub
import torch
from mmengine.fileio import get as fetch
from mmengine.fileio.backends import prefix_to_backends
from torch import Tensor

from .download import SEARCH_VARIABLE, _is_page, download, search_directory
from .errors import CheckpointError
from .pickles import load_torch

WRAPPERS = ('state_dict', 'model', 'model_state', 'model_state_dict',
            'module', 'net', 'backbone')
"""Entries that hold the weights in files of various frameworks."""

EMA_WRAPPERS = ('state_dict_ema', 'model_ema')
"""Entries that hold averaged weights; read on request only."""

SWAPPED_EMA = 'ema_state_dict'
"""mmengine's: it holds the raw weights, and ``state_dict`` the average."""

_CATALOGUES = {
    'torchvision': 'get_torchvision_models',
    'modelzoo': 'get_torchvision_models',
    'openmmlab': 'get_external_models',
    'open-mmlab': 'get_external_models',
    'mmcls': 'get_mmcls_models',
}
"""Schemes whose names mmengine translates to addresses, and with what."""

_SCHEME = re.compile(r'([A-Za-z][\w+.:-]*)://')
_MAX_DEPTH = 8


def scheme_of(source: Union[str, Path]) -> str:
    """The scheme of an address, such as ``'https'``; '' of a path."""
    match = _SCHEME.match(str(source))
    # cluster:s3://bucket/key
    return match[1].lower().split(':')[-1] if match else ''


def is_url(source: Union[str, Path]) -> bool:
    """Whether a source is an address, not the path of a file."""
    return scheme_of(source) not in ('', 'file')


def _supported() -> str:
    schemes = {'http', 'https', 'file', *_CATALOGUES, *prefix_to_backends}
    return (f'a file, a name within ${SEARCH_VARIABLE}, or an address of '
            f'{", ".join(f"{s}://" for s in sorted(schemes) if s)}')


def find_checkpoint(path: Union[str, Path]) -> Path:
    """Find a file where it is named, or in ``$MMCSAN_CHECKPOINTS``.

    Args:
        path (str | Path): Path or name of a file.

    Returns:
        Path: The file.

    Raises:
        CheckpointError: If there is none; says where it was looked for.
    """
    if scheme_of(path) == 'file':
        path = unquote(urlsplit(str(path)).path)
    places: List[Path] = [Path(path).expanduser()]
    directory = search_directory()
    if directory and not places[0].is_absolute():
        places.append(directory / path)
    for place in places:
        if place.is_file():
            return place
    looked = ', '.join(str(place.absolute()) for place in places)
    hint = '' if directory else (f'; set {SEARCH_VARIABLE} to look in a '
                                 'directory of your own, too')
    kind = 'is a directory' if places[0].is_dir() else 'does not exist'
    raise CheckpointError(f'checkpoint {path} {kind}. Looked for a file at '
                          f'{looked}{hint}. A checkpoint is {_supported()}')


def _translate(address: str) -> str:
    """The http address of a name such as ``torchvision://swin_t``."""
    scheme = scheme_of(address)
    name = address.split('://', 1)[1]
    try:
        models = getattr(hub, _CATALOGUES[scheme])()
        found = models.get(name)
    except Exception as e:
        raise CheckpointError(f'{address} cannot be looked up in '
                              f"mmengine's list ({type(e).__name__}: {e})"
                              ) from e
    if found is None or scheme_of(found) not in ('http', 'https'):
        raise CheckpointError(f"{address}: mmengine's list has no address "
                              'of that name')
    return found


def open_source(source: Union[str, Path]) -> BinaryIO:
    """Open a file, or what an address leads to, for reading.

    Args:
        source (str | Path): See :func:`read_checkpoint`.

    Returns:
        BinaryIO: The open file.

    Raises:
        CheckpointError: If there is none, or no way to get it.
    """
    scheme = scheme_of(source)
    if scheme in _CATALOGUES:
        source = _translate(str(source))
        scheme = 'http'
    if scheme in ('http', 'https'):
        return open(download(str(source)), 'rb')
    if scheme in ('', 'file'):
        return open(find_checkpoint(source), 'rb')
    if scheme not in prefix_to_backends:
        raise CheckpointError(f'{source}: there is no way to read '
                              f'{scheme}://. A checkpoint is {_supported()}')
    try:
        return io.BytesIO(fetch(str(source)))
    except Exception as e:
        raise CheckpointError(
            f'{source} cannot be read ({type(e).__name__}: {e}). Bring the '
            f'file, and name it instead') from e


def read_checkpoint(source: Union[str, Path]) -> dict:
    """Read a file of any supported kind into a dict, on the CPU.

    Args:
        source (str | Path): A ``.pth``-like or ``.safetensors`` file, an
            ``http(s)`` URL of one, an address that mmengine knows a backend
            for, or the ``.index.json`` of a sharded one.

    Returns:
        dict: What the file holds; objects that are no data are stand-ins.

    Raises:
        CheckpointError: If the file is missing, empty, damaged, something
            else, or would run code.
    """
    with open_source(source) as file:
        if _without_query(source).endswith('.index.json'):
            return _read_shards(file, source)
        return _read(file, str(source))


def _without_query(source: Union[str, Path]) -> str:
    return str(source).split('?')[0] if is_url(source) else str(source)


def _read_shards(file: BinaryIO, index: Union[str, Path]) -> dict:
    """Read the files that an index of a sharded checkpoint names."""
    try:
        weight_map = json.loads(file.read().decode('utf-8'))['weight_map']
        shards = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as e:
        raise CheckpointError(f'{index} is no index of a sharded checkpoint: '
                              f'it lacks a weight_map of file names ({e})'
                              ) from e
    locate = _shard_locator(index)
    content = {}
    for shard in shards:
        if not isinstance(shard, str) or shard.endswith('.json') or (
                re.search(r'[/\\]|^\.*$', shard)):
            raise CheckpointError(f'{index} names {shard!r}, which is no file '
                                  'of its directory')
        part = unwrap(read_checkpoint(locate(shard)))
        twice = sorted(set(part) & set(content))
        if twice:
            raise CheckpointError(f'{index}: {twice[0]} is in {shard} and in '
                                  'another file as well')
        content.update(part)
    lacking = sorted(set(weight_map) - set(content))
    if lacking:
        raise CheckpointError(
            f'{index} promises {len(lacking)} keys that its files do not '
            f'hold, such as {", ".join(lacking[:3])}')
    return content


def _shard_locator(index: Union[str, Path]) -> Callable[[str], Union[str,
                                                                     Path]]:
    if is_url(index):
        return lambda shard: urljoin(_without_query(index), shard)
    directory = find_checkpoint(index).parent
    return lambda shard: directory / shard


def _read(file: BinaryIO, name: str) -> dict:
    head = file.read(512)
    file.seek(0)
    _check_head(head, name)
    if _is_safetensors(head, name):
        return _read_safetensors(file, name)
    content = load_torch(file, name)
    if not isinstance(content, dict):
        raise CheckpointError(f'{name} holds a {type(content).__name__}, '
                              'a dict of tensors expected')
    return content


def _check_head(head: bytes, name: str) -> None:
    """Refuse what the first bytes tell to be something else."""
    if not head:
        raise CheckpointError(f'{name} is empty: copy or download it again')
    if _is_page(head):
        raise CheckpointError(
            f'{name} is a web page, not a checkpoint: the download was '
            'answered with HTML. Download the file itself')
    if head.startswith(b'version https://git-lfs'):
        raise CheckpointError(
            f"{name} is a pointer of Git LFS, not the file: 'git lfs pull' "
            'gets that')
    if not re.search(rb'[^\t\n\r\x20-\x7e]', head) and not name.endswith(
            '.safetensors'):
        raise CheckpointError(
            f'{name} is damaged or no checkpoint: it is text that starts '
            f'with {head[:60].decode()!r}')


def _is_safetensors(head: bytes, name: str) -> bool:
    """By the name, or by a header's length with the header behind it."""
    length = int.from_bytes(head[:8], 'little')
    return _without_query(name).endswith('.safetensors') or (
        head[8:9] == b'{' and 2 <= length < 1 << 32)


def _read_safetensors(file: BinaryIO, name: str) -> dict:
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file
    path = getattr(file, 'name', None)
    try:
        if isinstance(path, (str, Path)):
            return load_file(path)
        return load(file.read())
    except (SafetensorError, ValueError, KeyError, TypeError) as e:
        raise CheckpointError(f'{name} is damaged: {e}') from e


def unwrap(content: dict,
           ema: bool = False,
           prefix: Optional[str] = None) -> Dict[str, Tensor]:
    """Take the tensors out of what a file holds.

    Args:
        content (dict): Output of :func:`read_checkpoint`, or a state dict.
        ema (bool): Whether to take the averaged weights. Defaults to False.
        prefix (str, optional): Name of the entry that is meant, if there is
            one of that name, such as ``'teacher'``. Defaults to None.

    Returns:
        dict[str, Tensor]: The weights, under the names they have there.

    Raises:
        CheckpointError: If there are no tensors, or no averaged ones.
    """
    return _unwrap(content, ema, prefix)[0]


def _unwrap(content: dict, ema: bool,
            prefix: Optional[str]) -> Tuple[dict, bool]:
    """The same, and whether ``prefix`` was an entry."""
    entry = (prefix or '').strip('.')
    named = False
    for _ in range(_MAX_DEPTH):
        if entry and not named and isinstance(content.get(entry), dict):
            content, named = content[entry], True
            continue
        if ema:
            content, ema = _averaged(content), False
        held = [k for k in WRAPPERS if isinstance(content.get(k), dict)]
        if not held:
            break
        content = content[held[0]]
    tensors = {
        key: value
        for key, value in content.items()
        if isinstance(value, Tensor) and isinstance(key, str)
    }
    if not tensors:
        raise CheckpointError('there are no tensors in it; it holds '
                              f'{", ".join(map(_short, list(content)[:8]))}. '
                              'If the weights are in one of these, name it '
                              "as 'prefix'")
    for key, value in tensors.items():
        _check_tensor(key, value)
    return tensors, named


def _short(key) -> str:
    return repr(key)[:60] if isinstance(key, (str, int)) else (
        f'a {type(key).__name__}')


def _averaged(content: dict) -> dict:
    held = [k for k in EMA_WRAPPERS if isinstance(content.get(k), dict)]
    if held:
        return content[held[0]]
    if not isinstance(content.get(SWAPPED_EMA), dict):
        raise CheckpointError(
            'averaged (EMA) weights were asked for, but there is none of '
            f'{EMA_WRAPPERS + (SWAPPED_EMA, )} in it')
    return content


def _check_tensor(key: str, value: Tensor) -> None:
    """Refuse tensors that are no plain array of numbers."""
    if value.is_meta or value.is_quantized or value.layout != torch.strided:
        kind = 'without content' if value.is_meta else (
            'quantized' if value.is_quantized else f'{value.layout}')
        raise CheckpointError(f'{key} is a tensor {kind}, and no plain '
                              'array of numbers')
    held = value.untyped_storage().nbytes()
    if value.numel() * value.element_size() > held:
        raise CheckpointError(
            f'{key} of shape {tuple(value.shape)} is a view that repeats '
            f'{held} bytes, which no weight is')


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
    return read_weights(source, ema, None)[0]


def read_weights(source: Union[str, Path, dict], ema: bool,
                 prefix: Optional[str]) -> Tuple[Dict[str, Tensor], bool]:
    """Read the weights, and tell whether ``prefix`` was an entry of the file.

    Args:
        source (str | Path | dict): A file, a URL, or what one holds.
        ema (bool): Whether to take the averaged weights.
        prefix (str, optional): See :func:`unwrap`.

    Returns:
        tuple[dict[str, Tensor], bool]: The weights; whether the prefix is
        used up.

    Raises:
        CheckpointError: See :func:`read_checkpoint` and :func:`unwrap`.
    """
    if isinstance(source, dict):
        return _unwrap(source, ema, prefix)
    content = read_checkpoint(source)
    try:
        return _unwrap(content, ema, prefix)
    except CheckpointError as e:
        raise CheckpointError(f'{source}: {e}') from e
