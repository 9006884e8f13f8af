_base_ = './csan-swin-tiny_cascade-mask-rcnn_8xb2-ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='swin-base',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='csan-swin-base_in1k.pth')),
    neck=dict(in_channels=[128, 256, 512, 1024]))
