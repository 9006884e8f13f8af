"""The configs for one's own data, and the page that leads through them."""
import importlib.util
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from test_configs import ROOT
from test_runs import tool

FOLDER = ROOT / 'configs' / 'own_dataset'
SEMANTIC = FOLDER / 'csan-swin-tiny_upernet_1xb4-4k_own-semseg.py'
INSTANCE = FOLDER / 'csan-swin-tiny_mask-rcnn_1xb4-24e_own-coco.py'
PAGE = ROOT / 'docs' / 'own_dataset.md'
# What a user edits stands above the first, what is for experts below it.
NETWORK, REST = '# ---- the network', '# ---- what follows'

mim_spec = importlib.util.spec_from_file_location(
    'mim_environment', ROOT / 'tests' / 'test_package' / 'test_mim.py')
mim = importlib.util.module_from_spec(mim_spec)
mim_spec.loader.exec_module(mim)


def edit(path, changes):
    """Write other values into the lines at the top of a config."""
    top, rest = path.read_text().split(REST)
    for name, value in changes.items():
        top, count = re.subn(
            rf'^{name} = [^#\n]*', f'{name} = {value}  ', top, flags=re.M)
        assert count == 1, f'{name} is not a line of {path.name}'
    path.write_text(top + REST + rest)


def edited(source, folder, changes):
    """A copy of a config with other values in the lines at its top."""
    text = source.read_text()
    text = text.replace('../_base_', str(ROOT / 'configs' / '_base_'))
    path = folder / f'my_{source.stem}.py'
    path.write_text(text)
    edit(path, changes)
    return path


@pytest.mark.parametrize('source', [SEMANTIC, INSTANCE])
def test_at_most_ten_lines_to_edit_for_data(source):
    data = source.read_text().split(NETWORK)[0].split('\n]\n')[1]
    lines = [line for line in data.splitlines() if line]
    assert all(re.match(r'[a-z_, ]+ = ', line) for line in lines)
    assert 0 < len(lines) <= 10


def test_boxes_alone(tmp_path):
    cfg = Config.fromfile(edited(INSTANCE, tmp_path, {'masks': 'False'}))
    assert cfg.model.roi_head.mask_head is None
    assert cfg.model.roi_head.mask_roi_extractor is None
    assert not cfg.train_pipeline[1].with_mask
    assert cfg.val_evaluator.metric == ['bbox']


@pytest.mark.parametrize('source', [SEMANTIC, INSTANCE])
def test_classes_as_text_are_refused(source, tmp_path):
    path = edited(source, tmp_path, {'classes': "'nucleus'"})
    with pytest.raises(TypeError, match='nucleus'):
        Config.fromfile(path)


def test_one_class_alone_is_refused_in_semantic_segmentation(tmp_path):
    path = edited(SEMANTIC, tmp_path, {'classes': "('nucleus', )"})
    with pytest.raises(ValueError, match='background'):
        Config.fromfile(path)


@pytest.mark.parametrize('source', [SEMANTIC, INSTANCE])
@pytest.mark.parametrize('there', [True, False])
def test_tensorboard_where_it_is_installed(source, there, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, 'find_spec', lambda name, *args: there
        if name == 'tensorboard' else found(name, *args))
    cfg = Config.fromfile(source)
    kinds = [backend.type for backend in cfg.visualizer.vis_backends]
    assert kinds == ['LocalVisBackend'] + ['TensorboardVisBackend'] * there
    assert cfg.default_hooks.visualization.draw


def test_milestones_of_short_schedules(tmp_path):
    for epochs, steps in ((1, [1, 1]), (3, [2, 3]), (24, [16, 22])):
        path = edited(INSTANCE, tmp_path, {'max_epochs': str(epochs)})
        cfg = Config.fromfile(path)
        assert cfg.param_scheduler[1].milestones == steps


