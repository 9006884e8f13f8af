"""Load a classification checkpoint into a backbone, with a full account."""
import logging
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Union

import torch.nn as nn
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor

from .convert import Conversion, convert_checkpoint
from .errors import CheckpointError

_CSAN_PART = re.compile(r'\.attn\.(u|reduce|act\.proj|ka|kv|magk|temp)\.')

PLAIN_KEYS = ('qkv.', 'proj.', 'relative_position_bias_table')
"""What plain attention has; other keys of an attention are its own."""


@dataclass
class LoadReport:
    """What became of every key, of the checkpoint and of the backbone.

    Args:
        format (str): The recognised format.
        matched (list[str]): Keys of the backbone filled as they were.
        resized (dict[str, tuple]): Keys filled after resizing: old and new
            shape.
        new (list[str]): Keys of the backbone that this kind of checkpoint
            lacks by design: output norms, CSaN's keys beside plain attention.
        missing (list[str]): Keys of the backbone it should have had.
        mismatched (dict[str, tuple]): Keys whose shapes differ: the
            checkpoint's and the backbone's.
        dropped (list[str]): Keys of the checkpoint left out by design: heads,
            buffers computed here, what stands beside a backbone, norms of
            maps not returned.
        unexpected (list[str]): Keys of the checkpoint with no place here.
    """

    format: str
    matched: List[str] = field(default_factory=list)
    resized: Dict[str, Tuple] = field(default_factory=dict)
    new: List[str] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    mismatched: Dict[str, Tuple] = field(default_factory=dict)
    dropped: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)

    @property
    def num_loaded(self) -> int:
        """Keys of the backbone that were filled."""
        return len(self.matched) + len(self.resized)

    @property
    def num_expected(self) -> int:
        """Keys of the backbone that are not new by design."""
        return self.num_loaded + len(self.missing) + len(self.mismatched)

    @property
    def coverage(self) -> float:
        """Filled part of the expected keys, 0 to 1."""
        return self.num_loaded / max(self.num_expected, 1)

    def summary(self) -> str:
        """One line for the log."""
        line = (f'matched {self.num_loaded}/{self.num_expected} '
                f'({100 * self.coverage:.4g}%) from a checkpoint of '
                f'{self.format}')
        parts = [
            f'{name} {len(getattr(self, name))}'
            for name in ('resized', 'new', 'dropped', 'missing', 'mismatched',
                         'unexpected') if getattr(self, name)
        ]
        return line + (f'; {", ".join(parts)}' if parts else '')

    def to_dict(self) -> dict:
        """The report as plain data, fit for JSON."""
        return dict(asdict(self), coverage=self.coverage)

    def __str__(self) -> str:
        lines = [self.summary()]
        for name in ('resized', 'new', 'dropped', 'missing', 'mismatched',
                     'unexpected'):
            keys = getattr(self, name)
            if not keys:
                continue
            shown = list(keys)[:4]
            if isinstance(keys, dict):
                shown = [f'{k} {keys[k][0]} -> {keys[k][1]}' for k in shown]
            more = f', ... ({len(keys)})' if len(keys) > 4 else ''
            lines.append(f'  {name + ":":<12}{", ".join(shown)}{more}')
        return '\n'.join(lines)


