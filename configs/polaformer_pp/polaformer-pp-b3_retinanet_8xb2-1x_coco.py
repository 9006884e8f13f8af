_base_ = './polaformer-pp-b2_retinanet_8xb2-1x_coco.py'
model = dict(
    backbone=dict(
        arch='b3',
        init_cfg=dict(checkpoint='polaformer-pp-b3_in1k.pth')),
    neck=dict(in_channels=[128, 320, 512]))