def test_warm_up_of_short_schedules(tmp_path):
    for iters, end in ((2, 1), (4, 1), (240, 24), (4000, 200)):
        path = edited(SEMANTIC, tmp_path, {'max_iters': str(iters)})
        warm_up, decay = Config.fromfile(path).param_scheduler
        assert warm_up.end == decay.begin == end < decay.end == iters


# ---- the page ---------------------------------------------------------------


def section(title):
    """The text below a heading, up to the next of its level."""
    [(level, text)] = re.findall(
        rf'^(##+) {re.escape(title)}\n(.*?)(?=^##? |\Z)', PAGE.read_text(),
        re.M | re.S)
    assert level == '##'
    return text


def blocks(text, language):
    return re.findall(rf'^```{language}\n(.*?)^```$', text, re.M | re.S)


def cells(folder, nuclei):
    """A few nuclei as others would have them: VOC XML and 0/255 masks."""
    content = json.loads((nuclei / 'instances_train.json').read_text())
    for part in ('Annotations', 'JPEGImages', 'masks'):
        (folder / part).mkdir(parents=True)
    for image in content['images'][:5]:
        name = image['file_name']
        shutil.copy(nuclei / 'train' / name, folder / 'JPEGImages')
        mask = np.asarray(Image.open(nuclei / 'train_sem' / name))
        Image.fromarray(255 * mask).save(folder / 'masks' / name)
        objects = ''
        for item in content['annotations']:
            x, y, width, height = item['bbox']
            if item['image_id'] == image['id']:
                objects += (
                    '<object><name>nucleus</name><bndbox>'
                    f'<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>'
                    f'{x + width}</xmax><ymax>{y + height}</ymax></bndbox>'
                    '</object>')
        (folder / 'Annotations' / f'{name[:-4]}.xml').write_text(
            f'<annotation>{objects}</annotation>')


