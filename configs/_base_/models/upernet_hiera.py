# UPerNet on a Hiera backbone; what is not the backbone's as for Swin.
_base_ = './upernet_swin.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.Hiera',
        drop_path_rate=0.3,
        out_indices=(0, 1, 2, 3)))
