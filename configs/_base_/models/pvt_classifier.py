# Classifier on a PVT backbone; otherwise as on Swin.
_base_ = './swin_classifier.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.PyramidVisionTransformer',
        drop_path_rate=0.1,
        out_indices=(3, )),
    head=dict(in_channels=512))
