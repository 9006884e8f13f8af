_base_ = './csan-swin-tiny_mask-rcnn_8xb2-ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='csan-swin-small_in1k.pth')))
