# UPerNet on a PolaFormer++ backbone; otherwise as on Swin. With so few images
# a GPU batch norms of the backbone keep the statistics of pretraining.
_base_ = './upernet_swin.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.PolaFormerPP',
        norm_eval=True,
        drop_path_rate=0.3,
        out_indices=(0, 1, 2, 3)))
