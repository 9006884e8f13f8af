"""Resize tables of positions in 2-D, between any two grids."""
import math
from typing import List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .errors import CheckpointError

Size = Tuple[int, int]

BIAS_TABLE = 'relative_position_bias_table'

MAX_PREFIX = 8
"""Most prefix tokens (class token, registers) that are looked for."""


def position_grid(module: nn.Module, name: str) -> Optional[Size]:
    """The grid on which a parameter's positions lie.

    Args:
        module (nn.Module): Owner of the parameter.
        name (str): The parameter's own name.

    Returns:
        tuple[int, int] | None: Height and width; None if the parameter is no
        table of positions. Of a bias table, those of its window.
    """
    grids = getattr(module, 'position_grids', None) or {}
    if name in grids:
        return tuple(grids[name])
    if name in (BIAS_TABLE, 'positional_encoding'):
        grid = getattr(module, 'grid_size', None)
        return None if grid is None else tuple(grid)
    return None


def sides_of(length: int, like: Size, odd: bool = False) -> List[Size]:
    """Sides that a grid of so many places may have, the likeliest first.

    A square is likeliest; otherwise what comes closest to the proportions of
    another grid.

    Args:
        length (int): Number of places.
        like (tuple[int, int]): Sides of the other grid.
        odd (bool): Whether both sides are odd, as those of relative-position
            tables are. Defaults to False.

    Returns:
        list[tuple[int, int]]: Height and width each; all there are.
    """
    step = 2 if odd else 1
    pairs = [(side, length // side) for side in range(1, length + 1, step)
             if length % side == 0 and not (odd and length // side % 2 == 0)]

    def unlike(pair: Size) -> float:
        if pair[0] == pair[1]:
            return -1
        return abs(math.log(pair[0] * like[1] / pair[1] / like[0]))

    return sorted(pairs, key=unlike)


def _interpolate(grid: Tensor, size: Size) -> Tensor:
    """(1, C, h, w) to (1, C, H, W), bicubic, in float32 at least."""
    kind = torch.promote_types(grid.dtype, torch.float32)
    return F.interpolate(
        grid.to(kind), size=size, mode='bicubic',
        align_corners=False).to(grid.dtype)


def resize_relative_table(table: Tensor, window: Size) -> Tensor:
    """Resize the relative-position table of a window in 2-D, bicubic.

    Args:
        table (Tensor): ((2h - 1) * (2w - 1), heads) of a window h x w.
        window (tuple[int, int]): Height and width of the new window.

    Returns:
        Tensor: The table of the new window.

    Raises:
        CheckpointError: If the table belongs to no window.
    """
    new = tuple(2 * side - 1 for side in window)
    pairs = sides_of(len(table), new, odd=True)
    if not pairs:
        raise CheckpointError(f'a relative-position table of {len(table)} '
                              'rows belongs to no window')
    # (L, H) -> (1, H, h, w) -> (1, H, h', w') -> (L', H)
    grid = table.t().reshape(1, -1, *pairs[0])
    return _interpolate(grid, new).flatten(2)[0].t().contiguous()


def _split_length(length: int, prefix: int, grid: Size) -> Tuple[int, Size]:
    """Prefix tokens and sides of a table of ``length`` positions."""
    counts = [prefix, *(n for n in range(MAX_PREFIX + 1) if n != prefix)]
    for count in counts:
        side = math.isqrt(max(length - count, 0))
        if side and side * side == length - count:
            return count, (side, side)
    if length <= prefix:
        raise CheckpointError(f'{length} positions are too few')
    return prefix, sides_of(length - prefix, grid)[0]


def resize_positions(table: Tensor, shape: Tuple[int, ...],
                     grid: Size) -> Tensor:
    """Resize a table of absolute positions in 2-D, bicubic.

    Prefix tokens are kept. Where the new table has none the old ones are left
    out; where it alone has some they get zeros, as nothing was added to them.

    Args:
        table (Tensor): (1, N, C) or (N, C), N = prefix + h * w; or a map
            (1, C, h, w).
        shape (tuple[int]): The new table's shape.
        grid (tuple[int, int]): Height and width of the new grid.

    Returns:
        Tensor: The table in the new shape.

    Raises:
        CheckpointError: If channels or numbers of prefix tokens differ, or
            there are several tables.
    """
    if len(shape) == 4:
        if table.dim() != 4 or table.shape[:2] != (1, shape[1]):
            raise CheckpointError('no map, or maps of other channels')
        return _interpolate(table, tuple(shape[2:]))
    if table.dim() not in (2, 3) or table.shape[-1] != shape[-1]:
        raise CheckpointError('positions of other channels')
    if table.dim() == 3 and table.shape[0] != 1:
        raise CheckpointError(f'{table.shape[0]} tables, not one')
    # (1, N, C) -> (N, C)
    table = table.reshape(-1, table.shape[-1])
    prefix = math.prod(shape[:-1]) - grid[0] * grid[1]
    count, sides = _split_length(len(table), prefix, grid)
    head, body = table[:count], table[count:]
    if count != prefix:
        if count and prefix:
            raise CheckpointError(f'{count} prefix tokens, not {prefix}')
        head = table.new_zeros(prefix, table.shape[1])
    if sides != tuple(grid):
        # (h*w, C) -> (1, C, h, w) -> (1, C, H, W) -> (H*W, C)
        body = body.t().reshape(1, -1, *sides)
        body = _interpolate(body, grid).flatten(2)[0].t()
    return torch.cat([head, body]).reshape(shape)


def ambiguity(name: str, length: int, grid: Size) -> Optional[str]:
    """What cannot be told from a table's length alone, as one sentence.

    Args:
        name (str): Name of the parameter.
        length (int): Positions in the checkpoint, without prefix tokens.
        grid (tuple[int, int]): Height and width of the window or grid here.

    Returns:
        str | None: None if the checkpoint's grid is no rectangle, or the one
        here is a square.
    """
    odd = name.endswith(BIAS_TABLE)
    new = tuple(2 * side - 1 for side in grid) if odd else tuple(grid)
    pairs = sides_of(length, new, odd)
    square = bool(pairs) and pairs[0][0] == pairs[0][1]
    if not pairs or square and length != math.prod(new):
        return None
    if new[0] == new[1] and square:
        return None
    taken = new if length == math.prod(new) else pairs[0]
    others = [pair for pair in (taken[::-1], *pairs[:2]) if pair != taken]
    if not others:
        return None
    if odd:
        taken, others = ((tuple((s + 1) // 2 for s in taken)),
                         [tuple((s + 1) // 2 for s in p) for p in others])
    what = 'window' if odd else 'grid'
    return (f'{name}: {length} positions are those of a {what} of '
            f'{taken[0]}x{taken[1]}, for which they are taken, but also of '
            f'one of {others[0][0]}x{others[0][1]}; make sure that the '
            'checkpoint has the former')
