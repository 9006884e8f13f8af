"""Record the answers of mmcv's compiled operators for tests/test_compat.

Run it where mmcv has its compiled operators, on x86-64 with glibc::

    python tests/data/make_mmcv_ops_reference.py

The inputs are made from ``numpy.random.RandomState``, whose streams are
frozen, so that only the answers are kept. Each case calls mmcv's public
functions; the tests run the same cases over the fallback.
"""
import hashlib
import os.path as osp
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

REFERENCE = osp.join(osp.dirname(__file__), 'mmcv_ops_reference.npz')
KINDS = ('plain', 'integers', 'ties', 'duplicates', 'degenerate', 'nonfinite')
METHODS = ('naive', 'linear', 'gaussian')


def make_boxes(kind: str, num: int):
    """Return boxes, shape (num, 4), and scores, shape (num, ), of a kind.

    Scores are distinct except for 'ties', whose order is up to the sort.
    """
    rng = np.random.RandomState(num + len(kind))
    corners = rng.random_sample((num, 2)) * 200
    extents = rng.random_sample((num, 2)) * 80
    boxes = np.concatenate([corners, corners + extents], axis=1)
    scores = (rng.permutation(num) + 1) / (num + 1)
    if kind == 'ties':
        scores = np.ceil(scores * 6) / 6
    elif kind == 'integers':  # whose IoUs often are the very threshold
        boxes = np.ceil(boxes / 20)
    elif kind == 'duplicates':
        boxes[num // 2:] = boxes[:num - num // 2]
    elif kind == 'degenerate':
        boxes[::4, 2:] = boxes[::4, :2]  # a point
        boxes[1::4, 2] = boxes[1::4, 0]  # a line
        boxes[2::8] = boxes[2::8][:, [2, 1, 0, 3]]  # x2 < x1
        boxes[3::8] = boxes[3::8][:, [2, 3, 0, 1]]  # both reversed
        boxes[4::12] = boxes[:1]  # the same point
    elif kind == 'nonfinite':
        boxes[::7, 0] = np.nan
        boxes[1::7, 3] = np.nan
        boxes[2::7, 2] = np.inf
        boxes[3::7, 1] = -np.inf
    return (torch.from_numpy(boxes.astype(np.float32)),
            torch.from_numpy(scores.astype(np.float32)))


def _indices(inds: Tensor) -> np.ndarray:
    assert inds.dtype == torch.int64
    return inds.numpy().astype(np.int16)


def nms_case(kind, num, **kwargs):
    """Greedy NMS: kept indices, and for ties the order they were ranked."""
    from mmcv.ops import nms
    boxes, scores = make_boxes(kind, num)
    dets, inds = nms(boxes, scores, **kwargs)
    assert torch.equal(dets[:, 4], scores[inds])
    answers = dict(inds=_indices(inds))
    if kind == 'ties':
        answers['order'] = _indices(scores.sort(0, descending=True)[1])
    return answers


def soft_nms_case(kind, num, nan_scores=False, **kwargs):
    """Soft-NMS: kept indices and decayed scores, the latter thinned out
    beside a hash where they are many."""
    from mmcv.ops import soft_nms
    boxes, scores = make_boxes(kind, num)
    if nan_scores:
        scores[::5] = np.nan
    dets, inds = soft_nms(boxes, scores, **kwargs)
    np.testing.assert_array_equal(dets[:, :4], boxes[inds])
    decayed = dets[:, 4].numpy()
    answers = dict(inds=_indices(inds), scores=decayed)
    if num > 1000:
        digest = hashlib.sha256(decayed.tobytes()).digest()
        answers['scores'] = decayed[::50]
        answers['sha256'] = np.frombuffer(digest, dtype=np.uint8)
    return answers


def batched_nms_case(num, class_agnostic, **nms_cfg):
    """NMS per class: kept indices and their scores."""
    from mmcv.ops import batched_nms
    boxes, scores = make_boxes('plain', num)
    labels = torch.from_numpy(np.random.RandomState(1).randint(0, 4, num))
    dets, keep = batched_nms(boxes, scores, labels, nms_cfg, class_agnostic)
    assert torch.equal(dets[:, :4], boxes[keep])
    return dict(inds=_indices(keep), scores=dets[:, 4].numpy())


def make_rois(num: int, scale: float, reversed_rois: bool):
    """Return RoIs, shape (num, 5), within, across and beyond a 13 x 17 map."""
    rng = np.random.RandomState(num)
    starts = rng.random_sample((num, 2)) * (17, 13) - 2
    extents = rng.random_sample((num, 2)) * (12, 9)
    extents[::5] = 0
    extents[1::5] *= 0.1
    if reversed_rois:
        extents[2::5] *= -1
    starts[3::7] += 30
    corners = np.concatenate([starts, starts + extents], axis=1) / scale
    return np.concatenate([np.arange(num)[:, None] % 2, corners], axis=1)


def roi_align_case(num, dtype, scale, ratio, aligned, output_size=(3, 2)):
    """RoIAlign: the pooled features and the gradient of the feature map."""
    from mmcv.ops import roi_align
    rng = np.random.RandomState(2)
    values = torch.from_numpy(rng.random_sample((2, 2, 13, 17)) - 0.5)
    rois = torch.from_numpy(make_rois(num, scale, not aligned)).to(dtype)
    grads = torch.from_numpy(rng.random_sample((num, 2, *output_size)) - 0.5)
    values = values.to(dtype).requires_grad_()
    output = roi_align(values, rois, output_size, scale, ratio, 'avg', aligned)
    output.backward(grads.to(dtype))
    return dict(output=output.detach().numpy(), grad=values.grad.numpy())


def _nms_cases():
    for kind, offset, thr in product(KINDS, (0, 1), (0., 0.3, 0.6, 0.7)):
        case = partial(nms_case, kind, 200, iou_threshold=thr, offset=offset)
        yield f'nms-{kind}-{thr}-offset{offset}', case
    for num, offset in product((0, 1, 2), (0, 1)):
        case = partial(nms_case, 'plain', num, iou_threshold=.5, offset=offset)
        yield f'nms-{num}-boxes-offset{offset}', case
    for offset, thr in product((0, 1), (0.5, 0.7)):
        case = partial(
            nms_case, 'plain', 10000, iou_threshold=thr, offset=offset)
        yield f'nms-10000-boxes-{thr}-offset{offset}', case
    for max_num in (-1, 20):
        case = partial(
            nms_case,
            'plain',
            200,
            iou_threshold=0.6,
            score_threshold=0.4,
            max_num=max_num)
        yield f'nms-score-threshold-max{max_num}', case


def _soft_nms_cases():
    for kind, method, offset in product(KINDS, METHODS, (0, 1)):
        case = partial(soft_nms_case, kind, 100, method=method, offset=offset)
        yield f'soft-{kind}-{method}-offset{offset}', case
    for method, num in product(METHODS, (0, 1, 2)):
        case = partial(soft_nms_case, 'plain', num, method=method)
        yield f'soft-{num}-boxes-{method}', case
    for method, thr, sigma, score in product(METHODS, (0., 0.6), (0.1, 0.9),
                                             (0., 0.2)):
        case = partial(
            soft_nms_case,
            'plain',
            60,
            method=method,
            iou_threshold=thr,
            sigma=sigma,
            min_score=score)
        yield f'soft-{method}-thr{thr}-sigma{sigma}-min{score}', case
    for method in METHODS:
        case = partial(
            soft_nms_case, 'ties', 60, method=method, nan_scores=True)
        yield f'soft-nan-scores-{method}', case
        case = partial(soft_nms_case, 'plain', 10000, method=method)
        yield f'soft-10000-boxes-{method}', case


def _batched_nms_cases():
    configs = dict(
        nms=dict(type='nms', iou_threshold=0.5),
        limited=dict(
            type='nms', iou_threshold=0.5, score_threshold=.2, max_num=30),
        soft=dict(type='soft_nms', iou_threshold=0.3, min_score=0.05))
    for name, agnostic, split in product(configs, (False, True), (0, 10000)):
        case = partial(
            batched_nms_case,
            300,
            agnostic,
            split_thr=split or 100,
            **configs[name])
        mode = ('agnostic'
                if agnostic else 'by-class') + ('' if split else '-split')
        yield f'batched-{name}-{mode}', case


def _roi_align_cases():
    for dtype, scale, ratio, aligned in product((torch.float32, torch.float64),
                                                (1., 1 / 4, 1 / 3), (0, 2),
                                                (False, True)):
        case = partial(roi_align_case, 12, dtype, scale, ratio, aligned)
        name = f'{scale:.2f}-ratio{ratio}-aligned{aligned}'
        yield f'roi-{str(dtype)[6:]}-{name}', case
    for ratio, aligned in product((0, 2), (False, True)):
        case = partial(roi_align_case, 0, torch.float32, 1., ratio, aligned)
        yield f'roi-none-ratio{ratio}-aligned{aligned}', case
    yield 'roi-7x7', partial(roi_align_case, 6, torch.float32, 1 / 8, 0, True,
                             (7, 7))
    yield 'roi-float16', partial(roi_align_case, 12, torch.float16, 1., 2,
                                 True)


CASES = {
    **dict(_nms_cases()),
    **dict(_soft_nms_cases()),
    **dict(_batched_nms_cases()),
    **dict(_roi_align_cases())
}


def main():
    """Record all cases."""
    from mmcv import _ext
    if not getattr(_ext, '__file__', None):
        raise SystemExit('this mmcv has no compiled operators')
    answers = {
        f'{name}/{key}': value
        for name, case in CASES.items()
        for key, value in case().items()
    }
    np.savez_compressed(REFERENCE, **answers)
    print(f'{len(CASES)} cases, {osp.getsize(REFERENCE)} bytes: {REFERENCE}')


if __name__ == '__main__':
    main()
