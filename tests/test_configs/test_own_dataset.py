"""The configs for one's own data, edited as the README says."""
import json
import re

import pytest
from mmengine.config import Config
from test_configs import ROOT
from test_runs import tool

FOLDER = ROOT / 'configs' / 'own_dataset'
SEMANTIC = FOLDER / 'csan-swin-tiny_upernet_1xb4-4k_own-semseg.py'
INSTANCE = FOLDER / 'csan-swin-tiny_mask-rcnn_1xb4-24e_own-coco.py'

# A network for two cores, without a checkpoint.
SMALL = {
    'arch': 'dict(embed_dims=32, depths=[1, 1, 2, 1], '
    'num_heads=[2, 4, 8, 16])',
    'channels': '[32, 64, 128, 256]',
    'attention': "dict(type='CSaN', posinfo=True)",
    'window_size': '4',
    'checkpoint': 'None',
}


def edited(source, folder, changes):
    """A copy of a config with other values in the lines at its top."""
    text = source.read_text()
    for name, value in changes.items():
        text, count = re.subn(
            rf'^{name} = [^#\n]*', f'{name} = {value}  ', text, flags=re.M)
        assert count == 1, f'{name} is not a line of {source.name}'
    text = text.replace('../_base_', str(ROOT / 'configs' / '_base_'))
    path = folder / f'my_{source.stem}.py'
    path.write_text(text)
    return path


@pytest.mark.parametrize('source', [SEMANTIC, INSTANCE])
def test_at_most_ten_lines_to_edit_for_data(source):
    top = source.read_text().split('# ----')[0]
    data_lines = [
        line for line in top.splitlines()
        if re.match(r'[a-z]', line) and not line.startswith(
            ('arch', 'attention', 'channels', 'checkpoint', 'window_size',
             '_base_'))
    ]
    assert 0 < len(data_lines) <= 10


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


def test_semantic(shared, tmp_path):
    nuclei = shared / 'data' / 'nuclei'
    config = edited(
        SEMANTIC, tmp_path, {
            'data_root': repr(f'{nuclei}/'),
            'classes': "('background', 'nucleus')",
            'train_images, train_masks': "'train', 'train_sem'",
            'val_images, val_masks': "'val', 'val_sem'",
            'image_suffix, mask_suffix': "'.png', '.png'",
            'crop_size': '(128, 128)',
            'max_iters': '80',
            **SMALL
        })
    tool(
        ROOT / 'tools' / 'train.py',
        config,
        '--work-dir',
        tmp_path / 'run',
        '--cfg-options',
        'train_cfg.val_interval=80',
        'default_hooks.checkpoint.interval=80',
        'optim_wrapper.optimizer.lr=0.001',
        cwd=tmp_path)
    tool(
        ROOT / 'tools' / 'test.py',
        config,
        tmp_path / 'run' / 'iter_80.pth',
        '--out',
        tmp_path / 'metrics.json',
        cwd=tmp_path)
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    # All background scores 45 or so: both classes must have been found.
    assert metrics['mIoU'] > 60


def test_instance(shared, tmp_path):
    nuclei = shared / 'data' / 'nuclei'
    config = edited(
        INSTANCE, tmp_path, {
            'data_root': repr(f'{nuclei}/'),
            'classes': "('nucleus', )",
            'image_scale': '(256, 256)',
            'max_epochs': '1',
            **SMALL
        })
    tool(
        ROOT / 'tools' / 'train.py',
        config,
        '--work-dir',
        tmp_path / 'run',
        '--cfg-options',
        'train_dataloader.dataset.indices=8',
        'val_dataloader.dataset.indices=4',
        'model.test_cfg.rcnn.score_thr=0.0',
        'model.train_cfg.rpn_proposal.max_per_img=50',
        cwd=tmp_path)
    [scalars] = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    assert 0 <= lines[-1]['coco/segm_mAP'] <= 1


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
    config = edited(INSTANCE, tmp_path, {
        'data_root': repr(f'{nuclei}/'),
        'classes': "('nuclei', )",
        **SMALL
    })
    with pytest.raises(AssertionError,
                       match="no category named 'nuclei'"):
        tool(ROOT / 'tools' / 'train.py', config, cwd=tmp_path)
