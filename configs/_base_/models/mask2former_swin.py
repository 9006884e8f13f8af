# Semantic Mask2Former on a Swin backbone; values of mmseg's
# mask2former_swin-t. The decoder is mmdet's.
_base_ = './mask2former_decoder.py'
num_classes = 150
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
        test_cfg=dict(size_divisor=32)),
    backbone=dict(
        type='mmcsan.SwinTransformer',
        drop_path_rate=0.3,
        out_indices=(0, 1, 2, 3)),
    decode_head=dict(
        num_classes=num_classes,
        align_corners=False,
        loss_cls=dict(
            type='mmdet.CrossEntropyLoss',
            use_sigmoid=False,
            loss_weight=2.0,
            reduction='mean',
            class_weight=[1.0] * num_classes + [0.1]),
        train_cfg=_base_.matching,
        **_base_.decoder),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
