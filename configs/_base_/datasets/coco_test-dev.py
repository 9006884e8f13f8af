# COCO test-dev, whose annotations are not public: detections are written for
# its server. Under a name of its own, as configs of models name the rest.
test_dev = dict(
    dataset=dict(
        ann_file='annotations/image_info_test-dev2017.json',
        data_prefix=dict(img='test2017/')),
    evaluator=dict(
        ann_file='data/coco/annotations/image_info_test-dev2017.json',
        format_only=True))
