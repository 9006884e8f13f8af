"""mmcv's compiled operators that detectors need, served by torchvision.

The functions in ``__all__`` take the arguments of the functions of the same
names in mmcv's compiled module (``mmcv/ops/csrc/pytorch/pybind.cpp``) and
return the same results, on CPU tensors to the bit: float32 operations run in
the order of ``csrc/pytorch/cpu/nms.cpp``, thresholds are rounded to float32
as C++ rounds them, and equal scores are ranked by the same call of
``Tensor.sort``.

One exception is known, in float64 with ``sampling_ratio=0``: a bin that is a
whole number of pixels but for an error of rounding can get one sample more
here, since torchvision does not round its size to float32 before the ceiling.
"""
import ctypes
import math
from importlib import metadata
from typing import Callable, NoReturn

import numpy as np
import torch
import torchvision
from mmengine.logging import print_log
from torch import Tensor

__all__ = [
    'nms', 'softnms', 'roi_align_forward', 'roi_align_backward',
    'get_compiler_version', 'get_compiling_cuda_version'
]

_SERVED = 'nms, soft-nms and average-pooling RoIAlign'
_logged = False


def log_once() -> None:
    """Say, once a process, that the fallback is in use."""
    global _logged
    if not _logged:
        print_log(
            'mmcv is installed without its compiled operators: mmcsan '
            f'serves {_SERVED} from torchvision {torchvision.__version__}; '
            'other mmcv operators raise an error when called.',
            logger='current')
    _logged = True


def get_compiler_version() -> str:
    """Return what stands in for the compiler that built the operators."""
    return f'not compiled (torchvision {torchvision.__version__} fallback)'


def get_compiling_cuda_version() -> str:
    """Return what stands in for the CUDA that built the operators."""
    return 'not compiled'


def _build_advice() -> str:
    """Return how to build the compiled operators of the installed mmcv."""
    try:
        dist = metadata.packages_distributions()['mmcv'][0]
        dist = f'{dist}=={metadata.version(dist)}'
    except KeyError:  # a folder on the path, not an installed package
        dist = 'mmcv'
    return (
        'To build the compiled operators (it takes minutes and a C++ '
        'compiler, for CUDA nvcc too, and FORCE_CUDA=1 where no GPU is '
        'visible), run\n'
        "  pip install 'setuptools>=80' wheel packaging ninja\n"
        '  pip download --no-deps --no-build-isolation --no-binary :all: '
        f"'{dist}'\n"
        '  tar xf *mmcv-*.tar.gz && cd *mmcv-*/\n'
        "  sed -i.bak 's/c++17/c++20/' setup.py  # only for torch >= 2.14\n"
        '  pip install --force-reinstall --no-deps --no-build-isolation .')


def missing_op(name: str) -> Callable[..., NoReturn]:
    """Stand in for a compiled operator that is not served.

    mmcv looks up its operators when it is imported, so the error has to wait
    until one is called.

    Args:
        name (str): Name of the operator.

    Returns:
        Callable: Raises NotImplementedError naming the operator.

    Raises:
        AttributeError: For names that start with an underscore, which no
            operator has but which Python itself asks modules for.
    """
    if name.startswith('_'):
        raise AttributeError(f"module 'mmcv._ext' has no attribute {name!r}")

    def raise_error(*args, **kwargs):
        raise NotImplementedError(
            f"the operator '{name}' needs mmcv's compiled operators, which "
            f'this mmcv was installed without; mmcsan serves only {_SERVED} '
            f'in their place. {_build_advice()}')

    raise_error.__name__ = raise_error.__qualname__ = name
    return raise_error


