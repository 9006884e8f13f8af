# PVT's Mask R-CNN has twice the learning rate of its RetinaNet.
_base_ = './coco_8xb2-1x_adamw_pvt.py'
optim_wrapper = dict(optimizer=dict(lr=2e-4))
