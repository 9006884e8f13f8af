# PolaFormer++'s classifier: projected, then pooled; otherwise as on Swin.
_base_ = './swin_classifier.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.PolaFormerPP',
        norm_cfg=None,
        drop_path_rate=0.1,
        out_indices=(3, )),
    neck=dict(
        _delete_=True,
        type='mmcsan.ProjectedPooling',
        in_channels=512,
        out_channels=2048),
    head=dict(in_channels=2048))
