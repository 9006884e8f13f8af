"""Each fault of a folder of masks is found, by its file."""
import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from sets import (HEIGHT, WIDTH, check, found, mask, picture, save,
                  semantic_config, semantic_set)

A = 'train_masks/a.png'


def rotated(folder, size, orientation):
    """An image with an EXIF tag, as a camera writes it."""
    image = Image.effect_noise(size, 60).convert('RGB')
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(folder / 'train' / 'a.png', exif=exif)


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def all_masks(folder, values):
    for path in folder.glob('*_masks/*.png'):
        save(path, mask(values))


def coloured(path):
    save(path, np.stack([mask((0, 128))] * 3, -1))


def sixteen(path, top):
    save(path, (mask((0, 1)).astype(np.uint16) * top))


BROKEN = {
    'value': (lambda d: save(d / A, mask((0, 1, 7))), 'mask-values', A,
              '7 ('),
    '0 and 255': (lambda d: all_masks(d, (0, 255)), 'mask-0-255',
                  'train_masks', '3 masks'),
    'colours': (lambda d: coloured(d / A), 'mask-colours', A, 'RGB'),
    '16 bits': (lambda d: sixteen(d / A, 300), 'mask-16bit', A, '300'),
    'mask size': (lambda d: save(d / A, mask(size=(20, 16))), 'mask-size', A,
                  '20 x 16'),
    'mask missing': (lambda d: (d / A).unlink(), 'mask-missing',
                     'train/a.png', A),
    'image missing': (lambda d: (d / 'train/a.png').unlink(), 'mask-alone', A,
                      ''),
    'mask suffix': (lambda d: (d / A).rename(d / 'train_masks/a.PNG'),
                    'mask-missing', 'train/a.png', 'there is a.PNG'),
    'image suffix': (lambda d: picture(d / 'train/z.JPG', 1), 'image-suffix',
                     'train/z.JPG', '*.png'),
    'no images': (lambda d: [p.rename(p.with_suffix('.jpeg'))
                             for p in (d / 'train').iterdir()], 'no-images',
                  'train', '3 of .jpeg'),
    'folder': (lambda d: (d / 'val_masks').rename(d / 'masks'),
               'folder-missing', 'val_masks', ''),
    'mask cut short': (lambda d: (d / A).write_bytes(b'none'),
                       'mask-unreadable', A, ''),
    'image cut short': (lambda d: cut(d / 'train/a.png'), 'image-unreadable',
                        'train/a.png', ''),
    'turned': (lambda d: rotated(d, (HEIGHT, WIDTH), 6) or save(
        d / A, mask(size=(HEIGHT, WIDTH))), 'image-exif-size', A,
               'orientation 6'),
    'dark': (lambda d: sixteen(d / 'train/a.png', 1000), 'image-dark',
             'train/a.png', '1000'),
    'leak': (lambda d: (d / 'val/d.png').write_bytes(
        (d / 'train/b.png').read_bytes()), 'leak', 'val/d.png',
             'train/b.png'),
}
NOTES = {
    'upside down': (lambda d: rotated(d, (WIDTH, HEIGHT), 3), 'image-exif', A,
                    'orientation 3'),
    '16 bits': (lambda d: sixteen(d / 'train/a.png', 60000), 'image-16bit',
                'train/a.png', '60000'),
    'grey': (lambda d: save(d / 'train/a.png', mask((9, 90))), 'image-grey',
             'train/a.png', ''),
    'alpha': (lambda d: Image.open(d / 'train/a.png').convert('RGBA').save(
        d / 'train/a.png'), 'image-alpha', 'train/a.png', ''),
    'copy': (lambda d: (d / 'train/b.png').write_bytes(
        (d / 'train/a.png').read_bytes()), 'image-twice', 'train/b.png',
             'train/a.png'),
    'non-ASCII': (lambda d: [p.rename(p.with_name('ä.png')) for p in (
        d / 'train/a.png', d / A)], 'path-non-ascii', 'train/ä.png', ''),
    'void alone': (lambda d: save(d / A, mask((255, ))), 'mask-void', A, ''),
    'class unused': (lambda d: [save(p, mask((0, ))) for p in (
        d / 'val_masks').iterdir()], 'class-unused', 'thing', ''),
}


@pytest.mark.parametrize('level, name', [
    *(('error', name) for name in BROKEN), *(('note', name) for name in NOTES)
])
def test_fault(level, name, tmp_path):
    spoil, code, file, detail = dict(error=BROKEN, note=NOTES)[level][name]
    semantic_set(tmp_path)
    spoil(tmp_path)
    report = check(semantic_config(tmp_path))
    [fault] = [f for f in found(report)[code] if f[2].endswith(file)][:1]
    assert fault[0] == level
    assert detail in fault[3]
    assert bool(report.count('error')) == (level == 'error')
    assert f'{code} (' in report.to_text() and file in report.to_text()


