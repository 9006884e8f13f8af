_base_ = './csan-swin-tiny_dino-4scale_8xb2-12e_coco.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='csan-swin-small_in1k.pth')))
