# UPerNet on a ViT: maps of four blocks, scaled; values of mmseg's
# upernet_vit-b16_mln.
_base_ = './upernet_swin.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmcsan.VisionTransformer',
        img_size=512,
        drop_path_rate=0.1,
        out_indices=(2, 5, 8, 11)),
    neck=dict(type='MultiLevelNeck', scales=[4, 2, 1, 0.5]),
    auxiliary_head=dict(in_index=3))