def test_clean(tmp_path):
    semantic_set(tmp_path)
    report = check(semantic_config(tmp_path))
    assert not found(report)
    train = report.splits[0]
    assert (train.images, train.used) == (3, 3)
    assert train.sizes == {(WIDTH, HEIGHT): 3}
    assert train.rows == [('background', '0', 3, 3 * 640, 50.0),
                          ('thing', '1', 3, 3 * 640, 50.0)]


def test_palette_png_of_class_numbers_is_clean(tmp_path):
    semantic_set(tmp_path)
    for path in tmp_path.glob('*_masks/*.png'):
        image = Image.fromarray(mask()).convert('P')
        image.putpalette([0, 0, 0, 255, 0, 0] + [9] * 762)
        image.save(path)
    assert not found(check(semantic_config(tmp_path)))


def test_the_cure_of_0_255_is_named(tmp_path):
    semantic_set(tmp_path, (0, 255))
    text = check(semantic_config(tmp_path)).to_text()
    assert 'recode_masks.py' in text and '--map 0=0 255=1' in text


# Masks, void, the values of two classes and whether all is well.
@pytest.mark.parametrize('values, void, classes, clean', [
    ((0, 1, 255), 255, ('0', '1'), True),
    ((0, 1, 2), 2, ('0', '1'), True),
    ((0, 1, 2), 0, ('1', '2'), True),
    ((0, 1, 2, 9), (1, 9), ('0', '2'), True),
    ((0, 1, 2), 255, ('0', '1'), False),
    ((0, 1), 0, ('1', '2'), False),
])
def test_void(values, void, classes, clean, tmp_path):
    semantic_set(tmp_path, values)
    report = check(semantic_config(tmp_path, void=void))
    assert tuple(row[1] for row in report.splits[0].rows[:2]) == classes
    assert (report.count('error') == 0) == clean
    if clean:
        assert report.splits[0].rows[2][0] == '(not judged)'
        assert not report.count('note')


def plain_config(folder, **dataset):
    """A config of mmseg alone, without this project's transform."""
    settings = dict(
        type='BaseSegDataset', data_root=str(folder), img_suffix='.png',
        data_prefix=dict(img_path='train', seg_map_path='train_masks'),
        metainfo=dict(classes=('one', 'two')), **dataset)
    return Config(dict(
        default_scope='mmseg',
        train_dataloader=dict(dataset=dict(
            type='RepeatDataset', times=2, dataset=settings))))


@pytest.mark.parametrize('values, reduce, code', [
    ((0, 1, 2), True, None),
    ((0, 1), True, 'mask-zero'),
    ((1, 2), False, 'mask-values'),
])
def test_reduce_zero_label(values, reduce, code, tmp_path):
    from mmcsan.datasets.checking import check_config
    semantic_set(tmp_path, values)
    cfg = plain_config(tmp_path, reduce_zero_label=reduce)
    report = check_config(cfg, ['train'])
    errors = {c for c, f in found(report).items() if f[0][0] == 'error'}
    assert errors == ({code} if code else set())


def test_lists(tmp_path):
    semantic_set(tmp_path)
    for name, stems in (('train.txt', 'ab'), ('val.txt', 'cz')):
        (tmp_path / name).write_text('\n'.join(stems))
    report = check(semantic_config(tmp_path, **{
        'train_list, val_list': ('train.txt', 'val.txt'),
        'val_images, val_masks': ('train', 'train_masks')}))
    assert report.splits[0].images == 2
    assert {k: v[0][2] for k, v in found(report).items()} == {
        'image-missing': 'train/z.png'}


@pytest.mark.parametrize('classes, code', [
    ('thing', 'classes-text'), (('one', ), 'classes-few')])
def test_classes(classes, code, tmp_path):
    from mmcsan.datasets.checking import check_config
    semantic_set(tmp_path)
    cfg = plain_config(tmp_path)
    cfg.train_dataloader.dataset.dataset.metainfo.classes = classes
    assert code in found(check_config(cfg, ['train']))


def test_heads(tmp_path):
    semantic_set(tmp_path)
    cfg = Config.fromfile(semantic_config(tmp_path))
    cfg.model.auxiliary_head.num_classes = 19
    from mmcsan.datasets.checking import check_config
    [fault] = found(check_config(cfg, ['train']))['classes-heads']
    assert fault[2:] == ('model.auxiliary_head', '19, but there are 2 classes')