def load_classification_checkpoint(backbone: nn.Module,
                                   source: Union[str, Path, dict],
                                   *,
                                   min_coverage: float = 1.0,
                                   prefix: Optional[str] = None,
                                   ema: bool = False) -> LoadReport:
    """Fill a backbone from a checkpoint, completely or not at all.

    The format is told from the keys. Nothing is written to the backbone
    before everything fits.

    Args:
        backbone (nn.Module): A backbone of mmcsan.
        source (str | Path | dict): A file, a URL, or a state dict.
        min_coverage (float): Part of the expected keys, 0 to 1, that must be
            filled. At 1, a key of the checkpoint that has no place is an
            error as well. Defaults to 1.
        prefix (str, optional): What stands before the backbone's keys, if it
            is nothing usual. Defaults to None.
        ema (bool): Whether to take averaged weights. Defaults to False.

    Returns:
        LoadReport: What became of every key.

    Raises:
        CheckpointError: If the file cannot be read, is of no known format or
            of another family, or covers too little.
    """
    if not 0 <= min_coverage <= 1:
        raise ValueError(f'min_coverage={min_coverage} is not in [0, 1]')
    name = 'checkpoint' if isinstance(source, dict) else str(source)
    done = convert_checkpoint(source, ema, prefix)
    # Here, not at the top: converting a file needs no backbone.
    from mmcsan.backbones.base import BaseBackbone
    families = {cls.__name__ for cls in type(backbone).__mro__}
    if not isinstance(backbone,
                      BaseBackbone) or done.format.family not in families:
        raise CheckpointError(
            f'{name} is of {done.format.name}, for a mmcsan.'
            f'{done.format.family}, not a {type(backbone).__name__}')
    weights, report = _assign(backbone, done)
    _check(report, name, min_coverage)
    backbone.load_state_dict(weights, strict=False)
    print_log(report.summary(), logger='current', level=logging.INFO)
    for key, (old, new) in report.resized.items():
        print_log(
            f'resized {key}: {old} -> {new}',
            logger='current',
            level=logging.INFO)
    return report


def _assign(backbone: nn.Module,
            done: Conversion) -> Tuple[Dict[str, Tensor], LoadReport]:
    """Find the place of every key."""
    report = LoadReport(
        done.format.name,
        dropped=list(done.dropped),
        unexpected=list(done.unexpected))
    targets = backbone.state_dict()
    weights = {}
    for name, value in done.weights.items():
        if name in targets:
            _place(name, value, backbone, targets[name], weights, report)
        elif _is_unused(name, backbone):
            report.dropped.append(name)
        else:
            report.unexpected.append(name)
    own = _own_attention_keys(backbone) if done.format.plain else set()
    for name in targets:
        if name in weights or name in report.mismatched:
            continue
        by_design = name in own or _is_new_norm(name, backbone, done.weights)
        (report.new if by_design else report.missing).append(name)
    return weights, report


def _is_unused(name: str, backbone: nn.Module) -> bool:
    """Whether a key belongs to a stage or norm that is not built here."""
    match = re.match(r'(stages\.|norm)(\d+)\.', name)
    if match is None:
        return False
    stage = int(match[2])
    built = len(backbone.stages) if match[1] == 'stages.' else 0
    return built <= stage < backbone.num_stages


def _is_new_norm(name: str, backbone: nn.Module,
                 found: Dict[str, Tensor]) -> bool:
    """Whether a checkpoint lacks an output norm by design.

    A classifier has that of the last stage, and half a norm is a damage.
    """
    norm = re.match(r'norm(\d+)\.', name)
    if norm is None or any(key.startswith(norm[0]) for key in found):
        return False
    others = any(re.match(r'norm\d', key) for key in found)
    return int(norm[1]) < backbone.num_stages - 1 or others


def _place(name: str, value: Tensor, backbone: nn.Module, target: Tensor,
           weights: dict, report: LoadReport) -> None:
    """Put a tensor in its place, resized if it is a position table."""
    shapes = (tuple(value.shape), tuple(target.shape))
    if shapes[0] == shapes[1]:
        report.matched.append(name)
    elif name.endswith('.relative_position_bias_table') and (
            value.dim() == 2 and value.shape[1] == target.shape[1]):
        attention = backbone.get_submodule(name.rpartition('.')[0])
        value = resize_relative_table(value, attention.grid_size)
        report.resized[name] = shapes
    else:
        report.mismatched[name] = shapes
        return
    if value.is_floating_point() and not value.isfinite().all():
        print_log(
            f'{name} of the checkpoint holds NaN or infinity',
            logger='current',
            level=logging.WARNING)
    weights[name] = value