@pytest.fixture(scope='module')
def reader(shared, tmp_path_factory):
    """A clone, installed, with the data that the page speaks of.

    Returns a function that runs commands of the page in it.
    """
    folder = tmp_path_factory.mktemp('reader') / 'mmcsan'
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*mim.LEFT_OUT))
    shutil.copytree(shared / 'data' / 'nuclei', folder / 'data' / 'nuclei')
    cells(folder / 'data' / 'cells', folder / 'data' / 'nuclei')
    python = mim.new_venv(tmp_path_factory.mktemp('venv'))
    mim.install(python, '-e', folder, cwd=folder.parent)
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='2',
        OMP_WAIT_POLICY='PASSIVE',  # others may use the cores as well
        PATH=f'{python.parent}{os.pathsep}{os.environ["PATH"]}')

    def run(commands):
        result = subprocess.run(
            ['bash', '-e', '-c', commands], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        assert result.returncode == 0, result.stdout[-4000:]
        return result.stdout

    run.folder = folder
    return run


def follow(reader, title, config):
    """Do what a section of the page says; what its commands print."""
    text = section(title)
    copy, *commands = blocks(text, 'shell')
    reader(copy)
    lines = ''.join(blocks(text, 'python'))
    edit(reader.folder / 'configs' / 'own_dataset' / config,
         dict(re.findall(r'^([a-z_, ]+) = (.*)$', lines, re.M)))
    return reader(''.join(commands))


@pytest.mark.slow
def test_semantic_segmentation_of_the_page(reader):
    printed = follow(reader, 'Semantic segmentation', 'my_semseg.py')
    assert '0 errors, 0 notes' in printed
    # The last table is that of the command that tests.
    scores = re.findall(r'nucleus +\| +([\d.]+)', printed)
    assert len(scores) == 6
    assert float(scores[-1]) >= 60
    run = reader.folder / 'work_dirs' / 'my_semseg'
    for part in ('drawn/vis_data/vis_image', 'predictions/overlays',
                 'predictions/labels'):
        assert len(list((run / part).glob('*.png'))) == 40
    assert set(np.unique(Image.open(run / 'predictions/labels/0000.png'))) == {
        0, 1}
    assert list(run.glob('*/vis_data/vis_image/*.png'))


@pytest.mark.slow
def test_instance_segmentation_of_the_page(reader):
    printed = follow(reader, 'Instance segmentation and detection',
                     'my_coco.py')
    assert '0 errors, 0 notes' in printed
    scores = re.findall(r'coco/segm_mAP_50: ([\d.]+)', printed)
    assert len(scores) == 3
    assert float(scores[-1]) >= 0.25
    run = reader.folder / 'work_dirs' / 'my_coco'
    assert (run / 'predictions' / 'overlays' / '0000.png').is_file()
    found = json.loads((run / 'predictions/json/0000.json').read_text())
    objects = found['objects']
    assert max(o['score'] for o in objects) > 0.5
    assert objects[0]['mask']['counts']


def test_other_layouts_of_the_page(reader):
    printed = reader(''.join(blocks(section('Other layouts'), 'shell')))
    assert printed.count("classes = ('nucleus',)") == 1
    cells = reader.folder / 'data' / 'cells'
    read = {part: json.loads((cells / f'instances{part}.json').read_text())
            for part in ('', '_train', '_val')}
    nuclei = json.loads((reader.folder / 'data' / 'nuclei'
                         / 'instances_train.json').read_text())
    names = {i['id']: i['file_name'] for i in nuclei['images'][:5]}
    assert sorted(tuple(a['bbox']) for a in read['']['annotations']) == sorted(
        tuple(a['bbox']) for a in nuclei['annotations']
        if a['image_id'] in names)
    assert len(read['_val']['images']) == 1
    assert len((cells / 'train.txt').read_text().split()) == 4
    parts = json.loads((cells / 'parts.json').read_text())
    assert 0 < len(parts['annotations']) <= len(read['']['annotations'])


def coco_file(folder, names):
    path = folder / 'instances.json'
    path.write_text(
        json.dumps(
            dict(
                images=[dict(id=0, file_name='a.png', height=9, width=9)],
                annotations=[
                    dict(
                        id=1, image_id=0, category_id=1, bbox=[1, 1, 5, 5],
                        area=25, iscrowd=0)
                ],
                categories=[
                    dict(id=number, name=name)
                    for number, name in enumerate(names, 1)
                ])))
    return path


@pytest.mark.parametrize('names, classes, word', [
    (('cat', 'dog'), ('dog', 'cat'), r"write \('cat', 'dog'\)"),
    (('cat', 'dog', 'cat'), ('cat', 'dog'), "'cat' twice"),
    (('cat', 'dog'), ('cat', 'cow'), "no category named 'cow'"),
])
def test_classes_must_be_those_of_the_file(tmp_path, names, classes, word):
    from mmcsan.datasets.coco import CocoDataset
    path = str(coco_file(tmp_path, names))
    with pytest.raises(ValueError, match=word):
        CocoDataset(ann_file=path, metainfo=dict(classes=classes))


def test_some_of_the_classes_in_order(tmp_path):
    from mmcsan.datasets.coco import CocoDataset
    path = str(coco_file(tmp_path, ('cat', 'cow', 'dog')))
    data = CocoDataset(
        ann_file=path,
        data_prefix=dict(img=''),
        metainfo=dict(classes=('cat', 'dog')))
    assert data[0]['instances'][0]['bbox_label'] == 0


def test_wrong_class_name_is_an_error(shared, tmp_path):
    nuclei = shared / 'data' / 'nuclei'
    config = edited(
        INSTANCE, tmp_path, {
            'data_root': repr(f'{nuclei}/'),
            'classes': "('nuclei', )",
            'arch': 'dict(embed_dims=32, depths=[1, 1, 2, 1], '
            'num_heads=[2, 4, 8, 16])',
            'channels': '[32, 64, 128, 256]',
            'window_size': '4',
            'checkpoint': 'None'
        })
    with pytest.raises(AssertionError,
                       match="no category named 'nuclei'"):
        tool(ROOT / 'tools' / 'train.py', config, cwd=tmp_path)
