"""Confusion matrices of the three tasks, from samples of the test set."""
from typing import NamedTuple

import numpy as np

ROWS = {'true': 1, 'pred': 0, 'all': None}
"""Over which axis of the matrix the sum is 100 percent."""


class Matches(NamedTuple):
    """Boxes of an image by pairs; each box is in one pair at most.

    ``pairs`` is (P, 2): numbers of an object and of a prediction. ``missed``
    are objects, ``extra`` predictions without a partner. ``kept`` are the
    predictions that took part.
    """

    pairs: np.ndarray
    missed: np.ndarray
    extra: np.ndarray
    kept: np.ndarray


def match(truth: dict, prediction: dict, score_thr: float,
          iou_thr: float) -> Matches:
    """Pair the boxes of an image with those that were predicted.

    Pairs of one class come first, then those of unlike classes, each from the
    highest IoU down. Predictions on ignored regions (COCO's crowds) that have
    no partner are left out.

    Args:
        truth (dict): See ``Sample``.
        prediction (dict): See ``Sample``.
        score_thr (float): Predictions of a lower score are left out.
        iou_thr (float): Least IoU of a pair.

    Returns:
        Matches: By position in ``truth`` and ``prediction``.
    """
    from mmdet.evaluation import bbox_overlaps
    kept = np.flatnonzero(prediction['scores'] >= score_thr)
    objects = np.flatnonzero(~truth['ignored'])
    boxes, found = truth['bboxes'], prediction['bboxes']
    iou = bbox_overlaps(boxes[objects], found[kept])  # (objects, kept)
    same = truth['labels'][objects, None] == prediction['labels'][kept]
    rows, columns = np.nonzero(iou >= iou_thr)
    order = np.lexsort((-iou[rows, columns], ~same[rows, columns]))
    pairs, free, open_ = [], set(range(len(objects))), set(range(len(kept)))
    for row, column in zip(rows[order], columns[order]):
        if row in free and column in open_:
            free.remove(row)
            open_.remove(column)
            pairs.append((objects[row], kept[column]))
    extra = kept[sorted(open_)]
    crowd = bbox_overlaps(
        found[extra], boxes[truth['ignored']], mode='iof') >= iou_thr
    return Matches(
        np.array(pairs, int).reshape(-1, 2), objects[sorted(free)],
        extra[~crowd.any(1)], kept)


class ConfusionMatrix:
    """Counts by class: rows are the truth, columns the prediction.

    Args:
        scope (str): 'mmpretrain', 'mmseg' or 'mmdet', which adds a last row
            and column for what is no object.
        score_thr (float): See :func:`match`.
        iou_thr (float): See :func:`match`.

    Attributes:
        counts (np.ndarray): int64 of shape (C, C): images, pixels or boxes.
            Of detection (C + 1, C + 1).
    """

    units = dict(mmpretrain='images', mmseg='pixels', mmdet='boxes')

    def __init__(self, scope: str, score_thr: float = 0.3,
                 iou_thr: float = 0.5) -> None:
        self.scope = scope
        self.unit = self.units[scope]
        self.thresholds = score_thr, iou_thr
        self.counts = None

    def add(self, sample, num_classes: int) -> np.ndarray:
        """Count an image.

        Args:
            sample (Sample): The image.
            num_classes (int): Number of classes.

        Returns:
            np.ndarray: The counts of this image alone.
        """
        size = num_classes + (self.scope == 'mmdet')
        truth, prediction = self._labels(sample, num_classes)
        # Pairs of labels as one number: row * size + column.
        mine = np.bincount(
            truth.astype(np.int64) * size + prediction,
            minlength=size**2).reshape(size, size)
        self.counts = mine if self.counts is None else self.counts + mine
        return mine

    def _labels(self, sample, background: int) -> tuple:
        """Labels of truth and prediction, side by side, (N, ) each."""
        truth, prediction = sample.truth, sample.prediction
        if self.scope == 'mmpretrain':
            return np.array([truth]), np.array([prediction.argmax()])
        if self.scope == 'mmseg':
            return truth[truth >= 0], prediction[truth >= 0]
        found = match(truth, prediction, *self.thresholds)
        rows, columns = found.pairs.T
        there, said = truth['labels'], prediction['labels']
        return np.concatenate([
            there[rows], there[found.missed],
            np.full(len(found.extra), background)
        ]), np.concatenate([
            said[columns],
            np.full(len(found.missed), background), said[found.extra]
        ])


def percent(counts: np.ndarray, normalize: str) -> np.ndarray:
    """Counts as shares.

    Args:
        counts (np.ndarray): Of shape (C, C).
        normalize (str): 'true': of each row, 'pred': of each column, 'all':
            of the whole, 'none': the counts themselves.

    Returns:
        np.ndarray: Percent, 0 where there is nothing to divide by.
    """
    if normalize == 'none':
        return counts.astype(float)
    total = counts.sum(ROWS[normalize], keepdims=True)
    return 100 * counts / np.maximum(total, 1)