def table_sides(length: int, like: Tuple[int, int]) -> Tuple[int, int]:
    """Sides of the relative-position table of a window.

    A window of h x w has 2h - 1 by 2w - 1 relative positions. A length that
    is a square is taken for that of a square window; otherwise the sides come
    as close as possible to the proportions of another table.

    Args:
        length (int): Number of rows of the table.
        like (tuple[int, int]): Sides of the other table.

    Returns:
        tuple[int, int]: Height and width of the table.

    Raises:
        CheckpointError: If no window has a table of that length.
    """
    root = round(length**0.5)
    if root * root == length and root % 2:
        return root, root
    pairs = [(side, length // side) for side in range(1, length + 1, 2)
             if length % side == 0 and (length // side) % 2]
    if not pairs:
        raise CheckpointError(f'a relative-position table of {length} rows '
                              'belongs to no window')
    return min(
        pairs,
        key=lambda pair: abs(math.log(pair[0] * like[1] / pair[1] / like[0])))


def resize_relative_table(table: Tensor, window: Tuple[int, int]) -> Tensor:
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
    old = table_sides(len(table), new)
    # (L, H) -> (1, H, h, w) -> (1, H, h', w') -> (L', H)
    grid = table.float().t().reshape(1, -1, *old)
    grid = F.interpolate(grid, size=new, mode='bicubic', align_corners=False)
    return grid.flatten(2)[0].t().contiguous().to(table.dtype)


def _own_attention_keys(backbone: nn.Module) -> set:
    """Keys that the backbone's attentions have beyond plain attention."""
    inside = {id(module) for module in backbone.attentions()}
    own = set()
    for name, module in backbone.named_modules():
        if id(module) in inside:
            own.update(f'{name}.{key}' for key in module.state_dict()
                       if not key.startswith(PLAIN_KEYS))
    return own


def _check(report: LoadReport, name: str, min_coverage: float) -> None:
    """Raise, with the likeliest cause, if too little fits."""
    complete = not (report.missing or report.mismatched or report.unexpected)
    enough = report.num_loaded and report.coverage >= min_coverage
    if complete and report.num_loaded or (enough and min_coverage < 1):
        return
    raise CheckpointError(f'{name} does not fit the backbone: '
                          f'{_cause(report)}.\n{report}\nAt least '
                          f'{100 * min_coverage:.4g}% was asked for; a lower '
                          'min_coverage loads what fits.')


def _cause(report: LoadReport) -> str:
    """The likeliest reason, and what to set."""
    lacking = [*report.missing, *report.unexpected]
    csan = [key for key in lacking if _CSAN_PART.search(key)]
    if not report.num_loaded:
        return 'nothing in it matches'
    if lacking and all(key.endswith('.attn.qkv.bias') for key in lacking):
        return "one has a bias of q, k and v; set 'qkv_bias'"
    if any(re.search(r'\.(attn\.qkv\.weight|downsample)', key)
           for key in lacking):
        return 'another arch: other blocks or stages'
    if csan and all('.attn.act.' in key for key in csan):
        return "one is bounded and the other unbounded; set 'variant'"
    if csan and set(csan) <= set(report.unexpected):
        return "it holds CSaN attention; set attention='CSaN'"
    if any('.posinfo.' in key for key in lacking):
        return "one is V2 and the other V1; set 'posinfo'"
    if report.mismatched and all(
            re.search(r'\.attn\.(ka|kv)\.', key)
            for key in report.mismatched):
        return "one has gains for each head alone; set 'granularity'"
    if any('.attn.' in key for key in lacking):
        return 'the attention is another one, or incomplete'
    if any('patch_embed' in key for key in report.mismatched):
        return 'another width, patch size or number of image channels'
    if report.mismatched:
        return 'another arch: shapes differ'
    return 'keys are missing or have no place'
