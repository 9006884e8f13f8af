"""Tiny data sets, clean ones, for tests to break."""
import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
from mmengine.config import Config
from PIL import Image

import mmcsan  # noqa: F401  # before mmdet: it may lack mmcv's operators

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / 'configs' / 'own_dataset'
SEMANTIC = OWN / 'csan-swin-tiny_upernet_1xb4-4k_own-semseg.py'
INSTANCE = OWN / 'csan-swin-tiny_mask-rcnn_1xb4-24e_own-coco.py'
WIDTH, HEIGHT = 40, 32


def write_config(source, folder, **changes):
    """A copy of an own-data config with other values at its top."""
    text = source.read_text().replace('../_base_', f'{ROOT}/configs/_base_')
    for name, value in {'data_root': f'{folder}/', **changes}.items():
        text, count = re.subn(
            rf'^{name} = [^#\n]*', f'{name} = {value!r}  ', text, flags=re.M)
        assert count == 1, name
    path = folder / 'own.py'
    path.write_text(text)
    return path


def picture(path, seed, size=(WIDTH, HEIGHT)):
    """An image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(
        40, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def mask(values=(0, 1), dtype=np.uint8, size=(WIDTH, HEIGHT)):
    """A mask of one column band a value."""
    columns = np.arange(size[0]) * len(values) // size[0]
    return np.tile(np.asarray(values, dtype)[columns], (size[1], 1))


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def semantic_set(folder, values=(0, 1)):
    """Three images to train on, two to validate, and their masks."""
    for split, names in (('train', 'abc'), ('val', 'de')):
        for name in names:
            picture(folder / split / f'{name}.png', ord(name))
            save(folder / f'{split}_masks' / f'{name}.png', mask(values))


def semantic_config(folder, **changes):
    return write_config(SEMANTIC, folder, **{
        'image_suffix, mask_suffix': ('.png', '.png'), **changes})


def polygon(x, y, width, height):
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def coco(names, first_id):
    """The content of a COCO file: two objects an image, one a class."""
    images, annotations = [], []
    for index, name in enumerate(names):
        images.append(dict(id=first_id + index, file_name=f'{name}.png',
                           width=WIDTH, height=HEIGHT))
        for category in (1, 2):
            box = [4 * category, 5, 12, 10]
            annotations.append(dict(
                id=len(annotations) + 1, image_id=first_id + index,
                category_id=category, bbox=box, area=120, iscrowd=0,
                segmentation=polygon(*box)))
    return dict(images=images, annotations=annotations,
                categories=[dict(id=1, name='cat'), dict(id=2, name='dog')])


def coco_set(folder):
    """Three images to train on, two to validate, and their COCO files."""
    for split, names in (('train', 'abc'), ('val', 'de')):
        for name in names:
            picture(folder / split / f'{name}.png', ord(name))
        write_coco(folder, split, coco(names, 1))


def write_coco(folder, split, content):
    (folder / f'instances_{split}.json').write_text(json.dumps(content))


def coco_config(folder, **changes):
    return write_config(INSTANCE, folder, **{
        'classes': ('cat', 'dog'), **changes})


def check(path, **options):
    """The report on a config."""
    from mmcsan.datasets.checking import check_config
    return check_config(Config.fromfile(path), **options)


def found(report):
    """Level, split, file and detail of each fault, by code."""
    faults = {}
    for split in report.splits:
        for fault in split.faults:
            faults.setdefault(fault.code, []).append(
                (fault.level, split.name, fault.file, fault.detail))
    return faults


def tool(name):
    """The module of a tool of tools/dataset."""
    folder = ROOT / 'tools' / 'dataset'
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(
        f'dataset_{name}', folder / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(monkeypatch, name, *args):
    """Run a tool in this process; raises SystemExit where it fails."""
    module = tool(name)
    monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
    module.main()
