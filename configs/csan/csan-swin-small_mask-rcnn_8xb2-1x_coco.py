_base_ = './csan-swin-tiny_mask-rcnn_8xb2-1x_coco.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='csan-swin-small_in1k.pth')))
