"""Small submissions, and the tools that check them."""
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

ROOT = Path(__file__).resolve().parents[2]
SIZES = {11: (40, 60), 12: (60, 40), 25: (31, 33)}
"""Height and width of each image id."""


def load(path):
    """A module of another folder."""
    spec = importlib.util.spec_from_file_location(f'_{path.stem}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake_data = load(ROOT / 'tests' / 'test_configs' / 'fake_data.py')


def call(monkeypatch, name, *args):
    """Run a tool in this process.

    Its code to exit with, and the error where there is one.
    """
    tool = load(ROOT / 'tools' / f'{name}.py')
    monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
    try:
        tool.main()
    except SystemExit as e:
        # What Python does with a message.
        return (1, e.code) if isinstance(e.code, str) else (e.code, '')
    return 0, ''


def write_test_set(path, sizes=None):
    """An annotation file with the ids of COCO's categories."""
    gaps = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
    path.write_text(
        json.dumps(
            dict(
                images=[
                    dict(id=i, height=h, width=w, file_name=f'{i:012d}.jpg')
                    for i, (h, w) in (sizes or SIZES).items()
                ],
                categories=[
                    dict(id=i, name=str(i)) for i in range(1, 91)
                    if i not in gaps
                ])))
    return path


def rle(height, width, top=3, left=5):
    """A mask as results hold it."""
    mask = np.zeros((height, width), np.uint8, 'F')
    mask[top:top + 9, left:left + 7] = 1
    found = coco_mask.encode(mask)
    return dict(size=found['size'], counts=found['counts'].decode())


def detections(kind):
    """Two in each image."""
    found = []
    for image, (height, width) in SIZES.items():
        for number in range(2):
            found.append(
                dict(
                    image_id=image,
                    bbox=[5., 3. + number, 7., 9.],
                    score=0.25 + 0.5 * number,
                    category_id=(1, 90)[number]))
            if kind == 'segm':
                found[-1]['segmentation'] = rle(height, width, 3 + number)
    return found


def write_maps(folder, images):
    """Test images and the label maps of them, with labels 1 and 150."""
    folder.mkdir()
    images.mkdir()
    for index, (height, width) in enumerate(SIZES.values()):
        name = f'ADE_test_{index:08d}'
        fake_data.picture(images / f'{name}.jpg', height, width, index)
        labels = np.full((height, width), 1 + index, np.uint8)
        labels[:, :9] = 150
        Image.fromarray(labels).save(folder / f'{name}.png')
