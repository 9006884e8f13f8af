"""The tools that turn data into what the own-data configs read."""
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as mask_utils
from sets import (HEIGHT, WIDTH, call, check, coco, coco_config, coco_set,
                  found, mask, picture, polygon, save, semantic_config,
                  semantic_set)


def read(path):
    return json.loads(path.read_text())


# ---- VOC --------------------------------------------------------------------


def voc(folder, name, objects, size=(WIDTH, HEIGHT)):
    """An image and its XML file; objects are name, corners, difficult."""
    picture(folder / 'images' / f'{name}.jpg', ord(name[0]))
    parts = ''.join(
        f'<object><name>{label}</name><difficult>{difficult}</difficult>'
        '<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>'
        '</bndbox></object>'.format(*corners)
        for label, corners, difficult in objects)
    shape = size and (f'<size><width>{size[0]}</width>'
                      f'<height>{size[1]}</height></size>') or ''
    path = folder / 'xml' / f'{name}.xml'
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'<annotation>{shape}<filename>other.jpg</filename>'
                    f'{parts}</annotation>')


def voc_set(folder):
    voc(folder, 'a', [('dog', (1, 1, WIDTH, HEIGHT), 0),
                      ('cat', (5, 6, 14, 25), 1)])
    voc(folder, 'b', [('cow', (2.5, 3, 8, 9), 0)], size=None)
    voc(folder, 'c', [])


def convert_voc(monkeypatch, folder, *options):
    call(monkeypatch, 'voc2coco', folder / 'xml', folder / 'images',
         folder / 'out.json', *options)
    return read(folder / 'out.json')


def test_voc(tmp_path, monkeypatch, capsys):
    voc_set(tmp_path)
    content = convert_voc(monkeypatch, tmp_path)
    assert "classes = ('cat', 'cow', 'dog')" in capsys.readouterr().out
    assert [i['file_name'] for i in content['images']] == [
        'a.jpg', 'b.jpg', 'c.jpg']
    assert [c['name'] for c in content['categories']] == ['cat', 'cow', 'dog']
    assert [(a['id'], a['image_id'], a['category_id'], a['bbox'],
             a['iscrowd']) for a in content['annotations']] == [
        (1, 1, 3, [0, 0, WIDTH, HEIGHT], 0), (2, 1, 1, [4, 5, 10, 20], 1),
        (3, 2, 2, [1.5, 2, 6.5, 7], 0)]
    before = (tmp_path / 'out.json').read_bytes()
    convert_voc(monkeypatch, tmp_path)
    assert (tmp_path / 'out.json').read_bytes() == before


def test_voc_of_some_classes_and_files(tmp_path, monkeypatch, capsys):
    voc_set(tmp_path)
    (tmp_path / 'list.txt').write_text('a 1\nc -1\n')
    content = convert_voc(monkeypatch, tmp_path, '--list',
                          tmp_path / 'list.txt', '--classes', 'dog', 'cow')
    assert [i['file_name'] for i in content['images']] == ['a.jpg', 'c.jpg']
    assert [a['category_id'] for a in content['annotations']] == [1]
    assert '1 objects of other classes left out' in capsys.readouterr().out


def test_voc_that_counts_from_0(tmp_path, monkeypatch, capsys):
    voc(tmp_path, 'a', [('dog', (0, 0, 10, 8), 0), ('dog', (9, 9, 9, 9), 0),
                        ('dog', (30, 20, 50, 25), 0)])
    boxes = [a['bbox'] for a in convert_voc(monkeypatch,
                                            tmp_path)['annotations']]
    assert boxes == [[0, 0, 10, 8], [8, 8, 1, 1], [29, 19, 11, 6]]
    assert '--zero-based' in capsys.readouterr().out
    content = convert_voc(monkeypatch, tmp_path, '--zero-based')
    assert [a['bbox'] for a in content['annotations']] == [
        [0, 0, 10, 8], [30, 20, 10, 5]]
    assert '1 boxes left out' in capsys.readouterr().out


def broken_xml(folder):
    (folder / 'xml' / 'a.xml').write_text('<annotation><object><name>x</name>'
                                          '</object></annotation>')


