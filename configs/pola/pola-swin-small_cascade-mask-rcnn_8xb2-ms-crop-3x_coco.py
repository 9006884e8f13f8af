_base_ = './pola-swin-tiny_cascade-mask-rcnn_8xb2-ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='pola-swin-small_in1k.pth')))
