"""Each fault of a COCO file is found, by its image or entry."""
import json

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as mask_utils
from sets import (HEIGHT, WIDTH, check, coco, coco_config, coco_set, found,
                  mask, picture, polygon, save, write_coco)

NAN = float('nan')


def rle(height=HEIGHT, width=WIDTH):
    bitmap = np.zeros((height, width), np.uint8, order='F')
    bitmap[5:15, 4:16] = 1
    encoded = mask_utils.encode(bitmap)
    return dict(size=[height, width], counts=encoded['counts'].decode())


def first(**values):
    """Change the first annotation."""
    return lambda c: c['annotations'][0].update(values)


def without(part, key):
    return lambda c: c[part][0].pop(key)


def change(part, key, value, index=0):
    return lambda c: c[part][index].update({key: value})


OBJECT = 'annotation 1'
# What is done to the content of the file; code; where; what is told.
BROKEN = {
    'category': (change('categories', 'name', 'Cat '), 'category-missing',
                 'instances_train.json', "did you mean 'Cat '?"),
    'order': (lambda c: c['categories'].reverse(), 'category-order',
              'instances_train.json', "write ('dog', 'cat')"),
    'category id twice': (change('categories', 'id', 1, 1), 'category-twice',
                          'instances_train.json', "id '1'"),
    'category name twice': (lambda c: c['categories'].append(
        dict(id=3, name='cat')), 'category-twice', 'instances_train.json',
                            "name 'cat'"),
    'image id twice': (change('images', 'id', 2), 'image-id-twice',
                       'instances_train.json', 'id 2, 2 times'),
    'file twice': (change('images', 'file_name', 'b.png'), 'file-name-twice',
                   'instances_train.json', 'b.png'),
    'annotation id twice': (first(id=2), 'annotation-id-twice',
                            'instances_train.json', 'id 2'),
    'unknown image': (first(image_id=99), 'annotation-image',
                      'instances_train.json', 'image 99'),
    'image id as text': (first(image_id='1'), 'annotation-image',
                         'instances_train.json', "image '1'"),
    'unknown category': (first(category_id=9), 'annotation-category',
                         'instances_train.json', 'category 9'),
    'no width': (without('images', 'width'), 'key-missing',
                 'instances_train.json', 'width of image 1'),
    'no box': (without('annotations', 'bbox'), 'key-missing', 'a.png',
               'bbox of annotation 1'),
    'no area': (without('annotations', 'area'), 'key-missing', 'a.png',
                'area of'),
    'width as text': (change('images', 'width', '40'), 'value',
                      'instances_train.json', "width '40' of image 1"),
    'area as text': (first(area='120'), 'value', 'a.png', "area '120'"),
    'counts as text': (first(segmentation=dict(
        size=[HEIGHT, WIDTH], counts=['1', '2'])), 'rle', 'a.png', OBJECT),
    'ids as lists': (first(image_id=[1]), 'json', 'instances_train.json',
                     'annotations'),
    'entry size': (change('images', 'width', 99), 'image-size',
                   'train/a.png', '99 x 32'),
    'box text': (first(bbox='1 2 3 4'), 'box-malformed', 'a.png', OBJECT),
    'box of three': (first(bbox=[1, 2, 3]), 'box-malformed', 'a.png', OBJECT),
    'box nan': (first(bbox=[NAN, 2, 3, 4]), 'box-malformed', 'a.png', OBJECT),
    'no width of box': (first(bbox=[4, 5, 0, 9]), 'box-degenerate', 'a.png',
                        OBJECT),
    'negative box': (first(bbox=[9, 9, -5, -5]), 'box-degenerate', 'a.png',
                     OBJECT),
    'box beyond': (first(bbox=[30, 5, 25, 9]), 'box-outside', 'a.png',
                   OBJECT),
    'box far beyond': (first(bbox=[90, 5, 9, 9]), 'box-outside', 'a.png',
                       OBJECT),
    'no mask': (without('annotations', 'segmentation'), 'mask-absent',
                'a.png', OBJECT),
    'two points': (first(segmentation=[[1, 1, 5, 5]]), 'polygon', 'a.png',
                   '4 values'),
    'odd': (first(segmentation=[[1, 1, 5, 5, 9, 1, 3]]), 'polygon', 'a.png',
            '7 values'),
    'flat polygon': (first(segmentation=[1, 1, 5, 5, 9, 1]), 'polygon',
                     'a.png', 'list of lists'),
    'rle size': (first(segmentation=rle(WIDTH, HEIGHT)), 'rle-size', 'a.png',
                 OBJECT),
    'rle counts': (first(segmentation=dict(size=[HEIGHT, WIDTH],
                                           counts='abc')), 'rle', 'a.png',
                   OBJECT),
    'rle sum': (first(segmentation=dict(size=[HEIGHT, WIDTH],
                                        counts=[5, 9])), 'rle', 'a.png',
                '14 pixels'),
    'no pixel': (first(segmentation=dict(size=[HEIGHT, WIDTH],
                                         counts=[HEIGHT * WIDTH])),
                 'mask-empty', 'a.png', OBJECT),
    'x and y exchanged': (first(segmentation=polygon(25, 20, 9, 9)),
                          'mask-box', 'a.png', OBJECT),
    'no list': (lambda c: c.pop('categories'), 'json',
                'instances_train.json', 'categories'),
    'nothing left': (lambda c: c['annotations'].clear(), 'no-objects',
                     'train', ''),
}
NOTES = {
    'crowd': (first(iscrowd=1), 'crowd', 'a.png', OBJECT),
    'ignored': (first(ignore=1), 'ignored', 'a.png', OBJECT),
    'no objects': (lambda c: [c['annotations'].pop(0) for _ in range(2)],
                   'image-empty', 'a.png', ''),
    'other category': (lambda c: c['categories'].append(
        dict(id=3, name='cow')), 'category-left-out', 'instances_train.json',
                       'cow'),
    'image 0': (lambda c: [c['images'][0].update(id=0)] + [
        a.update(image_id=0) for a in c['annotations'][:2]], 'id-0',
                'instances_train.json', 'a.png'),
    'category 0': (lambda c: [c['categories'][0].update(id=0)] + [
        a.update(category_id=0) for a in c['annotations'][::2]], 'id-0',
                   'instances_train.json', 'category'),
    'annotation 0': (first(id=0), 'annotation-id-0', 'instances_train.json',
                     ''),
    'class unused': (lambda c: [c['annotations'].pop(i) for i in (5, 3, 1)],
                     'class-unused', 'dog', ''),
}