def _check_float32(op: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise RuntimeError(
                f"'{op}' takes float32 {name}, as mmcv's compiled operator "
                f'does, but they are {tensor.dtype}; convert them with '
                '`.float()`')


def _rank(scores: Tensor) -> Tensor:
    """Order indices by descending score, as the compiled operator does.

    Not with a stable sort, as torchvision does: among equal scores the
    choice of this call is the one to reproduce.
    """
    return scores.sort(0, descending=True)[1]


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float,
        offset: int) -> Tensor:
    """Greedy non-maximum suppression.

    Args:
        boxes (Tensor): Boxes (x1, y1, x2, y2), shape (N, 4), float32.
        scores (Tensor): Scores, shape (N, ), float32.
        iou_threshold (float): A box is dropped if its IoU with a kept box of
            a higher score exceeds this.
        offset (int): Added to widths and heights: 1 where x2 and y2 belong to
            the box (pixel indices), else 0.

    Returns:
        Tensor: Indices of the kept boxes by descending score, shape (K, ),
        int64, on the device of ``boxes``.

    Raises:
        RuntimeError: If an input is not float32.
    """
    _check_float32('nms', boxes=boxes, scores=scores)
    if boxes.numel() == 0:
        return boxes.new_empty(0, dtype=torch.int64)
    # Ranks in place of scores leave torchvision's own sort no choice.
    order = _rank(scores.detach())
    ranked = boxes.detach()[order]
    if offset == 0:
        ranks = torch.arange(
            len(order), 0, -1, dtype=boxes.dtype, device=boxes.device)
        threshold = float(np.float32(iou_threshold))
        kept = torch.ops.torchvision.nms(ranked, ranks, threshold)
    else:
        kept = _greedy_nms(ranked.cpu().numpy(), iou_threshold, offset)
        kept = torch.from_numpy(kept).to(boxes.device)
    return order[kept]


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float,
            sigma: float, min_score: float, method: int,
            offset: int) -> Tensor:
    """Soft-NMS (Bodla et al., ICCV 2017): decay scores of overlapping boxes.

    Args:
        boxes (Tensor): Boxes (x1, y1, x2, y2), shape (N, 4), float32.
        scores (Tensor): Scores, shape (N, ), float32.
        dets (Tensor): Written: its first K rows become the kept boxes and
            their decayed scores, shape (N, 5), float32.
        iou_threshold (float): IoU from which the linear and the naive method
            decay.
        sigma (float): Width of the gaussian method.
        min_score (float): Boxes whose score decays below this are dropped.
        method (int): 0 naive (the score becomes 0), 1 linear, 2 gaussian.
        offset (int): Added to widths and heights, 0 or 1.

    Returns:
        Tensor: Indices of the K kept boxes in the order they were selected,
        shape (K, ), int64.

    Raises:
        RuntimeError: If a tensor is not float32.
    """
    _check_float32('softnms', boxes=boxes, scores=scores, dets=dets)
    if boxes.numel() == 0:
        return boxes.new_empty(0, dtype=torch.int64)
    decay = {
        0: _naive_decay(np.float32(iou_threshold)),
        1: _linear_decay(np.float32(iou_threshold)),
        2: _gaussian_decay(np.float32(sigma))
    }[method]
    kept, inds = _soft_nms(boxes.detach().cpu().numpy(),
                           scores.detach().cpu().numpy(), decay,
                           np.float32(min_score), offset)
    dets[:len(kept)] = torch.from_numpy(kept)
    return torch.from_numpy(inds).to(boxes.device)


def _areas(boxes: np.ndarray, offset: int) -> np.ndarray:
    """Return the areas, shape (N, ), of boxes given as rows, (4, N)."""
    x1, y1, x2, y2 = boxes
    offset = np.float32(offset)
    return (x2 - x1 + offset) * (y2 - y1 + offset)


def _ious(box: np.ndarray, boxes: np.ndarray, offset: int) -> np.ndarray:
    """IoUs of one box with N others, in the compiled operator's arithmetic.

    Args:
        box (np.ndarray): x1, y1, x2, y2 and area, shape (5, ).
        boxes (np.ndarray): The same as rows, shape (5, N).
        offset (int): Added to widths and heights.

    Returns:
        np.ndarray: IoUs, shape (N, ), NaN where both areas are 0.
    """
    x1, y1, x2, y2, area = box
    offset, zero = np.float32(offset), np.float32(0)
    width = np.minimum(boxes[2], x2) - np.maximum(boxes[0], x1) + offset
    height = np.minimum(boxes[3], y2) - np.maximum(boxes[1], y1) + offset
    inter = np.maximum(width, zero) * np.maximum(height, zero)
    return inter / (area + boxes[4] - inter)