@pytest.mark.parametrize('spoil, options, message', [
    (lambda d: None, ('--classes', 'fish'), 'no object is named fish'),
    (lambda d: (d / 'images/b.jpg').unlink(), (), r'b.xml has no image'),
    (lambda d: picture(d / 'images/a.jpg', 1, (9, 9)), (), r'has \[9, 9\]'),
    (broken_xml, (), 'a.xml is no VOC annotation'),
    (lambda d: (d / 'l.txt').write_text('z'), ('--list', 'l.txt'),
     'names 1 files'),
    (lambda d: shutil.rmtree(d / 'xml'), (), 'there is no folder'),
])
def test_voc_that_is_broken(spoil, options, message, tmp_path, monkeypatch):
    voc_set(tmp_path)
    spoil(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        convert_voc(monkeypatch, tmp_path, *options)
    assert not (tmp_path / 'out.json').exists()


# ---- masks ------------------------------------------------------------------


def blobs():
    """Two squares of class 1 and one of class 2, by class and by object."""
    classes = np.zeros((HEIGHT, WIDTH), np.uint8)
    objects = np.zeros((HEIGHT, WIDTH), np.uint16)
    for number, (x, label) in enumerate(((2, 1), (14, 1), (26, 2)), 1):
        classes[4:14, x:x + 8] = label
        objects[4:14, x:x + 8] = 1000 * label + number
    return classes, objects


def write_blobs(folder, kind):
    picture(folder / 'images' / 'a.png', 1)
    classes, objects = blobs()
    if kind == 'semantic':
        classes[-1] = 255
        save(folder / 'masks' / 'a.png', classes)
    elif kind == 'instances':
        save(folder / 'masks' / 'a.png', objects)
    else:
        for value in np.unique(objects[objects > 0]):
            name = ('cat', 'dog')[value // 1000 - 1]
            save(folder / 'masks' / 'a' / 'masks' / f'{name}_{value}.png',
                 255 * (objects == value).astype(np.uint8))


def convert_masks(monkeypatch, folder, kind, *options):
    call(monkeypatch, 'masks2coco', folder / 'images', folder / 'masks',
         folder / 'out.json', '--kind', kind, '--classes', 'cat', 'dog',
         *options)
    return read(folder / 'out.json')


@pytest.mark.parametrize('kind, options', [
    ('semantic', ()), ('instances', ('--divisor', '1000')), ('files', ())])
@pytest.mark.parametrize('polygons', [False, True])
def test_masks_and_back(kind, options, polygons, tmp_path, monkeypatch):
    write_blobs(tmp_path, kind)
    options += ('--polygons', ) * polygons
    content = convert_masks(monkeypatch, tmp_path, kind, *options)
    classes = np.zeros((HEIGHT, WIDTH), np.uint8)
    for item in content['annotations']:
        rle = item['segmentation']
        if polygons:
            rle = mask_utils.merge(
                mask_utils.frPyObjects(rle, HEIGHT, WIDTH))
        classes[mask_utils.decode(rle) > 0] = item['category_id']
        assert item['bbox'][1:] == [4, 8, 10] and item['area'] == 80
    assert [a['category_id'] for a in content['annotations']] == [1, 1, 2]
    # pycocotools leaves out the last row and column of an outline
    error = (classes != blobs()[0]).sum()
    assert error == (3 * (10 + 8 - 1) if polygons else 0)


def test_small_parts_are_left_out(tmp_path, monkeypatch, capsys):
    write_blobs(tmp_path, 'semantic')
    content = convert_masks(monkeypatch, tmp_path, 'semantic', '--min-area',
                            '81')
    assert not content['annotations']
    assert '3 parts left out' in capsys.readouterr().out


@pytest.mark.parametrize('kind, spoil, message', [
    ('semantic', lambda d: (d / 'masks/a.png').unlink(), 'there is no mask'),
    ('semantic', lambda d: save(d / 'masks/a.png', mask((0, 7))),
     r'holds \[7\]'),
    ('semantic', lambda d: save(d / 'masks/a.png', mask((0, 255))),
     'recode_masks'),
    ('semantic', lambda d: picture(d / 'masks/a.png', 1), 'holds colours'),
    ('semantic', lambda d: picture(d / 'images/a.png', 1, (9, 9)),
     'its mask 40 x 32'),
    ('instances', lambda d: None, 'need --divisor'),
    ('files', lambda d: shutil.rmtree(d / 'masks/a'), 'empty folder'),
    ('files', lambda d: save(d / 'masks/a/cow_1.png', mask()),
     'begins with none of cat, dog'),
])
def test_masks_that_are_broken(kind, spoil, message, tmp_path, monkeypatch):
    write_blobs(tmp_path, kind)
    spoil(tmp_path)
    with pytest.raises(SystemExit, match=message):
        convert_masks(monkeypatch, tmp_path, kind)


def test_what_is_converted_passes_the_check(tmp_path, monkeypatch):
    for split, letters in (('train', 'abc'), ('val', 'de')):
        for letter in letters:
            picture(tmp_path / split / f'{letter}.png', ord(letter))
            save(tmp_path / 'masks' / f'{letter}.png', blobs()[0])
        call(monkeypatch, 'masks2coco', tmp_path / split, tmp_path / 'masks',
             tmp_path / f'instances_{split}.json', '--kind', 'semantic',
             '--classes', 'cat', 'dog')
    assert not found(check(coco_config(tmp_path)))


# ---- values of masks --------------------------------------------------------


def recode(monkeypatch, folder, *options):
    call(monkeypatch, 'recode_masks', folder / 'old', folder / 'new',
         *options)
    return np.asarray(Image.open(folder / 'new' / 'a.png'))


@pytest.mark.parametrize('old, options', [
    (mask((0, 255)), ('0=0', '255=1')),
    (np.stack([mask((0, 255))] * 3, -1), ('0=0', '255=1')),
    (np.stack([mask((0, 128)), mask((0, 64)), mask((0, 0))], -1),
     ('0,0,0=0', '128,64,0=1')),
    (mask((0, 300), np.uint16), ('0=0', '300=1')),
    (mask((7, 9)), ('9=1', '--other', '0')),
])
def test_recode(old, options, tmp_path, monkeypatch):
    save(tmp_path / 'old' / 'a.png', old)
    new = recode(monkeypatch, tmp_path, '--map', *options)
    assert new.dtype == np.uint8 and (new == mask()).all()


@pytest.mark.parametrize('options, message', [
    (('0=0', ), 'holds 255, which --map does not name'),
    (('0=0', '255,0,0=1'), 'not both'),
])
def test_recode_refuses(options, message, tmp_path, monkeypatch):
    save(tmp_path / 'old' / 'a.png', mask((0, 255)))
    with pytest.raises(SystemExit, match=message):
        recode(monkeypatch, tmp_path, '--map', *options)


def test_recoded_masks_pass_the_check(tmp_path, monkeypatch):
    semantic_set(tmp_path, (0, 255))
    for split in ('train', 'val'):
        folder = tmp_path / f'{split}_masks'
        folder.rename(tmp_path / 'old')
        call(monkeypatch, 'recode_masks', tmp_path / 'old', folder, '--map',
             '0=0', '255=1')
        shutil.rmtree(tmp_path / 'old')
    assert not found(check(semantic_config(tmp_path)))


# ---- training and validation ------------------------------------------------


def test_split_of_a_coco_file(tmp_path, monkeypatch):
    names = 'abcdefghij'
    path = tmp_path / 'all.json'
    path.write_text(json.dumps(coco(names, 0)))
    call(monkeypatch, 'split', path, '--val', '0.3')
    parts = [read(tmp_path / f'all_{p}.json') for p in ('train', 'val')]
    assert [len(p['images']) for p in parts] == [7, 3]
    ids = [{i['id'] for i in p['images']} for p in parts]
    assert not ids[0] & ids[1]
    for part, own in zip(parts, ids):
        assert len(part['annotations']) == 2 * len(own)
        assert {a['image_id'] for a in part['annotations']} == own
        assert len(part['categories']) == 2
    before = (tmp_path / 'all_val.json').read_bytes()
    call(monkeypatch, 'split', path, '--val', '3')
    assert (tmp_path / 'all_val.json').read_bytes() == before
    call(monkeypatch, 'split', path, '--val', '3', '--seed', '1')
    assert (tmp_path / 'all_val.json').read_bytes() != before


def test_copies_stay_on_one_side(tmp_path, monkeypatch):
    for seed in range(4):
        for copy in 'xy':
            picture(tmp_path / 'images' / 'sub' / f'{seed}{copy}.png', seed)
    call(monkeypatch, 'split', tmp_path / 'images', '--val', '0.5')
    val = (tmp_path / 'val.txt').read_text().split()
    train = (tmp_path / 'train.txt').read_text().split()
    assert len(train) == len(val) == 4
    assert {n[:-1] for n in train}.isdisjoint({n[:-1] for n in val})


@pytest.mark.parametrize('change, options, message', [
    (lambda c: None, ('--val', '0.99'), 'both parts need one'),
    (lambda c: c['images'][0].update(id=2), (), 'more than once'),
    (lambda c: c['annotations'][0].update(image_id=9), (), 'such as 9'),
    (lambda c: c.pop('annotations'), (), 'is no COCO file'),
    (lambda c: None, ('--images', 'nowhere'), 'there is no image'),
])
def test_split_refuses(change, options, message, tmp_path, monkeypatch):
    content = coco('abc', 1)
    change(content)
    path = tmp_path / 'all.json'
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=message):
        call(monkeypatch, 'split', path, *options)


# ---- the checker at the prompt ----------------------------------------------


def prompt(monkeypatch, *args):
    with pytest.raises(SystemExit) as end:
        call(monkeypatch, 'check', *args)
    return end.value.code


@pytest.mark.parametrize('config, make', [
    (semantic_config, semantic_set), (coco_config, coco_set)])
def test_check_at_the_prompt(config, make, tmp_path, monkeypatch, capsys):
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = config(tmp_path)
    assert prompt(monkeypatch, path, '--report', 'r/report.json') == 0
    assert 'can be trained on' in capsys.readouterr().out
    assert read(tmp_path / 'r' / 'report.json')['errors'] == 0
    for split in ('train', 'val'):
        sheet = Image.open(tmp_path / 'work_dirs' / 'own' / 'data'
                           / f'{split}.png')
        assert sheet.width > 600
    (tmp_path / 'train' / 'a.png').write_bytes(b'')
    assert prompt(monkeypatch, path, '--images', '0', '--split', 'train',
                  '--cfg-options', 'train_dataloader.batch_size=1') == 1
    assert 'ERROR image-unreadable (1)' in capsys.readouterr().out


def test_classes_as_text_at_the_prompt(tmp_path, monkeypatch, capsys):
    path = semantic_config(tmp_path, classes='thing')
    assert prompt(monkeypatch, path) == 1
    assert 'ERROR classes-text' in capsys.readouterr().out


def test_the_sheet_shows_masks_and_boxes(tmp_path):
    from mmcsan.datasets.checking.sheet import _TILE, colours, contact_sheet
    semantic_set(tmp_path, (0, 1, 255))
    split = check(semantic_config(tmp_path)).splits[0]
    sheet = np.asarray(contact_sheet(split, 1)).astype(int)
    colour = np.asarray(colours(2)[1])
    image = np.asarray(Image.open(tmp_path / 'train' / 'a.png').resize(
        (_TILE, _TILE * HEIGHT // WIDTH), Image.BILINEAR)).astype(int)
    # Bands of background, thing and what is not judged.
    tile = sheet[8:8 + image.shape[0], 8:8 + _TILE]
    expected = [image, 0.55 * image + 0.45 * colour, None]
    for band, wanted in enumerate(expected):
        columns = slice(band * _TILE // 3 + 12, (band + 1) * _TILE // 3 - 12)
        if wanted is None:
            share = (tile[:, columns] == 128).all(-1).mean()
            assert 0.3 < share < 0.5
        else:
            # mmcv reads with OpenCV, hence the same pixels; rounding apart
            assert abs(tile - wanted)[:, columns].max() <= 2
    coco_set(tmp_path)
    split = check(coco_config(tmp_path)).splits[0]
    sheet = np.asarray(contact_sheet(split, 1))
    scale = _TILE / WIDTH
    for index, x in enumerate((4, 8)):
        corner = sheet[8 + round(5 * scale), 8 + round(x * scale) + 4]
        assert tuple(corner) == colours(2)[index]


@pytest.mark.parametrize('number', [2, 11, 40])
def test_colours_differ(number):
    from mmcsan.datasets.checking.sheet import colours
    assert len(set(colours(number))) == number


def test_tools_of_the_page_have_help(monkeypatch, capsys):
    for name in ('check', 'voc2coco', 'masks2coco', 'recode_masks',
                 'split'):
        with pytest.raises(SystemExit) as end:
            call(monkeypatch, name, '--help')
        assert end.value.code == 0
        assert len(capsys.readouterr().out) > 300


def test_polygon_of_the_helper():
    # The fixtures of this folder draw what they say.
    rle = mask_utils.merge(
        mask_utils.frPyObjects(polygon(4, 5, 12, 10), HEIGHT, WIDTH))
    assert mask_utils.area(rle) == 120
