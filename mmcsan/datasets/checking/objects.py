"""Check one object of a COCO file: its box and its mask."""
import math
from typing import Optional

import numpy as np
from pycocotools import mask as mask_utils

from .report import SplitReport

# Pixels. Tools that count from 1, or round, go beyond the border by one.
_SLACK = 1
# Intersection over union below which mask and box are of different places.
_SAME_PLACE = 0.3


def check_object(split: SplitReport, where: str, annotation: dict,
                 image: dict, with_mask: bool) -> bool:
    """Note the faults of an object.

    Args:
        split (SplitReport): Takes the faults.
        where (str): The file of its image.
        annotation (dict): The object.
        image (dict): The entry of its image.
        with_mask (bool): Whether masks are trained on.

    Returns:
        bool: Whether mmdet keeps the object.
    """
    number = f'annotation {annotation.get("id")}'
    if annotation.get('ignore'):
        split.add('ignored', where, number)
        return False
    needed = ['bbox', 'area'] + ['iscrowd'] * (split.name != 'train')
    lost = [key for key in needed if annotation.get(key) is None]
    if lost:
        split.add('key-missing', where, f'{", ".join(lost)} of {number}')
        return False
    if not isinstance(annotation['area'], (int, float)):
        split.add('value', where, f'area {annotation["area"]!r} of {number}')
        return False
    if not _check_box(split, where, number, annotation, image):
        return False
    if annotation.get('iscrowd'):
        split.add('crowd', where, number)
    return not with_mask or _check_mask(split, where, number, annotation,
                                        image)


def _check_box(split, where, number, annotation, image):
    """Whether the box is kept."""
    box = annotation['bbox']
    if not (isinstance(box, list) and len(box) == 4 and all(
            isinstance(v, (int, float)) and math.isfinite(v) for v in box)):
        split.add('box-malformed', where, f'{number}, bbox {box}')
        return False
    x, y, width, height = box
    if width < 1 or height < 1 or annotation['area'] <= 0:
        split.add('box-degenerate', where,
                  f'{number}, bbox {box}, area {annotation["area"]}')
        return False
    beyond = max(-x, -y, x + width - image['width'],
                 y + height - image['height'])
    if beyond > _SLACK:
        split.add(
            'box-outside', where, f'{number}, bbox {box} in an image of '
            f'{image["width"]} x {image["height"]}')
    return (min(x + width, image['width']) > max(x, 0)
            and min(y + height, image['height']) > max(y, 0))


def _check_mask(split, where, number, annotation, image):
    """Whether the mask is trained on."""
    segmentation = annotation.get('segmentation')
    if not segmentation:
        split.add('mask-absent', where, number)
        return False
    wrong = _shape_fault(segmentation, image)
    if wrong:
        split.add(wrong[0], where, f'{number}, {wrong[1]}')
        return False
    try:
        rle = to_rle(segmentation, image['height'], image['width'])
        mask_utils.decode(rle)  # the only one to refuse broken counts
        area = int(mask_utils.area(rle))
        box = mask_utils.toBbox(rle)
    except Exception as error:  # noqa: B902  whatever the decoder raises
        split.add('rle', where, f'{number}, {error}')
        return False
    if area == 0:
        split.add('mask-empty', where, number)
        return False
    overlap = mask_utils.iou(
        np.asarray([box], float), np.asarray([annotation['bbox']], float),
        [0])[0, 0]
    if overlap < _SAME_PLACE:
        split.add('mask-box', where, f'{number}, bbox {annotation["bbox"]}, '
                  f'mask within {[round(v, 1) for v in box.tolist()]}')
    return True


def _shape_fault(segmentation, image) -> Optional[tuple]:
    """The code and detail of a mask that cannot be read as it is."""
    if isinstance(segmentation, list):
        for part in segmentation:
            if not isinstance(part, list):
                return 'polygon', 'the coordinates are not in a list of lists'
            if len(part) < 6 or len(part) % 2:
                return 'polygon', f'{len(part)} values'
            if not all(isinstance(v, (int, float)) and math.isfinite(v)
                       for v in part):
                return 'polygon', 'values that are no finite numbers'
        return None
    if not isinstance(segmentation, dict):
        return 'rle', f'a {type(segmentation).__name__}'
    size, counts = (segmentation.get(k) for k in ('size', 'counts'))
    if size != [image['height'], image['width']]:
        return 'rle-size', (f'size {size}, image '
                            f'{[image["height"], image["width"]]}')
    if not isinstance(counts, (list, str)) or not counts:
        return 'rle', 'no counts'
    if isinstance(counts, list) and not all(
            isinstance(count, int) for count in counts):
        return 'rle', 'counts that are no integers'
    if isinstance(counts, list) and (
            sum(counts) != size[0] * size[1] or min(counts, default=0) < 0):
        return 'rle', f'the counts add up to {sum(counts)} pixels'
    return None


def to_rle(segmentation, height: int, width: int) -> dict:
    """Encode a mask, as mmdet does.

    Args:
        segmentation (list | dict): Polygons, or run lengths of either kind.
        height (int): Of the image.
        width (int): Of the image.

    Returns:
        dict: Compressed run lengths.
    """
    if isinstance(segmentation, list):
        return mask_utils.merge(
            mask_utils.frPyObjects(segmentation, height, width))
    if isinstance(segmentation['counts'], list):
        return mask_utils.frPyObjects(segmentation, height, width)
    return segmentation
