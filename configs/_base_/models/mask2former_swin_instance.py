# Mask2Former for instances on a Swin backbone; values of mmdet's
# mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco.
_base_ = './mask2former_decoder.py'
num_classes = 80
model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        mask_pad_value=0,
        pad_seg=False,
        batch_augments=[
            dict(
                type='BatchFixedSizePad',
                size=(1024, 1024),
                img_pad_value=0,
                pad_mask=True,
                mask_pad_value=0,
                pad_seg=False)
        ]),
    backbone=dict(
        type='mmcsan.SwinTransformer',
        drop_path_rate=0.3,
        out_indices=(0, 1, 2, 3)),
    panoptic_head=dict(
        num_things_classes=num_classes,
        num_stuff_classes=0,
        loss_cls=dict(
            type='mmdet.CrossEntropyLoss',
            use_sigmoid=False,
            loss_weight=2.0,
            reduction='mean',
            class_weight=[1.0] * num_classes + [0.1]),
        **_base_.decoder),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead',
        num_things_classes=num_classes,
        num_stuff_classes=0,
        loss_panoptic=None,
        init_cfg=None),
    train_cfg=_base_.matching,
    test_cfg=dict(
        panoptic_on=False,
        semantic_on=False,
        instance_on=True,
        max_per_image=100,
        iou_thr=0.8,
        filter_low_score=True))