@pytest.mark.parametrize('level, name', [
    *(('error', name) for name in BROKEN), *(('note', name) for name in NOTES)
])
def test_fault_of_the_file(level, name, tmp_path):
    spoil, code, file, detail = dict(error=BROKEN, note=NOTES)[level][name]
    coco_set(tmp_path)
    content = coco('abc', 1)
    spoil(content)
    write_coco(tmp_path, 'train', content)
    report = check(coco_config(tmp_path))
    [fault] = [f for f in found(report)[code] if f[2] == file][:1]
    assert fault[0] == level
    assert detail in fault[3]
    assert bool(report.count('error')) == (level == 'error')


def leak(folder):
    (folder / 'val/d.png').write_bytes((folder / 'train/a.png').read_bytes())


def turned(folder):
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.open(folder / 'train/a.png').save(folder / 'train/a.png', exif=exif)


FILES = {
    'missing': (lambda d: (d / 'train/a.png').unlink(), 'image-missing',
                'train/a.png', 'error'),
    'cut short': (lambda d: (d / 'train/a.png').write_bytes(
        (d / 'train/a.png').read_bytes()[:-200]), 'image-unreadable',
                  'train/a.png', 'error'),
    'turned': (turned, 'image-exif-size', 'train/a.png', 'error'),
    'other size': (lambda d: picture(d / 'train/a.png', 1, (20, 16)),
                   'image-size', 'train/a.png', 'error'),
    'leak': (leak, 'leak', 'val/d.png', 'error'),
    'unlisted': (lambda d: picture(d / 'train/z.png', 1), 'image-unlisted',
                 'train/z.png', 'note'),
    'grey': (lambda d: save(d / 'train/a.png', mask((9, 90))), 'image-grey',
             'train/a.png', 'note'),
    'no json': (lambda d: (d / 'instances_train.json').write_text('{'),
                'json', 'instances_train.json', 'error'),
    'no file': (lambda d: (d / 'instances_val.json').unlink(),
                'folder-missing', 'instances_val.json', 'error'),
}


@pytest.mark.parametrize('name', FILES)
def test_fault_of_files(name, tmp_path):
    spoil, code, file, level = FILES[name]
    coco_set(tmp_path)
    spoil(tmp_path)
    report = check(coco_config(tmp_path))
    assert [f for f in found(report)[code]
            if f[2].endswith(file) and f[0] == level]
    assert bool(report.count('error')) == (level == 'error')


@pytest.mark.parametrize('spoil, code', [
    (first(id=0), 'annotation-id-0'),
    (without('annotations', 'iscrowd'), 'key-missing'),
])
def test_what_only_scoring_minds(spoil, code, tmp_path):
    coco_set(tmp_path)
    content = coco('de', 1)
    spoil(content)
    write_coco(tmp_path, 'val', content)
    [fault] = found(check(coco_config(tmp_path)))[code]
    assert fault[:2] == ('error', 'val')


@pytest.mark.parametrize('masks', [True, False])
def test_clean(masks, tmp_path):
    coco_set(tmp_path)
    for split, names in (('train', 'abc'), ('val', 'de')):
        content = coco(names, 1)
        content['annotations'][0]['segmentation'] = rle()
        if not masks:
            del content['annotations'][0]['segmentation']
        write_coco(tmp_path, split, content)
    report = check(coco_config(tmp_path, masks=masks))
    assert not found(report)
    assert report.splits[0].rows == [('cat', 3, 3, 50.0, 0),
                                     ('dog', 3, 3, 50.0, 0)]
    assert report.splits[0].used == 3


def test_heads(tmp_path):
    from mmcsan.datasets.checking import check_config
    coco_set(tmp_path)
    cfg = Config.fromfile(coco_config(tmp_path))
    cfg.model.roi_head.mask_head.num_classes = 80
    [fault] = found(check_config(cfg, ['train']))['classes-heads']
    assert fault[2] == 'model.roi_head.mask_head'


def test_report_is_json(tmp_path):
    coco_set(tmp_path)
    leak(tmp_path)
    read = json.loads(json.dumps(check(coco_config(tmp_path)).to_dict()))
    assert read['errors'] == 1
    [fault] = read['splits']['val']['faults']
    assert fault['code'] == 'leak' and fault['cure'] and fault['message']


def test_other_data_is_refused(tmp_path):
    from mmcsan.datasets.checking import check_config
    cfg = Config.fromfile(coco_config(tmp_path))
    cfg.train_dataloader.dataset = dict(type='XMLDataset', ann_file='a')
    with pytest.raises(ValueError, match='voc2coco'):
        check_config(cfg, ['train'])
