"""Whole detectors and segmentors, built from mmdet's and mmseg's configs."""
import copy
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from foreign_networks import IDENTITY, own_names, shake, stand_ins
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner, save_checkpoint
from mmengine.structures import InstanceData, PixelData

import mmcsan
from mmcsan.plugging import PluggedNetwork

WIDTHS = [16, 32, 64, 128]
SWIN = dict(
    embed_dims=16,
    depths=[2, 2, 1, 1],
    num_heads=[1, 1, 2, 4],
    window_size=3,
    drop_path_rate=0.,
    init_cfg=None)
SIZE = (90, 122)


def shipped(package, path):
    """A config that the codebase ships."""
    folder = Path(find_spec(package).origin).parent / '.mim' / 'configs'
    if not folder.is_dir():
        pytest.skip(f'{package} was installed without its configs')
    return Config.fromfile(folder / path)


def mask_rcnn():
    cfg = shipped('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py').model
    cfg.backbone.update(SWIN)
    cfg.neck.update(in_channels=WIDTHS, out_channels=8)
    cfg.rpn_head.update(in_channels=8, feat_channels=8)
    cfg.rpn_head.anchor_generator.scales = [2]
    head = cfg.roi_head
    for extractor in (head.bbox_roi_extractor, head.mask_roi_extractor):
        extractor.out_channels = 8
    head.bbox_head.update(in_channels=8, fc_out_channels=16, num_classes=2)
    head.mask_head.update(
        in_channels=8, conv_out_channels=8, num_convs=1, num_classes=2)
    cfg.test_cfg.rcnn.update(score_thr=0., max_per_img=20)
    return cfg


def retinanet():
    cfg = shipped('mmdet', 'swin/retinanet_swin-t-p4-w7_fpn_1x_coco.py').model
    cfg.backbone.update(SWIN)
    cfg.neck.update(in_channels=WIDTHS[1:], out_channels=8)
    cfg.bbox_head.update(
        in_channels=8, feat_channels=8, stacked_convs=1, num_classes=2)
    cfg.test_cfg.update(score_thr=0., max_per_img=20)
    return cfg


def upernet(path, backbone, widths, **neck):
    cfg = shipped('mmseg', path).model
    cfg.backbone.update(backbone)
    cfg.pretrained = None
    cfg.data_preprocessor.size = SIZE
    if cfg.get('neck'):
        cfg.neck.update(in_channels=widths, out_channels=widths[0])
    norm = dict(type='BN')
    cfg.decode_head.update(
        in_channels=widths, channels=8, num_classes=3, norm_cfg=norm)
    cfg.auxiliary_head.update(
        in_channels=widths[2], channels=8, num_classes=3, norm_cfg=norm)
    return cfg


def upernet_swin():
    return upernet('_base_/models/upernet_swin.py', SWIN, WIDTHS)


def upernet_vit():
    vit = dict(
        img_size=(96, 96), embed_dims=32, num_heads=2, num_layers=4,
        out_indices=(0, 1, 2, 3), final_norm=True)
    return upernet('_base_/models/upernet_vit-b16_ln_mln.py', vit, [32] * 4)


CONFIGS = dict(
    mask_rcnn=('mmdet', mask_rcnn),
    retinanet=('mmdet', retinanet),
    upernet_swin=('mmseg', upernet_swin),
    upernet_vit=('mmseg', upernet_vit))
models = pytest.mark.parametrize('name', CONFIGS)


def plugged(cfg, attention=IDENTITY):
    """The config with its backbone put into ours, its type as it stands."""
    cfg = copy.deepcopy(cfg)
    cfg.backbone = ConfigDict(
        type='mmcsan.PluggedBackbone',
        backbone=cfg.backbone,
        attention=attention)
    return cfg


def build(name, change=lambda cfg: cfg):
    scope, make = CONFIGS[name]
    if scope == 'mmseg':
        import mmseg.models  # noqa: F401
    else:
        import mmdet.models  # noqa: F401
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(change(make()))


def sample(name):
    """An image and what is to be seen in it."""
    generator = torch.Generator().manual_seed(4)
    shape = dict(img_shape=SIZE, ori_shape=SIZE, pad_shape=SIZE,
                 batch_input_shape=SIZE, scale_factor=(1., 1.))
    image = torch.randint(0, 255, (3, *SIZE), generator=generator)
    if CONFIGS[name][0] == 'mmseg':
        from mmseg.structures import SegDataSample
        label = torch.randint(0, 3, (1, *SIZE), generator=generator)
        data = SegDataSample(gt_sem_seg=PixelData(data=label), metainfo=shape)
    else:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks
        boxes = torch.tensor([[8., 8., 60., 50.], [40., 30., 110., 80.]])
        masks = torch.zeros(2, *SIZE, dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.int()):
            mask[top:bottom, left:right] = 1
        data = DetDataSample(metainfo=shape)
        data.gt_instances = InstanceData(
            bboxes=boxes,
            labels=torch.tensor([0, 1]),
            masks=BitmapMasks(masks.numpy(), *SIZE))
        data.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0).long())
    return dict(inputs=image.to(torch.uint8), data_samples=data)


