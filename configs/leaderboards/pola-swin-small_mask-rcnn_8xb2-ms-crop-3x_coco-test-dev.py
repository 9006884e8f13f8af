_base_ = [
    '../pola/pola-swin-small_mask-rcnn_8xb2-ms-crop-3x_coco.py',
    '../_base_/datasets/coco_test-dev.py'
]
test_dataloader = dict(dataset=_base_.test_dev.dataset)
test_evaluator = dict(
    outfile_prefix='work_dirs/{{fileBasenameNoExtension}}/test-dev2017',
    **_base_.test_dev.evaluator)
