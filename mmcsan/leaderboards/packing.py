"""Zip files that are there whole or not at all."""
import re
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from .errors import SubmissionError

NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_-]*')


def check_name(name: str, purpose: str) -> None:
    """Check what becomes part of a file name.

    Args:
        name (str): The name.
        purpose (str): What is called so, for the error.

    Raises:
        SubmissionError: If it holds more than letters, digits, - and _.
    """
    if not NAME.fullmatch(name):
        raise SubmissionError(
            f'{purpose} {name!r} cannot be part of a file name',
            'Use letters, digits, - and _ alone, such as csan-swin-tiny')


@contextmanager
def new_zip(path: Path, compression: int) -> Iterator[zipfile.ZipFile]:
    """Write a zip file under another name and rename it at the end.

    Args:
        path (Path): The file; its folder is made. One that is there is
            replaced.
        compression (int): ``zipfile.ZIP_DEFLATED`` or ``ZIP_STORED``.

    Yields:
        zipfile.ZipFile: To fill. If that fails, nothing is left of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + '.part')
    try:
        with zipfile.ZipFile(part, 'w', compression) as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
