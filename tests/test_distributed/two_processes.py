"""Steps of training in one process and in two, to be compared."""
import copy
import os
from multiprocessing import get_context

import torch
import torch.distributed as dist

STAGES = dict(depths=[1, 1, 1, 1])
DIMS = dict(embed_dims=[16, 16, 32, 32], num_heads=[1, 1, 2, 2], **STAGES)
BACKBONES = {
    'SwinTransformer':
    dict(arch=dict(embed_dims=8, num_heads=[1, 1, 2, 2], **STAGES),
         window_size=4),
    'VisionTransformer':
    dict(arch=dict(embed_dims=16, depth=4, num_heads=2), patch_size=8,
         img_size=64),
    'Hiera':
    dict(arch=dict(embed_dims=8, num_heads=1, **STAGES), img_size=64),
    'PyramidVisionTransformer':
    dict(arch=dict(DIMS, mlp_ratios=[2] * 4), img_size=64),
    'PolaFormerPP':
    dict(arch=dict(DIMS, layer_scale=[1, 1, 1, None]), img_size=64),
}
"""A small arch of each."""
TASKS = ('classifier', 'segmentor', 'detector')
VARIANTS = {
    'plain': {},
    'with_cp': dict(backbone=dict(with_cp=True)),
    'frozen': dict(backbone=dict(frozen_stages=1)),
    'EMA': dict(ema=True),
    'accumulation': dict(accumulate=2),
}
CASES = [(task, backbone, 'plain') for task in TASKS
         for backbone in BACKBONES]
CASES += [('segmentor', backbone, variant) for backbone in BACKBONES
          for variant in VARIANTS if variant != 'plain']
UPDATES, BATCH, SIZE = 2, 4, 64


def backbone_config(name, **options):
    indices = (1, 2, 3) if name != 'VisionTransformer' else (0, 1, 3)
    return dict(
        type=f'mmcsan.{name}',
        drop_path_rate=0.,
        **{
            'out_indices': indices,
            **BACKBONES[name],
            **options
        })


def classifier(name, **options):
    backbone = backbone_config(name, out_indices=(3, ), **options)
    return 'mmpretrain', dict(
        type='ImageClassifier',
        backbone=backbone,
        neck=dict(type='GlobalAveragePooling'),
        head=dict(
            type='LinearClsHead', num_classes=3, in_channels=width(backbone)))


def segmentor(name, **options):
    backbone = backbone_config(name, out_indices=(3, ), **options)
    return 'mmseg', dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor', size=(SIZE, SIZE)),
        backbone=backbone,
        decode_head=dict(
            type='FCNHead', in_channels=width(backbone), in_index=0,
            channels=8, num_convs=1, concat_input=False, num_classes=3,
            dropout_ratio=0., norm_cfg=dict(type='GN', num_groups=2)),
        train_cfg=dict(),
        test_cfg=dict(mode='whole'))


def detector(name, **options):
    backbone = backbone_config(name, **options)
    strides = [8, 8, 8] if name == 'VisionTransformer' else [8, 16, 32]
    return 'mmdet', dict(
        type='RetinaNet',
        data_preprocessor=dict(
            type='DetDataPreprocessor', pad_size_divisor=SIZE),
        backbone=backbone,
        neck=dict(
            type='FPN', in_channels=width(backbone, 3), out_channels=8,
            num_outs=3),
        bbox_head=dict(
            type='RetinaHead', num_classes=2, in_channels=8, stacked_convs=1,
            feat_channels=8,
            anchor_generator=dict(
                type='AnchorGenerator', octave_base_scale=2,
                scales_per_octave=1, ratios=[1.0], strides=strides),
            bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
            loss_cls=dict(type='FocalLoss', use_sigmoid=True),
            loss_bbox=dict(type='L1Loss')),
        train_cfg=dict(
            assigner=dict(
                type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4,
                min_pos_iou=0, ignore_iof_thr=-1),
            sampler=dict(type='PseudoSampler'),
            allowed_border=-1, pos_weight=-1, debug=False),
        test_cfg=dict())


def width(backbone, maps=1):
    """Channels of the last map, or of several."""
    from mmcsan.registry import MODELS
    channels = list(MODELS.build(backbone).out_channels)
    return channels[-1] if maps == 1 else channels


