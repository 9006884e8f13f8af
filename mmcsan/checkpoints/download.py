"""Download checkpoints once, and keep them."""
import hashlib
import logging
import os
import re
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import torch
from mmengine.fileio import get_file_backend
from mmengine.fileio.backends import HTTPBackend
from mmengine.logging import print_log

from .errors import CheckpointError

try:
    import fcntl
except ImportError:  # not on Windows: two processes may download both
    fcntl = None

SEARCH_VARIABLE = 'MMCSAN_CHECKPOINTS'
"""Environment variable that names a directory to look in and download to."""

TIMEOUT = 30
"""Seconds without an answer after which a download is given up."""

CHUNK = 1 << 20

_HASH = re.compile(r'-([0-9a-f]{8,64})(?=\.|$)')
_DATE = re.compile(r'(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])')


def search_directory() -> Optional[Path]:
    """The directory that ``$MMCSAN_CHECKPOINTS`` names, if it is set."""
    directory = os.environ.get(SEARCH_VARIABLE)
    return Path(directory).expanduser() if directory else None


def cache_directory() -> Path:
    """Where downloads are kept: ``$MMCSAN_CHECKPOINTS``, else torch hub's."""
    return search_directory() or Path(torch.hub.get_dir()) / 'checkpoints'


def expected_hash(name: str) -> Optional[str]:
    """The first digits of the SHA-256 that a file's name states, if any.

    Args:
        name (str): Such as ``'swin-1a2b3c4d.pth'``. Eight digits that are a
            date are none.

    Returns:
        str | None: At least 8 hex digits.
    """
    found = _HASH.findall(name)
    return found[-1] if found and not _DATE.fullmatch(found[-1]) else None


def download(url: str) -> Path:
    """Download a file, if it is not there from the last time.

    One process of a machine downloads, the others wait for it. A file that
    was brought to ``$MMCSAN_CHECKPOINTS`` under its own name is taken as it
    is. Other names get digits of the address, so that files that different
    addresses call the same are not mixed up, unless they state their hash.

    Args:
        url (str): An ``http(s)`` address.

    Returns:
        Path: The file.

    Raises:
        CheckpointError: If that fails; says how to do without.
    """
    name = Path(unquote(urlsplit(url).path)).name
    if not name:
        raise CheckpointError(f'{url} names no file')
    brought = search_directory()
    if brought and (brought / name).is_file():
        return brought / name
    if expected_hash(name) is None:
        digits = hashlib.sha256(url.encode()).hexdigest()[:8]
        name = f'{digits}.{name}'
    path = cache_directory() / name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            # Another process may have been faster.
            if not path.is_file():
                _download_to(path, url)
    except CheckpointError:
        raise
    except Exception as e:
        raise _failure(url, f'{type(e).__name__}: {e}') from e
    return path


def _failure(url: str, why: str) -> CheckpointError:
    return CheckpointError(
        f'{url} cannot be downloaded to {cache_directory()} ({why}). Where '
        'there is no network, bring the file, and name it instead of the '
        f'address or put it into the directory that {SEARCH_VARIABLE} names')


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes of this machine waiting."""
    if fcntl is None:
        yield
        return
    with open(path.with_name(f'.{path.name}.lock'), 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download_to(path: Path, url: str) -> None:
    """Download under a name of its own, then rename in one go."""
    handle, part = tempfile.mkstemp(
        prefix=f'.{path.name}.', suffix='.part', dir=path.parent)
    try:
        with os.fdopen(handle, 'wb') as file:
            digest = _write(file, url)
        expected = expected_hash(path.name)
        if expected and not digest.startswith(expected):
            raise _failure(
                url, f'its SHA-256 starts with {digest[:len(expected)]} and '
                f'not with {expected}, as its name states: the file is '
                'damaged or another one')
        # mkstemp's files are for the owner alone.
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    print_log(
        f'downloaded {url} to {path}', logger='current', level=logging.INFO)


def _write(file, url: str) -> str:
    """Write what an address answers to a file; returns its SHA-256."""
    digest, size, told = hashlib.sha256(), 0, time.monotonic()
    with _answer(url) as (chunks, total):
        for chunk in chunks:
            if not size and _is_page(chunk):
                raise _failure(url, 'it was answered with a web page, not a '
                               'file')
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                of = f' of {total / 1e6:.0f}' if total else ''
                print_log(
                    f'downloading {url}: {size / 1e6:.0f}{of} MB',
                    logger='current',
                    level=logging.INFO)
    if not size:
        raise _failure(url, 'the answer is empty')
    if total is not None and size != total:
        raise _failure(url, f'the connection broke off after {size} of '
                       f'{total} bytes')
    return digest.hexdigest()


@contextmanager
def _answer(url: str) -> Iterator[tuple]:
    """Chunks of what an address answers, and how many bytes they shall be."""
    backend = get_file_backend(url)
    if type(backend) is not HTTPBackend:
        # One of the user's, such as for an address that needs a password.
        data = backend.get(url)
        yield [data] if data else [], len(data)
        return
    # mmengine's own has no limit of time and no progress.
    request = Request(url, headers={'User-Agent': 'mmcsan'})
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:
            length = answer.headers.get('Content-Length', '')
            total = int(length) if length.isdigit() else None
            size = '' if total is None else f' ({total / 1e6:.0f} MB)'
            print_log(
                f'downloading {url}{size}',
                logger='current',
                level=logging.INFO)
            yield iter(lambda: answer.read(CHUNK), b''), total
    except HTTPError as e:
        raise _failure(url, f'the server answered {e.code} {e.reason}') from e
    except TimeoutError as e:
        raise _failure(url, f'no answer within {TIMEOUT} seconds') from e


def _is_page(head: bytes) -> bool:
    """Whether content starts as a web page does."""
    return head[:512].lstrip(b'\xef\xbb\xbf \t\r\n')[:1] == b'<'
