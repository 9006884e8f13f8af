"""Learned positions of a grid, read at a grid of any other size."""
from functools import lru_cache
from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .graphs import in_graph, open_sizes


def _resampling(old: int, new: int, antialias: bool, dtype: torch.dtype,
                device: torch.device) -> Tensor:
    """The bicubic resampling of one axis as a matrix (new, old).

    What depends on sizes alone is kept; the resized table, which also depends
    on a parameter that anything may change, is not.
    """
    # Outside of inference_mode: what it makes could not be trained through.
    with torch.inference_mode(False), torch.no_grad():
        eye = torch.eye(old, dtype=torch.float64)[None, None]
        # Along the first axis; the second keeps its size.
        matrix = F.interpolate(
            eye, size=(new, old), mode='bicubic', antialias=antialias)
        return matrix[0, 0].to(device, dtype)


_kept_resampling = lru_cache(maxsize=64)(_resampling)


def _resampling_in_graph(old: int, new: int, antialias: bool,
                         dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same matrix by arithmetic alone, which any runtime knows.

    Of an axis that keeps its size it is the identity.
    """
    if antialias:
        return _resampling(old, new, antialias, dtype, device)
    double = dict(dtype=torch.float64, device=device)
    centres = (torch.arange(new, **double) + 0.5) * old / new - 0.5
    first = centres.floor() - 1
    places = torch.arange(old, **double)
    matrix = torch.zeros(1, 1, **double)
    for step in range(4):
        weight = _cubic((centres - first - step).abs())[:, None]
        # What lies outside reads the border.
        place = (first + step).clamp(0, old - 1)[:, None]
        matrix = matrix + weight * (place == places)
    return matrix.to(dtype)


def _cubic(distance: Tensor) -> Tensor:
    """The kernel of bicubic resampling, with torch's coefficient -0.75."""
    near = (1.25 * distance - 2.25) * distance**2 + 1
    far = -0.75 * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance <= 1, near, far)


def resize_positions(table: Tensor,
                     size: Tuple[int, int],
                     antialias: bool = False) -> Tensor:
    """Resize a table of positions in 2-D, bicubic.

    A bicubic resize is linear and works on one axis at a time, so it is two
    products with matrices that depend on the sizes alone and are kept. Its
    gradient is deterministic on every device.

    Args:
        table (Tensor): (1, h, w, C).
        size (tuple[int, int]): Height and width to resize to.
        antialias (bool): Whether to resample as Pillow does.
            Defaults to False.

    Returns:
        Tensor: (1, H, W, C); ``table`` itself if it has that size. In a
        graph for any size it is resampled all the same, which changes no
        number.
    """
    old = tuple(table.shape[1:3])
    if not open_sizes(size) and old == tuple(size):
        return table
    # What is traced is part of the graph, and nothing to keep.
    matrix = _resampling_in_graph if in_graph() else _kept_resampling
    rows, cols = (
        matrix(o, n, antialias, table.dtype, table.device)
        for o, n in zip(old, size))
    with torch.autocast(table.device.type, enabled=False):
        # (1, h, w, C) -> (1, H, w, C) -> (1, H, W, C)
        table = torch.tensordot(rows, table, dims=([1], [1])).transpose(0, 1)
        return torch.tensordot(table, cols, dims=([2], [1])).transpose(2, 3)
