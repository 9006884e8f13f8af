# What every segmentation run shares.
default_scope = 'mmseg'
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmcsan.SafeCheckpointHook',
        by_epoch=False,
        interval=16000,
        max_keep_ckpts=3),
    # The first loss of NaN ends a run, before it is saved.
    finite=dict(type='mmcsan.StopOnNaNHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'))
# Dropout and drop path go on as if a run had not been stopped.
custom_hooks = [dict(type='mmcsan.ExactResumeHook')]
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(
    type='SegLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=None, deterministic=False)
tta_model = dict(type='SegTTAModel')
