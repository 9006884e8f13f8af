"""From the values of masks to classes, in the pipeline."""
import numpy as np
import pytest

from mmcsan.datasets import MaskValuesToClasses


def results(mask):
    return dict(gt_seg_map=np.array(mask, np.uint8), seg_map_path='m/a.png')


@pytest.mark.parametrize('void, mask, wanted', [
    (255, [[0, 1], [2, 255]], [[0, 1], [2, 255]]),
    (3, [[0, 1], [2, 3]], [[0, 1], [2, 255]]),
    (0, [[0, 1], [2, 3]], [[255, 0], [1, 2]]),
    ((1, 9), [[0, 1], [2, 3], [9, 255]], [[0, 255], [1, 2], [255, 255]]),
])
def test_classes(void, mask, wanted):
    transform = MaskValuesToClasses(3, void)
    got = transform(results(mask))['gt_seg_map']
    assert got.dtype == np.uint8
    assert got.tolist() == wanted


@pytest.mark.parametrize('mask, message', [
    ([[0, 7], [3, 0]], r'm/a.png holds \[3, 7\]'),
    ([[[0, 0, 0], [1, 1, 1]]], 'm/a.png holds colours'),
])
def test_what_is_no_class_is_an_error(mask, message):
    with pytest.raises(ValueError, match=message):
        MaskValuesToClasses(3)(results(mask))


@pytest.mark.parametrize('number, void, message', [
    (2, 256, '0 to 255'), (2, (-1, ), '0 to 255'), (254, 255, 'do not fit'),
    (250, tuple(range(9)), 'do not fit')])
def test_settings(number, void, message):
    with pytest.raises(ValueError, match=message):
        MaskValuesToClasses(number, void)


def test_without_a_mask_there_is_nothing_to_do():
    assert MaskValuesToClasses(3)(dict(img=1)) == dict(img=1)


def test_mmseg_finds_it_by_name():
    from mmseg.registry import TRANSFORMS
    transform = TRANSFORMS.build(
        dict(type='mmcsan.MaskValuesToClasses', num_classes=2, void=[4]))
    assert repr(transform).endswith('(num_classes=2, void=[4, 255])')