def batch(name):
    item = sample(name)
    return dict(inputs=[item['inputs']], data_samples=[item['data_samples']])


def predict(model, name):
    """Every number of a prediction."""
    model.eval()
    result, = model.test_step(batch(name))
    if CONFIGS[name][0] == 'mmseg':
        return [result.seg_logits.data]
    found = result.pred_instances
    assert len(found) > 5
    return [found.scores, found.bboxes, *([found.masks.float()]
                                          if 'masks' in found else [])]


@models
def test_predictions_are_what_they_were(name):
    model = shake(build(name))
    before = predict(model, name)
    assert mmcsan.plug_attention(model, IDENTITY) is model
    assert isinstance(model.backbone, PluggedNetwork)
    after = predict(model, name)
    for a, b in zip(before, after):
        assert a.shape == b.shape and (a - b).abs().max() <= 1e-6


@models
def test_config_form_and_function_make_the_same(name):
    function = shake(build(name))
    plain = copy.deepcopy(function)
    mmcsan.plug_attention(function, IDENTITY)
    model = build(name, plugged)
    assert list(model.state_dict()) == list(function.state_dict())
    report = model.load_state_dict(plain.state_dict(), strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) == own_names(model)
    for a, b in zip(predict(plain, name), predict(model, name)):
        assert a.shape == b.shape and (a - b).abs().max() <= 1e-6


class Samples(torch.utils.data.Dataset):
    metainfo = dict(classes=('one', 'two'))

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return sample(self.name)


def runner(name, folder, until, **kwargs):
    scope, make = CONFIGS[name]
    return Runner(
        model=plugged(make()),
        work_dir=str(folder),
        train_dataloader=dict(
            dataset=Samples(name),
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='pseudo_collate'),
            batch_size=2,  # batch norm of 1 x 1 maps needs two
            num_workers=0),
        train_cfg=dict(by_epoch=False, max_iters=until),
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
            constructor='mmcsan.LayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=0.8, norm_decay_mult=0.)),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=1,
                            by_epoch=False)),
        default_scope=scope,
        experiment_name=f'{name}_{folder.name}_{until}',
        randomness=dict(seed=0),
        **kwargs)


@pytest.mark.slow
@models
def test_trains_from_a_plain_checkpoint_and_resumes(name, tmp_path):
    build(name)
    plain = shake(build(name))
    path = str(tmp_path / 'plain.pth')
    save_checkpoint(dict(state_dict=plain.state_dict()), path)

    first = runner(name, tmp_path / 'run', 1, load_from=path)
    first.load_or_resume()
    start = copy.deepcopy(first.model.state_dict())
    for key, value in plain.state_dict().items():
        key = key if key in start else _torchs(key)
        assert torch.equal(start[key], value), key
    first._has_loaded = False
    first.train()
    new = own_names(first.model)
    gates = [n for n in new if re.search(r'\.(temp|magk|ka|kv)\.', n)]
    trained = first.model.state_dict()
    assert gates
    for key in gates:
        assert trained[key].isfinite().all()
        assert not torch.equal(trained[key], start[key]), key

    saved = str(tmp_path / 'run' / 'iter_1.pth')
    held = torch.load(saved, weights_only=False)
    assert new <= set(held['state_dict'])
    second = runner(name, tmp_path / 'run', 2, load_from=saved, resume=True)
    second.train()
    assert second.iter == 2
    third = build(name, plugged)
    third.load_state_dict(held['state_dict'], strict=True)
    for key, value in trained.items():
        assert torch.equal(third.state_dict()[key], value), key
    assert any(not torch.equal(second.model.state_dict()[k], trained[k])
               for k in gates)


def _torchs(key):
    for old, name in stand_in_aliases().items():
        if key.endswith(old):
            return key.removesuffix(old) + name
    return key


def stand_in_aliases():
    from mmcsan.plugging.hosts import InTorchAttention
    return InTorchAttention.aliases


def test_only_the_backbone_is_touched():
    """Attentions of decoders stay what they are."""
    model = build('retinanet')
    from mmpretrain.models.utils import MultiheadAttention
    model.extra = MultiheadAttention(8, 2)
    mmcsan.plug_attention(model, IDENTITY)
    assert type(model.extra) is MultiheadAttention
    assert len(stand_ins(model)) == 6


def test_pretrained_of_a_segmentor_reaches_the_backbone(tmp_path):
    plain = shake(build('upernet_vit'))
    path = str(tmp_path / 'vit.pth')
    save_checkpoint(plain.backbone.state_dict(), path)

    def change(cfg):
        cfg = plugged(cfg)
        cfg.pretrained = path
        return cfg

    with pytest.warns(UserWarning, match='pretrained is deprecated'):
        model = build('upernet_vit', change)
    model.init_weights()
    assert torch.equal(model.backbone.pos_embed, plain.backbone.pos_embed)
    assert torch.equal(model.backbone.layers[1].attn.attn.qkv.weight,
                       plain.backbone.layers[1].attn.attn.in_proj_weight)
    for attention in stand_ins(model):
        assert attention.temp.weight.abs().max() == 0
