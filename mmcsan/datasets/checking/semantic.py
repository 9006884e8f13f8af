"""Check a folder of images and a folder of masks, as mmseg reads them."""
import io
import os
import os.path as osp
from collections import Counter
from typing import Dict, List, NamedTuple, Tuple

import numpy as np
from PIL import Image

from mmcsan.datasets.masks import MaskValuesToClasses
from .images import (images_below, in_threads, report_images,
                     report_orientation, shown)
from .report import SplitReport

_FLAT_MODES = ('1', 'L', 'P')
"""Of Pillow: one value a pixel. A palette does no harm, as its indices are
read and not its colours."""
_MOST_VALUES = 8


class MaskFacts(NamedTuple):
    """What one mask file is.

    Args:
        size (tuple[int]): Width and height.
        mode (str): Mode of Pillow.
        counts (dict[int, int]): Pixels of each value, of one channel.
        error (str): Why it could not be read, or ''.
    """
    size: Tuple[int, int] = (0, 0)
    mode: str = ''
    counts: Dict[int, int] = {}
    error: str = ''

    @property
    def flat(self) -> bool:
        """bool: Whether a pixel is one number."""
        return self.mode in _FLAT_MODES or self.mode.startswith('I')


class SeenLabels:
    """What becomes of mask values on their way into training.

    Args:
        dataset (BaseSegDataset): The data set.
        pipeline (list[dict]): Its transforms.
        ignore_index (int): What the loss leaves out.
    """

    def __init__(self, dataset, pipeline: List[dict],
                 ignore_index: int) -> None:
        self.num_classes = len(dataset.metainfo['classes'])
        self.ignore_index = ignore_index
        # As mmseg's LoadAnnotations does, and in its order.
        table = np.arange(256)
        if dataset.reduce_zero_label:
            table[0] = 255
            table[1:255] -= 1
        for old, new in (dataset.label_map or {}).items():
            table[np.arange(256) == old] = new
        for step in pipeline:
            if step.get('type') == 'mmcsan.MaskValuesToClasses':
                settings = {k: v for k, v in step.items() if k != 'type'}
                table = MaskValuesToClasses(**settings).table[table]
        self.table = table

    def is_void(self, value: int) -> bool:
        """Whether pixels of a value are not judged.

        Args:
            value (int): Of the file.

        Returns:
            bool: True if so.
        """
        return value < 256 and self.table[value] == self.ignore_index

    def is_class(self, value: int) -> bool:
        """Whether a value is one of the classes.

        Args:
            value (int): Of the file.

        Returns:
            bool: True if so.
        """
        return (value < 256 and not self.is_void(value)
                and self.table[value] < self.num_classes)

    def value_of(self, label: int) -> str:
        """The mask value of a class.

        Args:
            label (int): Number of the class in training.

        Returns:
            str: The value, or several with commas.
        """
        return ','.join(map(str, np.flatnonzero(self.table == label)))


def look_at_mask(path: str) -> MaskFacts:
    """Read a mask in full.

    Args:
        path (str): The file.

    Returns:
        MaskFacts: What it is; with ``error`` where it cannot be read.
    """
    try:
        with open(path, 'rb') as file, Image.open(
                io.BytesIO(file.read())) as image:
            pixels = np.asarray(image)
            facts = MaskFacts(image.size, image.mode)
    except Exception as error:  # noqa: B902  Pillow raises many kinds
        return MaskFacts(error=str(error) or type(error).__name__)
    if not facts.flat:
        # (H, W, C), in which each channel is a number of its own
        pixels = pixels[..., 0]
    values, counts = np.unique(pixels.astype(np.int64), return_counts=True)
    return facts._replace(counts=dict(zip(values.tolist(), counts.tolist())))


def check_semantic(split: SplitReport, dataset, pipeline: List[dict],
                   ignore_index: int) -> None:
    """Check a split of semantic segmentation.

    Args:
        split (SplitReport): Takes what is found.
        dataset (BaseSegDataset): Built, but not yet filled.
        pipeline (list[dict]): Its transforms.
        ignore_index (int): What the loss leaves out.
    """
    split.task = 'semantic segmentation'
    root = dataset.data_root or ''
    folders = [dataset.data_prefix.get(k) or ''
               for k in ('img_path', 'seg_map_path')]
    missing = [f for f in folders if not osp.isdir(f)]
    if dataset.ann_file and not osp.exists(dataset.ann_file):
        missing.append(dataset.ann_file)
    for folder in missing:
        split.add('folder-missing', folder)
    if missing:
        return
    entries = dataset.load_data_list()
    pairs = [(e['img_path'], e['seg_map_path']) for e in entries]
    _check_pairs(split, dataset, folders, pairs, root)
    pairs = [pair for pair in pairs if osp.isfile(pair[0])]
    images = report_images(split, [image for image, _ in pairs], root)
    masks = in_threads(look_at_mask, [
        mask for _, mask in pairs if osp.isfile(mask)])
    masks = dict(zip((m for _, m in pairs if osp.isfile(m)), masks))
    labels = SeenLabels(dataset, pipeline, ignore_index)
    for (_, path), image in zip(pairs, images):
        if path in masks:
            _check_mask(split, shown(path, root), masks[path], image, labels)
    _count_classes(split, dataset.metainfo['classes'], masks, labels, root)
    split.pictures = [
        (image, mask, labels) for (image, mask), facts in zip(pairs, images)
        if not facts.error and mask in masks and not masks[mask].error
        and masks[mask].flat
    ]


