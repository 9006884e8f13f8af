# Mask R-CNN with FPN on a Hiera backbone; what is not the backbone's as for
# Swin. Large maps: the later stages see windows, but for some blocks.
_base_ = './mask-rcnn_swin_fpn.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.Hiera',
        window_size=(8, 4, 14, 7),
        drop_path_rate=0.2,
        out_indices=(0, 1, 2, 3)))
