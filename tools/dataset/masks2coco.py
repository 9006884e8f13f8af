"""Turn masks into a COCO file with a mask and a box for each object.

  instances  one PNG an image; a pixel holds the number of its object, 0 is
             background. With --divisor 1000, 2007 is object 7 of class 2.
  files      one PNG an object, not black where it is: MASKS/<image>/*.png,
             MASKS/<image>/masks/*.png or MASKS/<image>_*.png. With several
             classes, their file names begin with the name of the class.
  semantic   one PNG an image; a pixel holds the number of its class, 0 is
             background, 255 is not judged. Each connected part becomes an
             object: objects that touch become one.
"""
import argparse
from pathlib import Path

import cv2
import numpy as np
from _files import (SUFFIXES, fail, folder, images_in, read_values, size_of,
                    write_coco)
from pycocotools import mask as mask_utils

VOID = 255


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('images', help='folder of images')
    parser.add_argument('masks', help='folder of masks, named like them')
    parser.add_argument('out', help='COCO file to write')
    parser.add_argument(
        '--kind',
        choices=['instances', 'files', 'semantic'],
        required=True,
        help='what the masks are, see above')
    parser.add_argument(
        '--classes',
        nargs='+',
        required=True,
        help='names in order; the first is number 1 in the masks')
    parser.add_argument(
        '--divisor',
        type=int,
        help='of instances: class times this plus object')
    parser.add_argument(
        '--polygons',
        action='store_true',
        help='write outlines, which annotation tools can edit, instead of '
        'run lengths. Holes are lost')
    parser.add_argument(
        '--min-area',
        type=int,
        default=1,
        help='pixels below which a part is left out. Default: 1')
    return parser.parse_args()


def flat(path):
    """A mask of one number a pixel.

    Args:
        path (Path): The file.

    Returns:
        np.ndarray: int64 of shape (H, W).
    """
    values = np.asarray(read_values(path))
    if values.ndim != 2:
        fail(f'{path} holds colours, not numbers: '
             'tools/dataset/recode_masks.py exchanges them')
    return values.astype(np.int64)


def mask_of(name, masks):
    """The one mask of an image."""
    for suffix in SUFFIXES:
        if (masks / f'{name}{suffix}').is_file():
            return masks / f'{name}{suffix}'
    fail(f'there is no mask {masks / name}.png')


def from_instances(name, masks, args):
    """The objects of a mask of object numbers: class number and bitmap."""
    path = mask_of(name, masks)
    values = flat(path)
    if not args.divisor and len(args.classes) > 1:
        fail('several classes in masks of instances need --divisor')
    for value in np.unique(values[values != 0]).tolist():
        label = value // args.divisor if args.divisor else 1
        if not 1 <= label <= len(args.classes):
            fail(f'{path}: {value} is of class {label}, but there are '
                 f'{len(args.classes)}')
        yield label, values == value


def from_files(name, masks, args):
    """The objects of one file each: class number and bitmap."""
    files = sorted((masks / name).rglob('*.png'))
    files = files or sorted(masks.glob(f'{name}_*.png'))
    if not files and not (masks / name).is_dir():
        fail(f'{masks} holds neither {name}/*.png nor {name}_*.png: remove '
             'the image, or make an empty folder for one without objects')
    for path in files:
        pixels = np.asarray(read_values(path))
        # (H, W, C): black in all channels is background
        bitmap = pixels.any(-1) if pixels.ndim == 3 else pixels > 0
        stem = path.stem.removeprefix(f'{Path(name).name}_')
        labels = [n for n, c in enumerate(args.classes, 1)
                  if len(args.classes) == 1 or stem.startswith(c)]
        if not labels:
            fail(f'{path} begins with none of {", ".join(args.classes)}')
        # Of names such as cat and catfish, the longest.
        yield max(labels, key=lambda n: len(args.classes[n - 1])), bitmap


def from_semantic(name, masks, args):
    """The connected parts of each class: class number and bitmap."""
    path = mask_of(name, masks)
    values = flat(path)
    unknown = sorted(set(np.unique(values).tolist())
                     - {0, VOID, *range(1, len(args.classes) + 1)})
    if unknown:
        fail(f'{path} holds {unknown}, but {len(args.classes)} classes are '
             'named (1 is the first, 0 background)')
    if values.max() == VOID and not ((values > 0) & (values < VOID)).any():
        fail(f'{path} holds 0 and 255 alone, and 255 means not judged: '
             'recode it by tools/dataset/recode_masks.py --map 0=0 255=1')
    for label in range(1, len(args.classes) + 1):
        number, parts = cv2.connectedComponents(
            (values == label).astype(np.uint8))
        for part in range(1, number):
            yield label, parts == part


READERS = dict(
    instances=from_instances, files=from_files, semantic=from_semantic)


def to_annotation(bitmap, polygons):
    """The mask, box and area of an object.

    Args:
        bitmap (np.ndarray): bool of shape (H, W).
        polygons (bool): Whether to write outlines.

    Returns:
        dict: Of an annotation; None if no outline has an area.
    """
    rle = mask_utils.encode(np.asfortranarray(bitmap, np.uint8))
    entry = dict(
        area=int(mask_utils.area(rle)),
        bbox=[int(v) for v in mask_utils.toBbox(rle)],
        iscrowd=0)
    if not polygons:
        entry['segmentation'] = dict(
            size=list(bitmap.shape), counts=rle['counts'].decode('ascii'))
        return entry
    outlines, _ = cv2.findContours(
        bitmap.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    parts = [outline.reshape(-1).tolist() for outline in outlines
             if len(outline) >= 3]
    if not parts:
        return None
    return dict(entry, segmentation=parts)


def main():
    """Convert."""
    args = parse_args()
    masks = folder(args.masks)
    images, annotations, small = [], [], 0
    for number, (name, path) in enumerate(images_in(args.images).items(), 1):
        width, height = size_of(path)
        images.append(
            dict(
                id=number,
                file_name=path.relative_to(args.images).as_posix(),
                width=width,
                height=height))
        for label, bitmap in READERS[args.kind](name, masks, args):
            if bitmap.shape != (height, width):
                fail(f'{path} has {width} x {height} pixels, its mask '
                     f'{bitmap.shape[1]} x {bitmap.shape[0]}')
            entry = None
            if bitmap.sum() >= max(args.min_area, 1):
                entry = to_annotation(bitmap, args.polygons)
            if entry is None:
                small += 1
                continue
            annotations.append(
                dict(entry, image_id=number, category_id=label))
    write_coco(args.out, images, annotations, args.classes)
    if small:
        print(f'note: {small:,} parts left out as too small')


if __name__ == '__main__':
    main()
