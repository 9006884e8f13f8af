# Mask R-CNN with FPN on a PolaFormer++ backbone; otherwise as on Swin. With
# so few images a GPU batch norms keep the statistics of pretraining.
_base_ = './mask-rcnn_swin_fpn.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.PolaFormerPP',
        norm_eval=True,
        drop_path_rate=0.2,
        out_indices=(0, 1, 2, 3)))
