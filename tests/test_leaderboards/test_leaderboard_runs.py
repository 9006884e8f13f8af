"""From a config to the zip file, and what it scores."""
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from submissions import ROOT, call, fake_data

import mmcsan  # noqa: F401  # before mmdet: it may lack mmcv's operators
from mmcsan.leaderboards import pack_ade20k, pack_coco

CONFIGS = sorted((ROOT / 'configs' / 'leaderboards').glob('*.py'))


def parent(path):
    """The config of the model that a config tests."""
    stem = path.stem.replace('coco-test-dev', 'coco').replace(
        'ade20k-test', 'ade20k-512x512')
    [found] = [p for p in ROOT.glob('configs/*/*.py') if p.stem == stem]
    return found


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_only_the_test_differs_from_the_config_of_the_model(path):
    ours, theirs = (Config.fromfile(p).to_dict() for p in (path,
                                                            parent(path)))
    changed = {k for k in ours if ours[k] != theirs.get(k)}
    assert theirs.keys() <= ours.keys()
    if 'coco' in path.stem:
        assert changed - {'tta_model'} == {
            'test_dev', 'test_dataloader', 'test_evaluator'
        }
        assert ours['tta_model']['type'].endswith('.InstanceTTAModel')
        name = 'annotations/image_info_test-dev2017.json'
        dataset = ours['test_dataloader']['dataset']
        assert dataset['ann_file'] == name
        assert ours['test_evaluator']['ann_file'] == (
            dataset['data_root'] + name)
        folder = Path(ours['test_evaluator']['outfile_prefix']).parent
    else:
        assert changed == {
            'release_test', 'test_dataloader', 'test_evaluator',
            'tta_pipeline'
        }
        folder = Path(ours['test_evaluator']['output_dir']).parent
    assert ours['test_evaluator']['format_only'] is True
    # Else one model's results would take the place of another's.
    assert folder == Path('work_dirs', path.stem)


# Perfect scores: ground truth goes through formatter, tool and zip file.


@pytest.fixture
def coco(tmp_path):
    fake_data.coco(tmp_path / 'coco')
    return tmp_path / 'coco' / 'annotations' / 'instances_val2017.json'


def coco_truth(path, metric):
    """Hand the ground truth to a metric as if a detector had found it."""
    from mmdet.datasets import CocoDataset
    metric.dataset_meta = CocoDataset.METAINFO
    truth = COCO(path)
    classes = {c['name']: c['id'] for c in truth.dataset['categories']}
    labels = {
        classes[name]: label
        for label, name in enumerate(CocoDataset.METAINFO['classes'])
    }
    for image in truth.dataset['images']:
        found = truth.imgToAnns[image['id']]
        boxes = torch.tensor([a['bbox'] for a in found]).float()
        boxes[:, 2:] += boxes[:, :2]
        masks = np.stack([truth.annToMask(a) for a in found])
        metric.process({}, [
            dict(
                img_id=image['id'],
                ori_shape=(image['height'], image['width']),
                pred_instances=dict(
                    bboxes=boxes,
                    scores=torch.linspace(0.5, 1., len(found)),
                    labels=torch.tensor(
                        [labels[a['category_id']] for a in found]),
                    masks=torch.from_numpy(masks).bool()))
        ])
    return truth


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_ground_truth_of_coco_scores_1(kind, coco, tmp_path):
    from mmdet.evaluation import CocoMetric
    metric = CocoMetric(
        str(coco),
        metric=['bbox', 'segm'],
        format_only=True,
        outfile_prefix=str(tmp_path / 'new' / 'test'))
    truth = coco_truth(coco, metric)
    assert metric.evaluate(len(truth.imgs)) == {}
    done = pack_coco(tmp_path / 'new' / f'test.{kind}.json', coco, 'x',
                     tmp_path)
    found = json.loads(
        zipfile.ZipFile(done.path).read(f'{done.path.stem}.json'))
    results = truth.loadRes(found)
    if kind == 'segm':  # areas are the masks', as where mmdet scores
        assert [a['area'] for a in results.anns.values()
                ] == [truth.annToMask(a).sum() for a in truth.anns.values()]
    judge = COCOeval(truth, results, kind)
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    assert judge.stats[0] == judge.stats[1] == judge.stats[2] == 1.


def test_ground_truth_of_ade20k_scores_100(tmp_path):
    from mmseg.datasets import ADE20KDataset
    from mmseg.evaluation import IoUMetric
    fake_data.ade20k(tmp_path / 'ade')
    images = tmp_path / 'ade' / 'images' / 'validation'
    truth = {
        path.stem: np.array(Image.open(path)).astype(np.int64) - 1
        for path in (tmp_path / 'ade' / 'annotations' /
                     'validation').iterdir()
    }
    writer = IoUMetric(format_only=True, output_dir=str(tmp_path / 'maps'))
    writer.dataset_meta = ADE20KDataset.METAINFO
    for name, labels in truth.items():
        assert labels.min() == -1  # no class: any answer will do
        writer.process({}, [
            dict(
                img_path=str(images / f'{name}.jpg'),
                reduce_zero_label=True,
                pred_sem_seg=dict(
                    data=torch.from_numpy(labels.clip(0))[None]))
        ])
    done = pack_ade20k(tmp_path / 'maps', images, tmp_path)
    zipfile.ZipFile(done.path).extractall(tmp_path / 'unpacked')
    judge = IoUMetric()
    judge.dataset_meta = ADE20KDataset.METAINFO
    for name, labels in truth.items():
        answer = np.array(Image.open(tmp_path / 'unpacked' / f'{name}.png'))
        judge.process({}, [
            dict(
                pred_sem_seg=dict(
                    data=torch.from_numpy(answer.astype(np.int64) - 1)),
                gt_sem_seg=dict(
                    data=torch.from_numpy(
                        np.where(labels < 0, 255, labels))))
        ])
    scores = judge.evaluate(len(truth))
    assert scores['mIoU'] == scores['aAcc'] == 100.