@np.errstate(all='ignore')
def _greedy_nms(boxes: np.ndarray, iou_threshold: float,
                offset: int) -> np.ndarray:
    """Return the kept rows of ``boxes``, (N, 4), sorted by score."""
    columns = np.ascontiguousarray(boxes.T)  # (N, 4) -> (4, N)
    columns = np.concatenate([columns, _areas(columns, offset)[None]])
    threshold = np.float32(iou_threshold)
    left = np.arange(len(boxes))
    kept = []
    while len(left):
        kept.append(left[0])
        ious = _ious(columns[:, 0], columns[:, 1:], offset)
        stay = ~(ious > threshold)
        left, columns = left[1:], columns[:, 1:]
        if not stay.all():
            left, columns = left[stay], columns[:, stay]
    return np.array(kept, dtype=np.int64)


def _naive_decay(iou_threshold: np.float32) -> Callable:
    return lambda ious: np.where(ious >= iou_threshold, np.float32(0),
                                 np.float32(1))


def _linear_decay(iou_threshold: np.float32) -> Callable:
    return lambda ious: np.where(ious >= iou_threshold,
                                 np.float32(1) - ious, np.float32(1))


def _gaussian_decay(sigma: np.float32) -> Callable:

    def decay(ious):
        exponents = -(ious * ious) / sigma
        weights = np.ones_like(exponents)
        # Most boxes do not overlap, and exp(0) is 1: a call each only for
        # the others.
        some = exponents != 0
        weights[some] = [_expf(e) for e in exponents[some].tolist()]
        return weights

    return decay


def _load_expf() -> Callable[[float], float]:
    """Return C's ``expf``, whose last bit no array library reproduces."""
    # The process itself links the maths library, except on Windows.
    for library in (None, 'ucrtbase'):
        try:
            expf = ctypes.CDLL(library).expf
        except (AttributeError, OSError, TypeError):
            continue
        expf.argtypes, expf.restype = [ctypes.c_float], ctypes.c_float
        return expf
    return math.exp


_expf = _load_expf()


def _argmax(scores: np.ndarray) -> int:
    """Return the first maximum as a loop over ``>`` finds it, NaN or not."""
    best = int(scores.argmax())
    if not np.isnan(scores[best]):
        return best
    if np.isnan(scores[0]):
        return 0
    return int(np.where(np.isnan(scores), -np.inf, scores).argmax())


@np.errstate(all='ignore')
def _soft_nms(boxes: np.ndarray, scores: np.ndarray, decay: Callable,
              min_score: np.float32, offset: int):
    """Soft-NMS with the compiled operator's order of boxes.

    Args:
        boxes (np.ndarray): Boxes, shape (N, 4), float32.
        scores (np.ndarray): Scores, shape (N, ), float32.
        decay (Callable): Maps IoUs, shape (M, ), to factors for the scores.
        min_score (np.float32): Boxes that decay below it are dropped.
        offset (int): Added to widths and heights.

    Returns:
        tuple: Kept boxes with scores, shape (K, 5), and their indices,
        shape (K, ).
    """
    columns = np.ascontiguousarray(boxes.T)  # (N, 4) -> (4, N)
    # Rows: x1, y1, x2, y2, area, score.
    columns = np.concatenate(
        [columns, _areas(columns, offset)[None], [scores]])
    inds = np.arange(len(scores))
    first, end = 0, len(scores)
    while first < end:
        swap, best = [first, 0], first + _argmax(columns[5, first:end])
        swap[1] = best
        columns[:, swap] = columns[:, swap[::-1]]
        inds[swap] = inds[swap[::-1]]
        box = columns[:5, first].copy()
        first += 1
        rest = columns[:, first:end]
        rest[5] *= decay(_ious(box, rest[:5], offset))
        stay = ~(rest[5] < min_score)
        if not stay.all():
            end = first + _drop(rest, inds[first:end], stay)
    # (6, K) -> (K, 5)
    return np.ascontiguousarray(columns[[0, 1, 2, 3, 5], :end].T), inds[:end]


