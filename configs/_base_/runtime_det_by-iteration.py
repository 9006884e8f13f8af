# Detection runs that count iterations rather than epochs.
_base_ = './runtime_det.py'
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=5000))
log_processor = dict(by_epoch=False)
