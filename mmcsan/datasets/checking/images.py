"""What the files of images are, as training would read them."""
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple

import mmcv
import numpy as np
from PIL import Image, ImageOps

from .report import SplitReport

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
"""Of what is taken for an image in a folder, in small letters."""
# Formats that OpenCV, which reads the images in training, always knows.
_PLAIN_FORMATS = ('JPEG', 'PNG', 'BMP', 'WEBP')
_ORIENTATION = 0x0112
# Of 255: what an image of 12 bits in 16 would reach.
_DARK = 16


class ImageFacts(NamedTuple):
    """What one image file is.

    Args:
        size (tuple[int]): Width and height as training sees them.
        stored (tuple[int]): Width and height in the file.
        orientation (int): EXIF orientation; 1 is upright.
        mode (str): Mode of Pillow.
        brightest (int | None): Greatest value of an image of 16 bits.
        digest (str): Of the file's bytes.
        error (str): Why it could not be read, or ''.
    """
    size: Tuple[int, int] = (0, 0)
    stored: Tuple[int, int] = (0, 0)
    orientation: int = 1
    mode: str = ''
    brightest: Optional[int] = None
    digest: str = ''
    error: str = ''


def in_threads(function: Callable, items: Iterable) -> list:
    """Apply a function to many files at once.

    Args:
        function (Callable): Of one item.
        items (Iterable): Items.

    Returns:
        list: The results in the order of the items.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def look_at_image(path: str) -> ImageFacts:
    """Read an image in full.

    Args:
        path (str): The file.

    Returns:
        ImageFacts: What it is; with ``error`` where it cannot be read.
    """
    try:
        with open(path, 'rb') as file:
            content = file.read()
        with Image.open(io.BytesIO(content)) as image:
            orientation = image.getexif().get(_ORIENTATION, 1)
            image.load()
            wide = image.mode.startswith(('I', 'F'))
            facts = ImageFacts(
                size=ImageOps.exif_transpose(image).size,
                stored=image.size,
                orientation=orientation,
                mode=image.mode,
                brightest=int(np.asarray(image).max()) if wide else None,
                digest=hashlib.sha1(content).hexdigest())
            plain = image.format in _PLAIN_FORMATS
    except Exception as error:  # noqa: B902  Pillow raises many kinds
        return ImageFacts(error=str(error) or type(error).__name__)
    if not plain and mmcv.imfrombytes(content) is None:
        return facts._replace(error='OpenCV does not read this format')
    return facts


def report_images(split: SplitReport, paths: List[str],
                  root: str) -> List[ImageFacts]:
    """Read all images of a split and note their faults.

    Args:
        split (SplitReport): Takes the faults, sizes and digests.
        paths (list[str]): The files.
        root (str): What file names are shown relative to.

    Returns:
        list[ImageFacts]: In the order of ``paths``.
    """
    facts = in_threads(look_at_image, paths)
    first = {}
    for path, image in zip(paths, facts):
        name = shown(path, root)
        if image.error:
            split.add('image-unreadable', name, image.error)
            continue
        split.sizes[image.size] += 1
        split.digests[path] = image.digest
        if first.setdefault(image.digest, name) != name:
            split.add('image-twice', name, f'equals {first[image.digest]}')
        if not name.isascii():
            split.add('path-non-ascii', name)
        _report_pixels(split, name, image)
    split.images = len(paths)
    return facts


def _report_pixels(split, name, image):
    """Note what happens to the pixels of an image when it is read."""
    if image.brightest is not None:
        dark = image.brightest >> 8 < _DARK
        split.add('image-dark' if dark else 'image-16bit', name,
                  f'its greatest value is {image.brightest}')
    elif image.mode in ('1', 'L'):
        split.add('image-grey', name)
    elif image.mode in ('RGBA', 'LA', 'PA'):
        split.add('image-alpha', name)


def report_orientation(split: SplitReport, name: str, image: ImageFacts,
                       annotated: Tuple[int, int]) -> bool:
    """Note an EXIF orientation, and whether annotations know of it.

    Args:
        split (SplitReport): Takes the fault.
        name (str): The file as shown.
        image (ImageFacts): What the file is.
        annotated (tuple[int]): Width and height of the annotations.

    Returns:
        bool: Whether it explains that the sizes differ.
    """
    if image.orientation in (0, 1):
        return False
    turned = annotated == image.stored != image.size
    split.add('image-exif-size' if turned else 'image-exif', name,
              f'EXIF orientation {image.orientation}')
    return turned


def find_leaks(first: SplitReport, second: SplitReport, root: str) -> None:
    """Note the images of one split that the other has too.

    Args:
        first (SplitReport): What is trained on.
        second (SplitReport): What is scored; takes the faults.
        root (str): What file names are shown relative to.
    """
    there = {digest: path for path, digest in first.digests.items()}
    for path, digest in second.digests.items():
        if digest in there:
            second.add('leak', shown(path, root),
                       f'equals {shown(there[digest], root)} of {first.name}')


def shown(path: str, root: str) -> str:
    """A path as it is shown.

    Args:
        path (str): The file.
        root (str): Folder that it is shown relative to, if it lies there.

    Returns:
        str: The shorter name.
    """
    path, root = os.path.abspath(path), os.path.abspath(root or '.')
    inside = path.startswith(root + os.sep)
    return os.path.relpath(path, root) if inside else path


def images_below(folder: str) -> List[str]:
    """All images in a folder and those below it.

    Args:
        folder (str): The folder; may be missing.

    Returns:
        list[str]: Paths relative to the folder, sorted.
    """
    return sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith('.'))
