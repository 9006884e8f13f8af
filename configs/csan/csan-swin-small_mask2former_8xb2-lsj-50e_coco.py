_base_ = './csan-swin-tiny_mask2former_8xb2-lsj-50e_coco.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='csan-swin-small_in1k.pth')))
