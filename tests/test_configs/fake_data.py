"""Tiny data in the formats of ImageNet, ADE20K and COCO."""
import json
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, height: int, width: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(
        0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def imagenet(root: Path) -> None:
    """Four images and the lists that tell their classes."""
    (root / 'meta').mkdir(parents=True)
    for split in ('train', 'val'):
        lines = []
        for index in range(4):
            name = f'n0144{index:04d}/{split}_{index}.JPEG'
            picture(root / split / name, 40, 56, index)
            lines.append(f'{name} {index * 333}')
        (root / 'meta' / f'{split}.txt').write_text('\n'.join(lines))


def ade20k(root: Path) -> None:
    """Labels 0 (ignored) and 1 to 150, as the data set has them."""
    for split in ('training', 'validation'):
        for index in range(3):
            name = f'ADE_{split}_{index:08d}'
            picture(root / 'images' / split / f'{name}.jpg', 64, 80, index)
            labels = np.random.RandomState(index).randint(
                0, 151, (64, 80), dtype=np.uint8)
            path = root / 'annotations' / split / f'{name}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(labels).save(path)


def coco(root: Path) -> None:
    """Boxes and polygons of two of the 80 classes."""
    from mmdet.datasets import CocoDataset
    (root / 'annotations').mkdir(parents=True)
    # Numbers with gaps, as the real ones have.
    categories = [
        dict(id=number + number // 12, name=name)
        for number, name in enumerate(CocoDataset.METAINFO['classes'], 1)
    ]
    for split in ('train2017', 'val2017'):
        images, annotations = [], []
        for index in range(4):
            name = f'{index:012d}.jpg'
            picture(root / split / name, 64, 96, index)
            images.append(
                dict(id=index, file_name=name, height=64, width=96))
            for number in range(2):
                x, y, w, h = 8 + 30 * number, 10, 32, 40
                annotations.append(
                    dict(
                        id=2 * index + number + 1,
                        image_id=index,
                        category_id=categories[number]['id'],
                        bbox=[x, y, w, h],
                        area=w * h,
                        iscrowd=0,
                        segmentation=[[
                            x, y, x + w, y, x + w, y + h, x, y + h
                        ]]))
        (root / 'annotations' / f'instances_{split}.json').write_text(
            json.dumps(
                dict(
                    images=images,
                    annotations=annotations,
                    categories=categories)))
