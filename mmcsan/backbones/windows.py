"""Shifted windows on a map of any size: pad, roll, cut, and back."""
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcsan.attentions import TokenLayout
from mmcsan.attentions.graphs import ceil_div, open_sizes

SHIFT_MASK = -100.
"""What is added to logits between regions that a roll made neighbours."""


def pad_map(x: Tensor, rows: int, cols: int, front: Tuple[int, int] = (0, 0)):
    """Pad a map (B, H, W, C) with zeros.

    Args:
        x (Tensor): The map.
        rows (int): Rows to add below.
        cols (int): Columns to add to the right.
        front (tuple[int, int]): Rows above and columns to the left.
            Defaults to (0, 0).

    Returns:
        Tensor: (B, H + rows + front[0], W + cols + front[1], C).
    """
    return F.pad(x, (0, 0, front[1], cols, front[0], rows))


def crop_map(x: Tensor, size: Tuple[int, int],
             front: Tuple[int, int] = (0, 0)) -> Tensor:
    """Undo :func:`pad_map`.

    Args:
        x (Tensor): (B, H, W, C).
        size (tuple[int, int]): Rows and columns to keep.
        front (tuple[int, int]): Rows above and columns to the left of them.
            Defaults to (0, 0).

    Returns:
        Tensor: (B, rows, columns, C), contiguous.
    """
    if not open_sizes(size):
        top, left = front
        return x[:, top:top + size[0], left:left + size[1]].contiguous()
    # A slice may be contiguous or not, which would tie a graph for any size
    # to those like the first one's. A gathered copy always is.
    for axis, (first, length) in enumerate(zip(front, size), start=1):
        index = torch.arange(length, device=x.device) + first
        x = x.index_select(axis, index)
    return x


def roll_map(x: Tensor, shift: Tuple[int, int]) -> Tensor:
    """Shift a map (B, H, W, C) cyclically.

    Args:
        x (Tensor): The map.
        shift (tuple[int, int]): Rows down and columns to the right.

    Returns:
        Tensor: The same shape.
    """
    if not open_sizes((*x.shape[1:3], *shift)):
        return x.roll(shift, dims=(1, 2))
    # Exporters know a roll by a fixed number alone.
    for dim, step in zip((1, 2), shift):
        length = x.shape[dim]
        place = torch.arange(length, device=x.device) - step
        place = torch.where(place < 0, place + length, place)
        place = torch.where(place < length, place, place - length)
        x = x.index_select(dim, place)
    return x


