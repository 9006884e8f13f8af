"""Masks of one's own data: from the values in the files to classes."""
from typing import Iterable, List, Union

import numpy as np
from mmcv.transforms import BaseTransform

from mmcsan.registry import TRANSFORMS

IGNORED = 255
"""What mmseg's losses and metrics leave out."""
_UNKNOWN = 254


def class_values(num_classes: int, void: Union[int, Iterable[int]]) -> list:
    """The mask value of each class.

    The values from 0 that are not void are the classes in their order: void
    0 means that the first class is 1, void 11 behind eleven classes moves
    none.

    Args:
        num_classes (int): Number of classes.
        void (int | Iterable[int]): Values of pixels that are not judged, 0 to
            255. 255 always is one.

    Returns:
        list[int]: ``num_classes`` values, ascending.

    Raises:
        ValueError: If a void value is out of its range or the classes do not
            fit beside the void values.
    """
    void = {int(void)} if np.ndim(void) == 0 else {int(v) for v in void}
    if any(not 0 <= value <= 255 for value in void):
        raise ValueError(f'void must be mask values from 0 to 255, got '
                         f'{sorted(void)}')
    values = [v for v in range(IGNORED) if v not in void][:num_classes]
    if len(values) < num_classes or num_classes >= _UNKNOWN:
        raise ValueError(f'{num_classes} classes do not fit beside void '
                         f'{sorted(void)}: a mask has one byte a pixel')
    return values


@TRANSFORMS.register_module()
class MaskValuesToClasses(BaseTransform):
    """Number the pixels of a mask by class, and refuse what is none.

    mmseg would hand any value on to the loss, which trains on nonsense, or
    stops without the name of the file.

    Required Keys:

    - gt_seg_map (optional: there is none at inference)
    - img_shape
    - seg_map_path

    Modified Keys:

    - gt_seg_map

    Args:
        num_classes (int): Number of classes.
        void (int | Sequence[int]): Values of pixels that are not judged; see
            :func:`class_values`. 255 always is one. Defaults to 255.
    """

    def __init__(self, num_classes: int, void=IGNORED) -> None:
        self.values = class_values(num_classes, void)
        self.void = sorted(
            {IGNORED}.union([void] if np.ndim(void) == 0 else void))
        self.table = np.full(256, _UNKNOWN, np.uint8)
        self.table[self.void] = IGNORED
        self.table[self.values] = np.arange(num_classes)

    def unknown(self, values: Iterable[int]) -> List[int]:
        """Which values are neither a class nor void.

        Args:
            values (Iterable[int]): Values of a mask.

        Returns:
            list[int]: Ascending.
        """
        known = {*self.values, *self.void}
        return sorted({int(value) for value in values} - known)

    def transform(self, results: dict) -> dict:
        """Number the classes.

        Args:
            results (dict): See the required keys.

        Returns:
            dict: ``results``.

        Raises:
            ValueError: If the mask has colours, or a value that is neither a
                class nor void.
        """
        mask = results.get('gt_seg_map')
        if mask is None:
            return results
        if mask.ndim != 2:
            raise ValueError(
                f'{results["seg_map_path"]} holds colours, not the numbers of '
                'classes: tools/dataset/recode_masks.py exchanges them')
        classes = self.table[mask]
        if (classes == _UNKNOWN).any():
            raise ValueError(
                f'{results["seg_map_path"]} holds '
                f'{self.unknown(np.unique(mask))}, which are neither classes '
                f'({self.values[0]} to {self.values[-1]}) nor void '
                f'({self.void}). tools/dataset/check.py lists all such files')
        results['gt_seg_map'] = classes
        return results

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(num_classes={len(self.values)}, '
                f'void={self.void})')
