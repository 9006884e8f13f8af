"""Views of an image are merged with their masks."""
import pytest
import torch
from mmengine.structures import InstanceData

import mmcsan  # noqa: F401  # before mmdet: it may lack mmcv's operators
from mmcsan.leaderboards.instance_tta import InstanceTTAModel

from mmdet.models import DetTTAModel  # isort: skip
from mmdet.structures import DetDataSample  # isort: skip

HEIGHT, WIDTH = 24, 40
CFG = dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=3)


class Stub(torch.nn.Module):

    def test_step(self, data):
        raise NotImplementedError


def model(cls=InstanceTTAModel):
    from mmengine.config import ConfigDict
    return cls(tta_cfg=ConfigDict(CFG), module=Stub())


def view(boxes, scores, labels, direction=None, masks=True):
    """Objects at boxes of the image, as a view turned so predicts them."""
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    maps = torch.zeros(len(boxes), HEIGHT, WIDTH, dtype=torch.bool)
    for one, (x1, y1, x2, y2) in zip(maps, boxes.int().tolist()):
        # Not symmetric: the upper left pixel is missing.
        one[y1:y2, x1:x2] = True
        one[y1, x1] = False
    if direction in ('horizontal', 'diagonal'):
        maps = maps.flip(2)
        boxes = torch.stack([
            WIDTH - boxes[:, 2], boxes[:, 1], WIDTH - boxes[:, 0], boxes[:, 3]
        ], 1)
    if direction in ('vertical', 'diagonal'):
        maps = maps.flip(1)
        boxes = torch.stack([
            boxes[:, 0], HEIGHT - boxes[:, 3], boxes[:, 2],
            HEIGHT - boxes[:, 1]
        ], 1)
    found = InstanceData(
        bboxes=boxes,
        scores=torch.tensor(scores),
        labels=torch.tensor(labels, dtype=torch.long))
    if masks:
        found.masks = maps
    return DetDataSample(
        pred_instances=found,
        metainfo=dict(
            ori_shape=(HEIGHT, WIDTH),
            flip=direction is not None,
            flip_direction=direction))


A, B, C = [2, 3, 12, 13], [20, 4, 38, 22], [1, 14, 9, 23]


def merge(*views, cls=InstanceTTAModel):
    [merged] = model(cls).merge_preds([list(views)])
    return merged.pred_instances


@pytest.mark.parametrize('direction', ['horizontal', 'vertical', 'diagonal'])
def test_masks_are_flipped_back_with_their_boxes(direction):
    merged = merge(
        view([A, B], [0.9, 0.6], [4, 7]),
        view([B, A, C], [0.8, 0.7, 0.5], [7, 4, 4], direction))
    assert merged.bboxes.tolist() == [A, B, C]
    assert torch.equal(merged.scores, torch.tensor([0.9, 0.8, 0.5]))
    assert merged.labels.tolist() == [4, 7, 4]
    wanted = view([A, B, C], [1., 1., 1.], [0, 0, 0]).pred_instances.masks
    assert torch.equal(merged.masks, wanted)


def test_other_classes_are_kept_and_the_best_come_first():
    merged = merge(
        view([A, B], [0.3, 0.6], [1, 1]),
        view([A, C], [0.9, 0.5], [2, 1], 'horizontal'))
    assert merged.labels.tolist() == [2, 1, 1]  # of four: max_per_img
    assert merged.bboxes.tolist() == [A, B, C]
    assert len(merged.masks) == 3


def test_views_without_objects():
    nothing = view([], [], [], 'horizontal')
    assert len(merge(view([], [], []), nothing)) == 0
    assert merge(view([A], [0.5], [0]), nothing).bboxes.tolist() == [A]
    assert merge(nothing, view([A], [0.5], [0])).bboxes.tolist() == [A]


def test_without_masks_it_is_that_of_mmdet():

    def views():
        return (view([A, B], [0.9, 0.6], [4, 7], masks=False),
                view([B, C], [0.8, 0.5], [7, 4], 'horizontal', masks=False))

    ours, theirs = merge(*views()), merge(*views(), cls=DetTTAModel)
    assert 'masks' not in ours
    for key in ('bboxes', 'scores', 'labels'):
        assert torch.equal(ours[key], theirs[key])


def test_mmdet_itself_stops_at_masks():
    """If not, its own is to be used."""
    with pytest.raises(AssertionError, match='instance segmentation'):
        merge(view([A], [0.9], [4]), cls=DetTTAModel)