def cut_windows(x: Tensor, window: Tuple[int, int]) -> Tensor:
    """Cut maps into windows.

    Args:
        x (Tensor): (B, H, W, C), H and W multiples of the window.
        window (tuple[int, int]): Height and width of a window.

    Returns:
        Tensor: (B * windows, N, C), image-major, N = height * width.
    """
    batch, height, width, dim = x.shape
    rows, cols = window
    # (B, H, W, C) -> (B, H/h, h, W/w, w, C) -> (B, H/h, W/w, h, w, C)
    x = x.view(batch, height // rows, rows, width // cols, cols, dim)
    return x.transpose(2, 3).reshape(-1, rows * cols, dim)


def merge_windows(x: Tensor, window: Tuple[int, int],
                  size: Tuple[int, int]) -> Tensor:
    """Undo :func:`cut_windows`.

    Args:
        x (Tensor): (B * windows, N, C).
        window (tuple[int, int]): Height and width of a window.
        size (tuple[int, int]): H and W of the map.

    Returns:
        Tensor: (B, H, W, C).
    """
    height, width = size
    rows, cols = window
    # (B*windows, N, C) -> (B, H/h, W/w, h, w, C) -> (B, H/h, h, W/w, w, C)
    x = x.view(-1, height // rows, width // cols, rows, cols, x.shape[-1])
    return x.transpose(2, 3).reshape(-1, height, width, x.shape[-1])


@dataclass(frozen=True)
class WindowGrid:
    """The windows of maps of one size; made by :func:`window_grid`.

    Args:
        size (tuple[int, int]): H and W of the map, in tokens.
        padded (tuple[int, int]): H and W after padding to whole windows.
        window (tuple[int, int]): Height and width of a window.
        shift (tuple[int, int]): Cyclic shift, up and to the left.
        front (tuple[int, int]): Padding above and to the left.
        layout (TokenLayout): What the attention needs to know.
    """

    size: Tuple[int, int]
    padded: Tuple[int, int]
    window: Tuple[int, int]
    shift: Tuple[int, int]
    front: Tuple[int, int]
    layout: TokenLayout

    def split(self, x: Tensor) -> Tensor:
        """Map (B, H, W, C) to windows (B * W, N, C)."""
        if self.layout.valid is not None:
            rows, cols = (
                p - s - f
                for p, s, f in zip(self.padded, self.size, self.front))
            x = pad_map(x, rows, cols, self.front)
        if self.layout.mask is not None:
            x = roll_map(x, (-self.shift[0], -self.shift[1]))
        return cut_windows(x, self.window)

    def merge(self, x: Tensor) -> Tensor:
        """Windows (B * W, N, C) to the padded, still shifted map."""
        return merge_windows(x, self.window, self.padded)

    def restore(self, x: Tensor) -> Tensor:
        """Undo shift and padding of a map (B, Hp, Wp, C): (B, H, W, C)."""
        if self.layout.mask is not None:
            x = roll_map(x, self.shift)
        if self.layout.valid is not None:
            x = crop_map(x, self.size, self.front)
        return x


def window_grid(size: Tuple[int, int],
                window: Optional[Tuple[int, int]],
                shift: Tuple[int, int],
                device: torch.device,
                regions: str = 'mask') -> WindowGrid:
    """Plan the windows of maps of one size.

    Args:
        size (tuple[int, int]): H and W of the map, in tokens.
        window (tuple[int, int], optional): Height and width of a window.
            None makes the whole map one group, without shift.
        shift (tuple[int, int]): Cyclic shift. None takes place on a map that
            is no larger than a window in one direction.
        device (torch.device): Where masks are to live.
        regions (str): ``'mask'`` rolls the map and masks pairs of tokens that
            were not neighbours; ``'apart'`` rolls nothing and pads the
            windows at the border instead, in which tokens lie where a roll
            would put them. Defaults to ``'mask'``.

    Returns:
        WindowGrid: The plan, with its masks. In a graph for any size it has
        those that some size needs.
    """
    size = tuple(size)
    if window is None:
        return WindowGrid(size, size, size, (0, 0), (0, 0), TokenLayout(size))
    window, front = tuple(window), (0, 0)
    any_size = open_sizes(size)
    rolls = regions == 'mask' and any(shift)
    if any_size:
        shift = _open_shift(size, window, shift)
    elif any(s <= w for s, w in zip(size, window)):
        shift, rolls = (0, 0), False
    if regions == 'apart':
        front = tuple((w - s) % w for w, s in zip(window, shift))
        shift = (0, 0)
    padded = tuple(
        ceil_div(s + f, w) * w for s, w, f in zip(size, window, front))
    valid = valid_map = mask = None
    if any_size or padded != size:
        valid, valid_map = _valid(size, padded, window, shift, front, device)
    if rolls:
        mask = _shift_mask(padded, window, shift, device)
    layout = TokenLayout(window, mask, valid, valid_map)
    return WindowGrid(size, padded, window, tuple(shift), front, layout)


def _open_shift(size, window, shift):
    """The shift, or none on maps that are no larger than a window, told by
    arithmetic alone: a graph for any size cannot ask."""
    larger = 1
    for length, span in zip(size, window):
        # 0 up to the window, 1 above
        larger = larger * (1 - 1 // ((length - 1) // span + 1))
    return tuple(s * larger for s in shift)


def _valid(size, padded, window, shift, front,
           device) -> Tuple[Tensor, Tensor]:
    """Which tokens are real: (W, N) and (Hp, Wp, 1)."""
    rows, cols = (
        _between(torch.arange(length, device=device), start, start + real)
        for length, start, real in zip(padded, front, size))
    real = (rows[:, None] & cols[None, :])[None, ..., None]
    real = roll_map(real, (-shift[0], -shift[1]))
    return cut_windows(real, window)[..., 0], real[0]


def _between(index: Tensor, start: int, end: int) -> Tensor:
    return (index >= start) & (index < end)


def _shift_mask(padded, window, shift, device) -> Tensor:
    """Additive mask (W, N, N) between regions that a roll brought together.
    """

    def bands(length, span, step):
        index = torch.arange(length, device=device)
        # Only the last window mixes what was apart: before and after the cut.
        return (index >= length - span).long() + (index >= length - step)

    rows = bands(padded[0], window[0], shift[0])
    cols = bands(padded[1], window[1], shift[1])
    regions = (3 * rows[:, None] + cols[None, :])[None, ..., None]
    regions = cut_windows(regions, window)[..., 0]  # (W, N)
    apart = regions[:, :, None] != regions[:, None, :]
    return apart.float() * SHIFT_MASK