def batch(task, seed):
    """Images that differ, and annotations of equal weight in the loss."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(BATCH, 3, SIZE, SIZE, generator=generator) * 4 - 2
    labels = torch.randint(
        3, (BATCH, 1, SIZE, SIZE), generator=generator)
    return images, [sample(task, labels[i], i) for i in range(BATCH)]


def sample(task, labels, index):
    if task == 'classifier':
        from mmpretrain.structures import DataSample
        return DataSample().set_gt_label(index % 3)
    if task == 'segmentor':
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample
        return SegDataSample(
            gt_sem_seg=PixelData(data=labels),
            metainfo=dict(img_shape=(SIZE, SIZE)))
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData

    # as many positive anchors in each image, which the loss is divided by
    boxes = torch.tensor([[8., 8., 24., 24.], [20., 30., 60., 62.]])
    return DetDataSample(
        gt_instances=InstanceData(
            bboxes=boxes, labels=torch.tensor([0, index % 2])),
        metainfo=dict(
            img_shape=(SIZE, SIZE), batch_input_shape=(SIZE, SIZE),
            pad_shape=(SIZE, SIZE)))


def build(case):
    """A model, built alike in each process."""
    from mmengine.registry import MODELS, DefaultScope, init_default_scope
    task, name, variant = case
    scope, cfg = globals()[task](name,
                                 **VARIANTS[variant].get('backbone', {}))
    init_default_scope(scope)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(cfg)
    for param in model.parameters():
        if param.requires_grad and not param.any():
            torch.nn.init.normal_(param, std=0.05)
    model.train()
    for module in model.modules():
        # Statistics of a batch are its own: those of two halves differ.
        # SyncBN, which shares them, needs GPUs.
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    return model


def steps(case, model, part=slice(None)):
    """Train.

    Args:
        case (tuple): Task, backbone and variant.
        model (nn.Module): The model, wrapped where there are two processes.
        part (slice): Which images of a batch are seen.

    Returns:
        dict: Gradients of each update, and weights (of the average, too).
    """
    from mmengine.model import ExponentialMovingAverage
    from mmengine.optim import OptimWrapper
    options, plain = VARIANTS[case[2]], getattr(model, 'module', model)
    optimizer = torch.optim.SGD(
        [p for p in plain.parameters() if p.requires_grad], lr=1e-3)
    accumulate = options.get('accumulate', 1)
    wrapper = OptimWrapper(optimizer, accumulative_counts=accumulate)
    wrapper.initialize_count_status(model, 0, UPDATES * accumulate)
    average = ExponentialMovingAverage(plain, momentum=0.3)
    gradients = []
    optimizer.register_step_pre_hook(lambda *_: gradients.append({
        name: None if p.grad is None else p.grad.clone()
        for name, p in plain.named_parameters()
    }))
    for index in range(UPDATES * accumulate):
        images, samples = batch(case[0], index)
        model.train_step(
            dict(inputs=list(images)[part], data_samples=samples[part])
            if case[0] != 'classifier' else dict(
                inputs=images[part], data_samples=samples[part]), wrapper)
        average.update_parameters(plain)
    return dict(
        gradients=gradients,
        weights=copy.deepcopy(plain.state_dict()),
        average=copy.deepcopy(average.module.state_dict()))


def work(rank, port, folder, cases):
    """Train every case alone and as one of two; the target of a process."""
    from mmengine.model import MMDistributedDataParallel
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK=str(rank),
        WORLD_SIZE='2', LOCAL_RANK=str(rank))
    dist.init_process_group('gloo', rank=rank, world_size=2)
    for number, case in enumerate(cases):
        outcome = {}
        try:
            # each process computes every second case alone
            if number % 2 == rank:
                outcome['alone'] = steps(case, build(case))
            dist.barrier()
            wrapped = MMDistributedDataParallel(
                module=build(case), find_unused_parameters=False,
                broadcast_buffers=False)
            half = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
            outcome['together'] = steps(case, wrapped, half)
        except Exception as e:
            import traceback
            outcome['error'] = f'{e}\n{traceback.format_exc()}'
        torch.save(outcome, f'{folder}/{number}_{rank}.pth')
    dist.destroy_process_group()


def run(folder, port, cases):
    """Run a pair of processes for all cases.

    Args:
        folder (Path): Where the outcomes go.
        port (int): A free port.
        cases (list): What to train.

    Returns:
        list[list[dict]]: Of each case, the outcome of each process.
    """
    context = get_context('forkserver')
    context.set_forkserver_preload([
        'mmcsan', 'mmpretrain.models', 'mmpretrain.datasets', 'mmseg.models',
        'mmseg.datasets', 'mmdet.models', 'mmdet.datasets'
    ])
    pair = [
        context.Process(target=work, args=(rank, port, str(folder), cases))
        for rank in range(2)
    ]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    return [[
        torch.load(folder / f'{number}_{rank}.pth', weights_only=False)
        for rank in range(2)
    ] for number in range(len(cases))]
