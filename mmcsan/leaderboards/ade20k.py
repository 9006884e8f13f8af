"""Label maps for the ADE20K server: checked and packed."""
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Union

import numpy as np
from PIL import Image, UnidentifiedImageError

from .errors import SubmissionError
from .packing import check_name, new_zip

NUM_CLASSES = 150
"""Labels are 1 to 150; 0 stands for no class, which is no answer."""
IMAGES = ('.jpg', '.jpeg', '.png')
OTHER_MODES = {
    'P': 'a palette',
    'RGB': 'colours',
    'RGBA': 'colours',
    'LA': 'transparency',
    '1': 'one bit a pixel',
    'I': 'more than 8 bits a pixel',
    'I;16': 'more than 8 bits a pixel',
}
WRITE = 'Write label maps by a config of configs/leaderboards'


@dataclass
class Summary:
    """What was packed.

    Args:
        path (Path): The zip file.
        maps (int): Number of label maps.
        classes (int): Number of classes that occur in them.
        size (int): Bytes of the zip file.
    """

    path: Path
    maps: int
    classes: int
    size: int

    def __str__(self) -> str:
        return (f'{self.maps:,} label maps with {self.classes} classes, '
                f'{self.size / 1e6:.1f} MB\nwritten to {self.path}')


def _files(folder: Path, what: str) -> List[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as e:
        raise SubmissionError(f'cannot be read ({e.strerror})',
                              f'Give the folder of the {what}',
                              folder) from None


def read_images(folder: Path) -> Dict[str, Path]:
    """Find the test images.

    Args:
        folder (Path): Such as ``release_test/testing``.

    Returns:
        dict: The file of each name without its ending.

    Raises:
        SubmissionError: If there are none.
    """
    files = _files(folder, 'test images')
    images = {p.stem: p for p in files if p.suffix.lower() in IMAGES}
    if not images:
        raise SubmissionError('holds no images',
                              'Give the folder of the test images', folder)
    return images


def read_maps(folder: Path, images: Dict[str, Path]) -> List[Path]:
    """Find the label maps: one for each image, and nothing else.

    Args:
        folder (Path): Where the test wrote them.
        images (dict): See :func:`read_images`.

    Returns:
        list[Path]: By name.

    Raises:
        SubmissionError: If one is missing, or anything is too much.
    """
    files = _files(folder, 'label maps')
    for path in files:
        if path.is_dir():
            raise SubmissionError('is a folder among the label maps',
                                  'Give the folder that holds them alone',
                                  path)
        if path.suffix != '.png':
            raise SubmissionError('is not called *.png',
                                  'Remove what is no label map', path)
    names = {path.stem for path in files}
    missing, unknown = sorted(images.keys() - names), sorted(names -
                                                             images.keys())
    if unknown:
        raise SubmissionError(
            f'is of no test image ({len(unknown):,} such files)',
            'Test on the images given here: the config may test on another '
            'set, or the folder hold an older test',
            folder / f'{unknown[0]}.png')
    if missing:
        raise SubmissionError(
            f'has no {missing[0]}.png ({len(missing):,} of {len(images):,} '
            'missing)', 'Test on all images', folder)
    return files


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except UnidentifiedImageError:
        raise SubmissionError('is no image', WRITE) from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise SubmissionError('cannot be decoded: it is damaged or cut off',
                              WRITE) from None


def _check_form(path: Path, image: Path) -> np.ndarray:
    """Check a label map but for its values; they are returned."""
    labels = _read(path)
    if labels.format != 'PNG':
        raise SubmissionError(f'is {labels.format}, called .png', WRITE)
    if labels.mode != 'L':
        raise SubmissionError(
            f'is of mode {labels.mode} '
            f'({OTHER_MODES.get(labels.mode, "another kind of pixels")}), not '
            'L (8 bits of grey)',
            f'{WRITE}; drawings of --show-dir are none')
    try:
        with Image.open(image) as original:
            size = original.size
    except OSError:
        raise SubmissionError(f'its image {image} cannot be read',
                              'Fetch the test images anew') from None
    if labels.size != size:
        turned = ', turned' if labels.size == size[::-1] else ''
        raise SubmissionError(
            f'is {labels.width} x {labels.height}, its image {size[0]} x '
            f'{size[1]}{turned}', 'Label maps must be of the size the image '
            'has in its file, not that of the pipeline')
    return np.asarray(labels)


def _occurring(labels: np.ndarray) -> np.ndarray:
    """Whether each of the 256 values occurs."""
    return np.bincount(labels.ravel(), minlength=256) > 0


def _occurring_anywhere(pairs: List[Tuple[Path, Path]]) -> np.ndarray:
    """The same of all maps that can be read."""
    found = np.zeros(256, bool)
    for path, image in pairs:
        try:
            found |= _occurring(_check_form(path, image))
        except SubmissionError:
            continue
    return found


def _fault_of_values(pairs: List[Tuple[Path, Path]],
                     wrong: List[int]) -> SubmissionError:
    """Name what the values of all maps together tell."""
    values = np.flatnonzero(_occurring_anywhere(pairs)).tolist()
    low, high = values[0], values[-1]
    labels = f'labels must be 1 to {NUM_CLASSES}'
    if low == 0 and high < NUM_CLASSES:
        return SubmissionError(
            f'holds 0, and all maps hold {low} to {high}: they are off by '
            f'one, as {labels}', 'Write with reduce_zero_label=True in the '
            'dataset, as ADE20KDataset has it: IoUMetric then adds the 1')
    if low >= 2 and high == NUM_CLASSES + 1:
        return SubmissionError(
            f'holds {high}, and all maps hold {low} to {high}: 1 was added '
            f'twice, as {labels}', 'IoUMetric has added it already')
    if wrong == [0]:
        return SubmissionError(
            f'holds 0, no class, but {labels}',
            'Give each pixel a class: do not mask any out')
    return SubmissionError(
        f'holds {", ".join(map(str, wrong[:5]))}, but {labels}',
        'Give each pixel a class of ADE20K; 255 is the label that training '
        'ignores')


def pack_ade20k(folder: Union[str, Path],
                images: Union[str, Path],
                out: Union[str, Path],
                method: Optional[str] = None) -> Summary:
    """Check label maps and pack them for the ADE20K server.

    Args:
        folder (str | Path): The label maps, one PNG for each image under its
            name, as mmseg's ``IoUMetric`` writes them with
            ``format_only=True``.
        images (str | Path): The test images, ``release_test/testing``.
        out (str | Path): Folder of ``METHOD.zip``, which holds the label maps
            and no folder.
        method (str, optional): Name of the method: letters, digits, - and _.
            Defaults to the name of ``folder``.

    Returns:
        Summary: What was packed and where.

    Raises:
        SubmissionError: At the first fault; no zip file is written then.
    """
    folder = Path(folder).resolve()
    method = folder.name if method is None else method
    check_name(method, 'method')
    by_name = read_images(Path(images))
    maps = read_maps(folder, by_name)
    pairs = [(path, by_name[path.stem]) for path in maps]
    target = Path(out) / f'{method}.zip'
    found = np.zeros(256, bool)
    # PNG is compressed already
    with new_zip(target, zipfile.ZIP_STORED) as archive:
        for index, (path, image) in enumerate(pairs):
            try:
                there = _occurring(_check_form(path, image))
                wrong = np.flatnonzero(there).tolist()
                wrong = [v for v in wrong if not 1 <= v <= NUM_CLASSES]
                if wrong:
                    raise _fault_of_values(pairs, wrong)
            except SubmissionError as e:
                raise e.at(path, index) from None
            found |= there
            archive.write(path, path.name)
    return Summary(target, len(maps), int(found.sum()),
                   target.stat().st_size)
