# Mask R-CNN on a ViT with windows of 14, but for four blocks that see all,
# and a feature pyramid of its last map; values of mmdet's ViTDet.
_base_ = './mask-rcnn_swin_fpn.py'
norm_cfg = dict(type='mmcsan.LN2d', eps=1e-6, requires_grad=True)
model = dict(
    data_preprocessor=dict(batch_augments=[
        dict(type='BatchFixedSizePad', size=(1024, 1024), pad_mask=True)
    ]),
    backbone=dict(
        _delete_=True,
        type='mmcsan.VisionTransformer',
        img_size=1024,
        window_size=14,
        global_blocks=(2, 5, 8, 11),
        drop_path_rate=0.1,
        out_indices=(11, ),
        norm_cfg=None),
    neck=dict(
        _delete_=True,
        type='mmcsan.SimpleFeaturePyramid',
        in_channels=768,
        out_channels=256,
        num_outs=5),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(
            type='Shared4Conv1FCBBoxHead',
            conv_out_channels=256,
            norm_cfg=norm_cfg),
        mask_head=dict(norm_cfg=norm_cfg)))
