# RetinaNet with FPN on a PVT backbone; otherwise as on Swin.
# There are no output norms: a map that is not returned leaves nothing unused.
_base_ = './retinanet_swin_fpn.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.PyramidVisionTransformer',
        drop_path_rate=0.1,
        out_indices=(1, 2, 3)),
    neck=dict(in_channels=[128, 320, 512]))
