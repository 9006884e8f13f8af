_base_ = './polaformer-pp-b2_mask-rcnn_8xb2-ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='b3',
        init_cfg=dict(checkpoint='polaformer-pp-b3_in1k.pth')),
    neck=dict(in_channels=[64, 128, 320, 512]))