def _drop(columns: np.ndarray, inds: np.ndarray, stay: np.ndarray) -> int:
    """Move what stays to the front, in place, as the compiled operator does.

    It fills each gap, from the front, with the last box that stays.

    Args:
        columns (np.ndarray): Boxes as columns, shape (6, M).
        inds (np.ndarray): Their indices, shape (M, ).
        stay (np.ndarray): Which of them stay, shape (M, ), bool.

    Returns:
        int: How many stay.
    """
    count = int(np.count_nonzero(stay))
    gaps = np.flatnonzero(~stay[:count])
    fillers = count + np.flatnonzero(stay[count:])[::-1]
    columns[:, gaps] = columns[:, fillers]
    inds[gaps] = inds[fillers]
    return count


def _check_roi_align(values: Tensor, rois: Tensor, spatial_scale: float,
                     pool_mode: int, aligned: bool) -> None:
    if pool_mode != 1:
        raise NotImplementedError(
            "RoIAlign with pool_mode='max' needs mmcv's compiled operators; "
            "torchvision, which serves in their place, has pool_mode='avg' "
            f'only. {_build_advice()}')
    if values.dtype not in (torch.float16, torch.float32, torch.float64):
        raise RuntimeError(
            f"RoIAlign takes no {values.dtype}, as mmcv's compiled operator "
            'takes none; run the RoI head in float32 (or, on CUDA, in '
            'float16)')
    # As in the compiled operators, of which only the one for CPUs checks.
    if aligned and values.device.type == 'cpu':
        corners = rois.detach()[:, 1:] * spatial_scale - 0.5
        if not (corners[:, 2:] - corners[:, :2] >= 0).all():
            raise RuntimeError(
                'RoIAlign with aligned=True got RoIs of negative width or '
                'height; they must be (batch index, x1, y1, x2, y2) with '
                'x1 <= x2 and y1 <= y2')


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor,
                      argmax_y: Tensor, argmax_x: Tensor, aligned_height: int,
                      aligned_width: int, spatial_scale: float,
                      sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:
    """RoIAlign (He et al., ICCV 2017) with average pooling.

    Args:
        input (Tensor): Feature map, shape (B, C, H, W).
        rois (Tensor): Batch index and corners in image coordinates,
            (index, x1, y1, x2, y2), shape (N, 5), of the dtype of ``input``.
        output (Tensor): Written: the pooled features, shape
            (N, C, aligned_height, aligned_width).
        argmax_y (Tensor): Of use to max pooling only.
        argmax_x (Tensor): Of use to max pooling only.
        aligned_height (int): Height of the output.
        aligned_width (int): Width of the output.
        spatial_scale (float): Size of the feature map over that of the image.
        sampling_ratio (int): Samples per bin along each axis; 0 takes as many
            as the bin has pixels.
        pool_mode (int): 1, average pooling.
        aligned (bool): Whether pixel centres lie at half integers.

    Raises:
        NotImplementedError: If ``pool_mode`` is not 1.
        RuntimeError: For other dtypes than float16, float32 and float64, and
            for aligned RoIs of negative size (CPU only).
    """
    spatial_scale = float(np.float32(spatial_scale))
    _check_roi_align(input, rois, spatial_scale, pool_mode, aligned)
    # Under autocast torchvision would compute in another precision.
    with torch.autocast(input.device.type, enabled=False):
        output.copy_(
            torch.ops.torchvision.roi_align(input, rois, spatial_scale,
                                            aligned_height, aligned_width,
                                            sampling_ratio, aligned))


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor,
                       argmax_x: Tensor, grad_input: Tensor,
                       aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int,
                       pool_mode: int, aligned: bool) -> None:
    """Gradient of :func:`roi_align_forward` by its ``input``.

    Args:
        grad_output (Tensor): Gradient of the output, shape
            (N, C, aligned_height, aligned_width).
        grad_input (Tensor): Written: the gradient of the feature map, shape
            (B, C, H, W).

    The other arguments and the errors are those of the forward function.
    """
    spatial_scale = float(np.float32(spatial_scale))
    _check_roi_align(grad_output, rois, spatial_scale, pool_mode, aligned)
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad_output, rois, spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned))
