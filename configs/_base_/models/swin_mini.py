# A Swin small enough for a CPU: digits of 48 x 48 in the classifier, scenes of
# 128 x 128 in what is fine-tuned from it. CSaN V2, whose depthwise convolution
# helps it to learn from little data.
swin_mini = dict(
    type='mmcsan.SwinTransformer',
    arch=dict(embed_dims=32, depths=[1, 1, 2, 1], num_heads=[2, 4, 8, 16]),
    attention=dict(type='CSaN', posinfo=True),
    window_size=4,
    drop_path_rate=0.,
    # At such widths the usual 0.02 learns slowly.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'))
