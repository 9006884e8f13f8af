_base_ = './pola-pvt-tiny_retinanet_8xb2-1x_coco.py'
model = dict(
    backbone=dict(
        arch='pvt-small',
        init_cfg=dict(checkpoint='pola-pvt-small_in1k.pth')))
