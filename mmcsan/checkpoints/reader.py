"""Read checkpoint files as data: nothing in one is executed."""
import io
import json
import os
from pathlib import Path
from typing import Dict, List, Optional, Union

from mmengine.fileio import get as fetch
from torch import Tensor

from .errors import CheckpointError
from .pickles import load_torch

SEARCH_VARIABLE = 'MMCSAN_CHECKPOINTS'
"""Environment variable that names a directory to look in."""

WRAPPERS = ('state_dict', 'model', 'model_state', 'module', 'net')
"""Entries that hold the weights in files of various frameworks."""

EMA_WRAPPERS = ('state_dict_ema', 'model_ema')
"""Entries that hold averaged weights; read on request only."""

SWAPPED_EMA = 'ema_state_dict'
"""mmengine's: it holds the raw weights, and ``state_dict`` the average."""

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


def is_url(source: Union[str, Path]) -> bool:
    """Whether a source is an ``http(s)`` address."""
    return str(source).startswith(('http://', 'https://'))


def download(url: str) -> io.BytesIO:
    """Download a file into memory.

    Args:
        url (str): Its address.

    Returns:
        io.BytesIO: The content.

    Raises:
        CheckpointError: If that fails; says how to do without.
    """
    try:
        return io.BytesIO(fetch(url))
    except Exception as e:
        raise CheckpointError(
            f'{url} cannot be downloaded ({type(e).__name__}: {e}). Where '
            'there is no network, bring the file, and name it instead of the '
            f'address or put it into the directory that {SEARCH_VARIABLE} '
            'names') from e


def _kept_download(url: str) -> Optional[Path]:
    """The file of an address in ``$MMCSAN_CHECKPOINTS``, if it is there."""
    directory = os.environ.get(SEARCH_VARIABLE)
    if not directory:
        return None
    path = Path(directory).expanduser() / url.split('?')[0].split('/')[-1]
    return path if path.is_file() else None


def read_checkpoint(source: Union[str, Path]) -> dict:
    """Read a file of any supported kind into a dict, on the CPU.

    Args:
        source (str | Path): A ``.pth``-like or ``.safetensors`` file, an
            ``http(s)`` URL of one, or the ``.index.json`` of a sharded one.

    Returns:
        dict: What the file holds; objects that are no data are stand-ins.

    Raises:
        CheckpointError: If the file is missing, empty, damaged, something
            else, or would run code.
    """
    if is_url(source):
        local = _kept_download(str(source))
        if local is None:
            return _read(download(str(source)), str(source))
        source = local
    path = find_checkpoint(source)
    if path.name.endswith('.index.json'):
        return _read_shards(path)
    with open(path, 'rb') as file:
        return _read(file, str(path))


def _read_shards(index: Path) -> dict:
    """Read the files that an index of a sharded checkpoint names."""
    try:
        shards = json.loads(index.read_text('utf-8'))['weight_map'].values()
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f'{index} is no index of a sharded checkpoint: '
                              f'it lacks a weight_map ({e})') from e
    content = {}
    for shard in sorted(set(shards)):
        if Path(shard).name != shard:
            raise CheckpointError(f'{index} names {shard}, which is outside '
                                  'of its directory')
        content.update(read_checkpoint(index.with_name(shard)))
    return content


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
    content = load_torch(file, name)
    if not isinstance(content, dict):
        raise CheckpointError(f'{name} holds a {type(content).__name__}, '
                              'a dict of tensors expected')
    return content


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
        held = [k for k in EMA_WRAPPERS if isinstance(content.get(k), dict)]
        if held:
            content = content[held[0]]
        elif not isinstance(content.get(SWAPPED_EMA), dict):
            raise CheckpointError(
                'averaged (EMA) weights were asked for, but there is none of '
                f'{EMA_WRAPPERS + (SWAPPED_EMA, )} in it')
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
