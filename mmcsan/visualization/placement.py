"""Where the tokens of an attention's groups lie on the image."""
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmcsan.attentions import TokenLayout
from mmcsan.backbones.vision_transformer import TokenGroups

NOWHERE = -1
"""Place of padding and of tokens in front of the grid."""


@dataclass(frozen=True)
class Placement:
    """The place of every token of every group of an image.

    Args:
        size (tuple[int, int]): H and W of the map, in tokens.
        places (Tensor): int64 (W, N): ``row * width + column`` of each token
            of each of the W groups, or ``NOWHERE``.
    """

    size: Tuple[int, int]
    places: Tensor

    @property
    def groups(self) -> int:
        """Groups W of an image."""
        return self.places.shape[0]

    def to_map(self, values: Tensor) -> Tensor:
        """Lay what tokens have on the map.

        Args:
            values (Tensor): (B * W, K, N), a value for each token.

        Returns:
            Tensor: (B, K, H, W).
        """
        # (B*W, K, N) -> (B, W, K, N) -> (B, K, W*N)
        values = values.unflatten(0, (-1, self.groups))
        values = values.transpose(1, 2).flatten(2)
        places = self.places.flatten()
        there = places != NOWHERE
        height, width = self.size
        out = values.new_empty(*values.shape[:2], height * width)
        out[..., places[there]] = values[..., there]
        return out.unflatten(2, self.size)

    def group_map(self, values: Tensor, group: int) -> Tensor:
        """Lay what the tokens of one group have on the map, which is zero
        elsewhere.

        Args:
            values (Tensor): (B, K, N), for one group of each image.
            group (int): Which one.

        Returns:
            Tensor: (B, K, H, W).
        """
        places = self.places[group]
        there = places != NOWHERE
        height, width = self.size
        out = values.new_zeros(*values.shape[:2], height * width)
        out[..., places[there]] = values[..., there]
        return out.unflatten(2, self.size)

    def find(self, row: int, col: int) -> Tuple[int, int]:
        """Group and token that lie at a place of the map."""
        found = (self.places == row * self.size[1] + col).nonzero()
        return tuple(found[0].tolist())


def place_tokens(plan: object, layout: TokenLayout,
                 device: torch.device) -> Placement:
    """Place the tokens of groups, by sending their numbers the way they go.

    Args:
        plan (object): What cut the groups out of the map (it has ``size`` and
            ``split``). Anything else says that a group is a whole map.
        layout (TokenLayout): How the tokens of a group lie.
        device (torch.device): Where the result is to live.

    Returns:
        Placement: The places.
    """
    cut = hasattr(plan, 'split')
    size = tuple(plan.size if cut else layout.grid)
    # From 1 on, as padding is filled with zeros.
    numbers = torch.arange(1, size[0] * size[1] + 1, device=device)
    if isinstance(plan, TokenGroups) or not cut:
        numbers = F.pad(numbers, (layout.prefix, 0))[None, :, None]
        numbers = plan.split(numbers) if cut else numbers  # (W, N, 1)
    else:
        numbers = plan.split(numbers.view(1, *size, 1))
    return Placement(size, numbers[..., 0] - 1)


def stem_stride(backbone: nn.Module) -> Tuple[int, int]:
    """Rows and columns of pixels to a token of the first stage.

    Args:
        backbone (nn.Module): Its stem, if it is called ``patch_embed``, is
            asked for the strides of its convolutions.

    Returns:
        tuple[int, int]: The strides; (1, 1) if they are unknown.
    """
    rows = cols = 1
    stem = getattr(backbone, 'patch_embed', nn.Identity())
    for module in stem.modules():
        if isinstance(module, nn.Conv2d):
            rows, cols = rows * module.stride[0], cols * module.stride[1]
    return rows, cols


def token_stride(length: int, tokens: int, stem: int = 1) -> int:
    """Pixels from one token to the next.

    Maps are rounded up, so that several strides lead to the same number of
    tokens. Stages halve: of these, it is the power of two times the stem's.

    Args:
        length (int): Height or width of the network's input, in pixels.
        tokens (int): Height or width of the map.
        stem (int): Stride of the first stage. Defaults to 1: unknown.

    Returns:
        int: The stride.
    """
    units = -(-length // stem)
    least = -(-units // tokens)
    power = 1 << (least - 1).bit_length()
    factor = power if -(-units // power) == tokens else least
    return factor * stem


def spread_cells(values: Tensor,
                 ratio: Optional[int],
                 grid: Tuple[int, int],
                 share: bool = False) -> Tensor:
    """From the cells of a reduced map (PVT) to the tokens they were made of.

    Args:
        values (Tensor): (G, K, M), M = ceil(h / ratio) * ceil(w / ratio).
        ratio (int, optional): By how much the map was reduced; None or 1 for
            not at all.
        grid (tuple[int, int]): Height h and width w of the map.
        share (bool): Whether the tokens of a cell share what it has, instead
            of having it each. Defaults to False.

    Returns:
        Tensor: (G, K, h * w).
    """
    if (ratio or 1) == 1:
        return values
    height, width = grid
    # (G, K, M) -> (G, K, h/r, w/r) -> (G, K, h, w)
    cells = values.unflatten(2, (-1, -(-width // ratio)))
    if share:
        rows, cols = (
            torch.bincount(torch.arange(n, device=values.device) // ratio)
            for n in grid)
        cells = cells / (rows[:, None] * cols)
    cells = cells.repeat_interleave(ratio, dim=2)[:, :, :height]
    cells = cells.repeat_interleave(ratio, dim=3)[:, :, :, :width]
    return cells.flatten(2)
