# Mask2Former's AdamW: the backbone at a tenth, norms and embeddings not
# decayed; mmdet's and mmseg's values. The longest key that matches decides,
# so that norms of the backbone are named one by one.
slow_norm = dict(lr_mult=0.1, decay_mult=0.)
embedding = dict(lr_mult=1.0, decay_mult=0.)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='AdamW', lr=1e-4, weight_decay=0.05, eps=1e-8,
        betas=(0.9, 0.999)),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        custom_keys={
            'backbone': dict(lr_mult=0.1, decay_mult=1.0),
            'backbone.patch_embed.norm': slow_norm,
            'backbone.norm': slow_norm,
            'relative_position_bias_table': slow_norm,
            'query_embed': embedding,
            'query_feat': embedding,
            'level_embed': embedding,
            **{
                f'backbone.stages.{stage}.downsample.norm': slow_norm
                for stage in range(1, 4)
            },
            **{
                f'backbone.stages.{stage}.blocks.{block}.norm': slow_norm
                for stage, depth in enumerate((2, 2, 18, 2))
                for block in range(depth)
            }
        }))
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=16)