# Whole runs of shrunk configs.

COMMON = {
    'model.backbone.arch': 'swin-min',
    'model.backbone.init_cfg': None,
    'test_dataloader.num_workers': 0,
    'test_dataloader.persistent_workers': False,
}


def small_tta(pipeline, sizes):
    """A multi-scale pipeline with these sizes."""
    [resize, *others] = pipeline[1]['transforms']
    return [
        pipeline[0],
        dict(
            pipeline[1],
            transforms=[[dict(resize[0], scale=s) for s in sizes], *others])
    ]


def run(monkeypatch, tmp_path, stem, options, sizes, *args):
    """Test a shrunk config with random weights."""
    from mmengine.registry import MODELS
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    [path] = [p for p in CONFIGS if p.stem == stem]
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({**COMMON, **options})
    cfg.tta_pipeline = small_tta(cfg.tta_pipeline, sizes)
    cfg.dump(f'{stem}.py')
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = registry.build(cfg.model)
        model.init_weights()
    torch.save(dict(state_dict=model.state_dict()), 'weights.pth')
    assert call(monkeypatch, 'test', f'{stem}.py', 'weights.pth',
                *args) == (0, '')
    return tmp_path / 'work_dirs' / stem


@pytest.mark.parametrize('args', [(), ('--tta', )], ids=['plain', 'tta'])
def test_coco_from_the_config_to_the_zip_files(args, coco, tmp_path,
                                               monkeypatch):
    data = json.loads(coco.read_text())
    data.pop('annotations')
    data['images'] = data['images'][2:]
    annotations = coco.with_name('image_info_test-dev2017.json')
    annotations.write_text(json.dumps(data))
    root = coco.parents[1]
    shutil.copytree(root / 'val2017', root / 'test2017')
    folder = run(
        monkeypatch, tmp_path,
        'csan-swin-tiny_mask-rcnn_8xb2-1x_coco-test-dev', {
            'model.roi_head.bbox_head.fc_out_channels': 32,
            'model.roi_head.mask_head.conv_out_channels': 16,
            'model.test_cfg.rcnn.score_thr': 0.,
            'model.test_cfg.rcnn.max_per_img': 6,
            'model.test_cfg.rpn.max_per_img': 16,
            'test_dataloader.dataset.data_root': f'{root}/',
            'test_dataloader.dataset.pipeline.1.scale': (96, 64),
            'test_evaluator.ann_file': str(annotations),
        }, [(96, 64), (120, 80)], *args)
    for kind in ('bbox', 'segm'):
        assert call(monkeypatch, 'leaderboard/coco_test_dev',
                    folder / f'test-dev2017.{kind}.json', '--annotations',
                    annotations, '--method', 'csan-swin-t', '--out',
                    'out') == (0, '')
        [path] = (tmp_path / 'out' / kind).iterdir()
        assert path.name == 'detections_test-dev2017_csan-swin-t_results.zip'
        found = json.loads(zipfile.ZipFile(path).read(f'{path.stem}.json'))
        assert {f['image_id'] for f in found} == {2, 3}
        assert (kind == 'segm') == ('segmentation' in found[0])


@pytest.mark.parametrize('args', [(), ('--tta', )], ids=['plain', 'tta'])
def test_ade20k_from_the_config_to_the_zip_file(args, tmp_path, monkeypatch):
    images = tmp_path / 'release_test' / 'testing'
    for index, size in enumerate([(64, 80), (70, 50)]):
        fake_data.picture(images / f'ADE_test_{index:08d}.jpg', *size, index)
    folder = run(
        monkeypatch, tmp_path, 'pola-swin-tiny_upernet_8xb2-160k_ade20k-test',
        {
            'model.decode_head.channels': 16,
            'test_dataloader.dataset.data_root': str(images.parent),
            'test_dataloader.dataset.pipeline.1.scale': (80, 64),
        }, [(80, 64), (120, 96)], *args)
    assert call(monkeypatch, 'leaderboard/ade20k', folder / 'label-maps',
                '--images', images, '--method', 'pola-swin-t', '--out',
                'out') == (0, '')
    archive = zipfile.ZipFile('out/pola-swin-t.zip')
    assert archive.namelist() == [
        'ADE_test_00000000.png', 'ADE_test_00000001.png'
    ]
