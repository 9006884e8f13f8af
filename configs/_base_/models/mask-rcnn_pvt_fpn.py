# Mask R-CNN with FPN on a PVT backbone; otherwise as on Swin.
_base_ = './mask-rcnn_swin_fpn.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.PyramidVisionTransformer',
        drop_path_rate=0.1,
        out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[64, 128, 320, 512]))
