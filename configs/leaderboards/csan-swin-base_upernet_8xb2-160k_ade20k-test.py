_base_ = [
    '../csan/csan-swin-base_upernet_8xb2-160k_ade20k-512x512.py',
    '../_base_/datasets/ade20k_test.py'
]
test_dataloader = dict(dataset=_base_.release_test.dataset)
test_evaluator = dict(
    output_dir='work_dirs/{{fileBasenameNoExtension}}/label-maps',
    **_base_.release_test.evaluator)
tta_pipeline = _base_.release_test.tta_pipeline
