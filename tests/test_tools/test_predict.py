"""Predictions on images without annotations."""
import importlib
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import CODEBASES, write_config, write_images


@pytest.fixture(scope='module')
def predict(root):
    """Run the tool in this process."""
    sys.path.insert(0, str(root / 'tools'))
    module = importlib.import_module('predict')

    def run(*args):
        argv, threads = sys.argv, torch.get_num_threads()
        sys.argv = ['predict', *map(str, args)]
        torch.set_num_threads(1)
        try:
            module.main()
        finally:
            sys.argv = argv
            torch.set_num_threads(threads)

    yield run
    sys.path.remove(str(root / 'tools'))


@pytest.fixture(scope='module')
def models(predict, tmp_path_factory):
    """A config of each codebase and a checkpoint of random weights."""
    from mmengine.config import Config
    from mmengine.registry import init_default_scope

    from mmcsan.registry import MODELS
    folder = tmp_path_factory.mktemp('models')
    write_images(folder / 'data')
    out = {}
    for scope in CODEBASES:
        path = write_config(folder / f'{scope}.py', folder / 'data', scope)
        init_default_scope(scope)
        with MODELS.switch_scope_and_registry(scope) as registry:
            torch.manual_seed(0)
            model = registry.build(Config.fromfile(path).model)
        classes = dict(mmpretrain=('even', 'odd'), mmseg=('ground', 'thing'),
                       mmdet=('thing', ))[scope]
        torch.save(
            dict(state_dict=model.state_dict(),
                 meta=dict(dataset_meta=dict(classes=classes))),
            folder / f'{scope}.pth')
        out[scope] = path, folder / f'{scope}.pth'
    return out


@pytest.fixture
def images(tmp_path):
    """Two images of unlike sizes, one in a folder, and two broken files."""
    folder = tmp_path / 'images'
    (folder / 'ordner').mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, shape in (('größe 图.png', (40, 56, 3)),
                        ('ordner/b.jpg', (32, 32, 3))):
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(
            folder / name)
    whole = (folder / 'größe 图.png').read_bytes()
    (folder / 'cut.png').write_bytes(whole[:len(whole) // 2])
    (folder / 'empty.jpg').touch()
    (folder / 'notes.txt').write_text('no image')
    return folder


@pytest.mark.parametrize('scope', list(CODEBASES))
def test_what_is_written(models, predict, images, scope, tmp_path, capsys):
    out = tmp_path / 'out'
    with pytest.raises(SystemExit, match='2 of 4 images could not be read'):
        predict(*models[scope], images, '--out', out, '--score-thr', 0)
    err = capsys.readouterr().err
    assert 'cut.png' in err and 'empty.jpg' in err and 'notes' not in err
    names = {str(p.relative_to(out / 'json')) for p in (out / 'json').rglob(
        '*.json')}
    assert names == {'größe 图.json', 'ordner/b.json'}
    content = json.loads((out / 'json' / 'größe 图.json').read_text('utf-8'))
    assert (content['height'], content['width']) == (40, 56)
    overlay = Image.open(out / 'overlays' / 'größe 图.png')
    if scope == 'mmpretrain':
        assert sorted(t['class_name'] for t in content['top']) == ['even',
                                                                   'odd']
        assert sum(t['score'] for t in content['top']) == pytest.approx(1)
        return
    assert overlay.size == (56, 40)
    if scope == 'mmseg':
        labels = np.asarray(Image.open(out / 'labels' / 'größe 图.png'))
        assert labels.shape == (40, 56)
        for entry in content['classes']:
            assert (labels == entry['label']).sum() == entry['pixels']
        assert sum(c['share'] for c in content['classes']) == pytest.approx(
            1, abs=1e-5)
    else:
        assert 0 < len(content['objects']) <= 10
        assert {o['class_name'] for o in content['objects']} == {'thing'}
        scores = [o['score'] for o in content['objects']]
        assert scores == sorted(scores, reverse=True)


def test_one_window_is_the_whole_image(models, predict, images, tmp_path):
    """Windows of the size of the image change nothing."""
    maps = []
    for name, options in (('whole', []), ('slide', ['--slide', 64, 64])):
        predict(*models['mmseg'], images / 'ordner', '--out', tmp_path / name,
                *options)
        maps.append(np.asarray(Image.open(
            tmp_path / name / 'labels' / 'b.png')))
    np.testing.assert_array_equal(*maps)


def test_objects_in_windows(models, predict, images, tmp_path):
    predict(*models['mmdet'], images / 'größe 图.png', '--out', tmp_path,
            '--slide', 24, 16, '--score-thr', 0)
    [path] = (tmp_path / 'json').iterdir()
    boxes = np.array([o['box'] for o in json.loads(path.read_text('utf-8'))[
        'objects']])
    # Of all windows, and where they are in the image.
    assert len(boxes) > 10
    assert (boxes[:, 0] > 30).any() and (boxes[:, 1] > 20).any()
    assert (boxes >= 0).all() and (boxes <= [56, 40, 56, 40]).all()


def test_masks_of_windows_lie_in_the_image(predict):
    from _predictors import _paste
    whole = _paste([(2, 3, torch.ones(2, 2, dtype=torch.bool))], 5, 6)
    assert whole.shape == (1, 5, 6)
    assert whole[0].nonzero().tolist() == [[2, 3], [2, 4], [3, 3], [3, 4]]


@pytest.mark.parametrize('height, width, crop, stride', [
    (40, 56, 24, 16), (24, 24, 24, 24), (10, 90, 24, 24), (25, 24, 24, 7)])
def test_windows_cover_the_image(predict, height, width, crop, stride):
    from _predictors import windows
    seen = np.zeros((height, width), int)
    corners = windows(height, width, crop, stride)
    assert len(set(corners)) == len(corners)
    for y, x in corners:
        assert y + crop <= height or y == 0
        seen[y:y + crop, x:x + crop] += 1
    assert seen.min() >= 1


def test_cut_objects_yield_to_whole_ones(predict):
    from _predictors import merge
    boxes = np.array([
        [10, 0, 20, 10],  # half of the next, with a higher score
        [10, 0, 30, 10],
        [11, 0, 31, 10],  # the same again
        [10, 0, 20, 10],  # another class
        [70, 0, 80, 10],  # cut, but nowhere whole
    ], float)
    kept = merge(boxes, np.array([.9, .8, .7, .6, .5]),
                 np.array([0, 0, 0, 1, 0]),
                 np.array([True, False, False, True, True]))
    assert kept == [1, 3, 4]


@pytest.mark.parametrize('args, word', [
    (['nowhere'], 'no image or folder nowhere'),
    (['.'], 'there is no image in'),
    (['.', '--slide', '8', '16'], 'the stride must be 1 to CROP'),
    (['.', '--device', 'cuda:77'], '--device cuda:77'),
])
def test_bad_arguments(models, predict, args, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=word):
        predict(*models['mmseg'], *args)


def test_names_that_would_be_the_same(predict, tmp_path):
    from predict import find_images
    for name in ('a.png', 'a.jpg', 'b.png'):
        (tmp_path / name).touch()
    assert sorted(find_images([str(tmp_path)])) == ['a.jpg', 'a.png', 'b']


def test_checkpoints_are_read_as_data(models, predict, images, tmp_path):
    path = tmp_path / 'page.pth'
    path.write_text('<html>not found</html>')
    with pytest.raises(SystemExit, match='page.pth'):
        predict(models['mmseg'][0], path, images)
