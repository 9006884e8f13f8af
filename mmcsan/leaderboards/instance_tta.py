"""Test-time augmentation of detectors with masks.

Needs mmdet, hence not in a registry that mmseg fills as well: configs give
its full path, ``mmcsan.leaderboards.instance_tta.InstanceTTAModel``.
"""
from typing import List

from mmcv.ops import batched_nms
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.structures import InstanceData

FLIPPED = {'horizontal': (-1, ), 'vertical': (-2, ), 'diagonal': (-2, -1)}
"""Of each direction the dimensions of a mask that are turned round."""


def flip_back(sample: DetDataSample) -> InstanceData:
    """The instances of a view in the coordinates of the image.

    Args:
        sample (DetDataSample): Its prediction, rescaled to the image.

    Returns:
        InstanceData: A copy without what else was predicted.
    """
    found = sample.pred_instances
    merged = InstanceData(
        bboxes=found.bboxes, scores=found.scores, labels=found.labels)
    if 'masks' in found:
        merged.masks = found.masks
    if sample.metainfo.get('flip'):
        direction = sample.flip_direction
        merged.bboxes = bbox_flip(found.bboxes, sample.ori_shape, direction)
        if 'masks' in found:
            # (n, H, W)
            merged.masks = found.masks.flip(FLIPPED[direction])
    return merged


class InstanceTTAModel(DetTTAModel):
    """mmdet's ``DetTTAModel`` that keeps the masks.

    Boxes of all views go through one NMS, as there. A box that is left keeps
    the mask that its own view predicted, flipped back; masks are not
    averaged. Detectors without masks give what they give there.

    Args:
        tta_cfg (dict): ``nms`` and ``max_per_img``.
        module (dict | nn.Module): The detector.
    """

    def _merge_single_sample(
            self, data_samples: List[DetDataSample]) -> DetDataSample:
        """Merge the views of an image.

        Args:
            data_samples (list[DetDataSample]): The prediction of each.

        Returns:
            DetDataSample: The first, with what was merged.
        """
        merged = InstanceData.cat([flip_back(s) for s in data_samples])
        result = data_samples[0]
        if len(merged):
            boxes, kept = batched_nms(merged.bboxes, merged.scores,
                                      merged.labels, self.tta_cfg.nms)
            limit = self.tta_cfg.max_per_img
            merged = merged[kept[:limit]]
            # NMS may have changed the scores.
            merged.scores = boxes[:limit, -1]
        result.pred_instances = merged
        return result
