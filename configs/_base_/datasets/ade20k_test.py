# The test images of ADE20K, whose label maps are not public: predictions are
# written for its server. Under a name of its own, as configs of models name
# the rest. The dataset's reduce_zero_label makes the labels written 1 to 150.
release_test = dict(
    dataset=dict(
        data_root='data/ade/release_test',
        data_prefix=dict(_delete_=True, img_path='testing'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(2048, 512), keep_ratio=True),
            dict(type='PackSegInputs')
        ]),
    evaluator=dict(format_only=True),
    tta_pipeline=[
        dict(type='LoadImageFromFile'),
        dict(
            type='TestTimeAug',
            transforms=[[
                dict(
                    type='Resize',
                    scale=(int(2048 * r), int(512 * r)),
                    keep_ratio=True) for r in (0.5, 0.75, 1., 1.25, 1.5, 1.75)
            ],
                        [
                            dict(type='RandomFlip', prob=p,
                                 direction='horizontal') for p in (0., 1.)
                        ], [dict(type='PackSegInputs')]])
    ])