def _check_pairs(split, dataset, folders, pairs, root):
    """Note images without masks, masks without images, other suffixes."""
    there = images_below(folders[0])
    listed = bool(dataset.ann_file) and not osp.isdir(dataset.ann_file)
    if not pairs:
        suffixes = Counter(osp.splitext(name)[1] for name in there)
        found = ', '.join(f'{n} of {s}' for s, n in suffixes.items())
        split.add('no-images', folders[0],
                  f'no file ends in {dataset.img_suffix}; there are '
                  f'{found or "no images"}')
    for image, mask in pairs:
        if not osp.isfile(image):
            split.add('image-missing', shown(image, root))
        elif not osp.isfile(mask):
            split.add('mask-missing', shown(image, root),
                      _expected(mask, root))
    if listed:
        return
    read = {osp.abspath(path) for pair in pairs for path in pair}
    stems = {osp.splitext(osp.abspath(image))[0] for image, _ in pairs}
    for name in there:
        path = osp.abspath(osp.join(folders[0], name))
        is_mask = path.endswith(dataset.seg_map_suffix) and (
            osp.abspath(folders[0]) == osp.abspath(folders[1]))
        if path not in read and not is_mask and pairs and (
                osp.splitext(path)[0] not in stems):
            split.add('image-suffix', shown(path, root),
                      f'the config reads *{dataset.img_suffix}')
    for name in images_below(folders[1]):
        path = osp.abspath(osp.join(folders[1], name))
        is_image = osp.abspath(folders[0]) == osp.abspath(folders[1]) and (
            not path.endswith(dataset.seg_map_suffix))
        if path not in read and not is_image:
            split.add('mask-alone', shown(path, root))


def _expected(mask, root):
    """Which mask is missing, and what comes close to it."""
    folder = osp.dirname(mask)
    stem = osp.splitext(osp.basename(mask))[0].lower()
    names = os.listdir(folder) if osp.isdir(folder) else []
    close = sorted(n for n in names if n.lower().startswith(stem))
    hint = f'; there is {", ".join(close[:3])}' if close else ''
    return f'{shown(mask, root)} is expected{hint}'


def _check_mask(split, name, mask, image, labels):
    """Note what is wrong with one mask."""
    if mask.error:
        split.add('mask-unreadable', name, mask.error)
        return
    if not image.error:
        turned = report_orientation(split, name, image, mask.size)
        if mask.size != image.size and not turned:
            split.add(
                'mask-size', name, 'mask {} x {}, image {} x {}'.format(
                    *mask.size, *image.size))
    if not mask.flat:
        split.add('mask-colours', name, f'mode {mask.mode}')
        return
    if max(mask.counts) > 255:
        split.add('mask-16bit', name, _values(mask.counts, lambda v: v > 255))
        return
    others = _values(
        mask.counts,
        lambda v: not labels.is_class(v) and not labels.is_void(v))
    if others:
        split.add('mask-values', name, others)
    elif all(map(labels.is_void, mask.counts)):
        split.add('mask-void', name)


def _values(counts, wanted):
    """The values of a mask that are wanted, with their pixels."""
    found = [f'{v} ({n:,} pixels)' for v, n in counts.items() if wanted(v)]
    more = f' and {len(found) - _MOST_VALUES} more values' if len(
        found) > _MOST_VALUES else ''
    return ', '.join(found[:_MOST_VALUES]) + more


def _count_classes(split, classes, masks, labels, root):
    """Count images and pixels a class; note what only the whole split shows.
    """
    images, pixels = Counter(), Counter()
    good = [m for m in masks.values() if not m.error and m.flat]
    for mask in good:
        images.update(mask.counts.keys())
        pixels.update(mask.counts)
    void = [v for v in pixels if labels.is_void(v)]
    total = sum(pixels.values()) or 1
    split.columns = ('class', 'value', 'images', 'pixels', 'share (%)')
    unused = []
    for label, name in enumerate(classes):
        values = [v for v in pixels if labels.is_class(v)
                  and labels.table[v] == label]
        number = sum(pixels[v] for v in values)
        with_it = sum(any(v in m.counts for v in values) for m in good)
        split.rows.append((name, labels.value_of(label), with_it, number,
                           100 * number / total))
        if not number:
            unused.append(name)
    _void_row(split, good, void, pixels, total)
    if not good:
        return
    folder = shown(osp.dirname(next(iter(masks))), root)
    if set(pixels) == {0, 255} and labels.is_void(255):
        split.add('mask-0-255', folder, f'{len(good):,} masks')
        return
    if 0 in void and classes[-1] in unused:
        split.add(
            'mask-zero', folder, f'0 is not judged, and {classes[-1]!r} '
            f'would be {labels.value_of(len(classes) - 1)}',
            level=None if split.name == 'train' else 'note')
    for name in unused:
        split.add('class-unused', name)


def _void_row(split, good, void, pixels, total):
    if void:
        number = sum(pixels[v] for v in void)
        with_it = sum(any(v in m.counts for v in void) for m in good)
        split.rows.append(('(not judged)', ','.join(map(str, sorted(void))),
                           with_it, number, 100 * number / total))
