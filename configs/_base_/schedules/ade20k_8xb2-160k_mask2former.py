# Mask2Former on ADE20K: poly, 160k iterations (mmseg).
_base_ = './mask2former_adamw.py'
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=0,
        end=160000,
        by_epoch=False)
]
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=160000, val_interval=5000)
