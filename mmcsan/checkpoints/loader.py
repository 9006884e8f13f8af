"""Load a classification checkpoint into a backbone, with a full account."""
import logging
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Union

import torch.nn as nn
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor

from .errors import CheckpointError
from .formats import Format, peel, recognize
from .reader import read_state_dict

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
            what stands beside a backbone, norms of maps not returned.
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
    state_dict, outside = peel(read_state_dict(source, ema), prefix)
    try:
        fmt = recognize(state_dict)
    except CheckpointError as e:
        raise CheckpointError(f'{name}: {e}') from e
    if fmt.family != type(backbone).__name__:
        raise CheckpointError(f'{name} is of {fmt.name}, for a {fmt.family}, '
                              f'not a {type(backbone).__name__}')
    weights, report = _assign(backbone, state_dict, fmt)
    report.dropped = outside + report.dropped
    _check(report, name, min_coverage)
    backbone.load_state_dict(weights, strict=False)
    print_log(report.summary(), logger='current', level=logging.INFO)
    for key, (old, new) in report.resized.items():
        print_log(
            f'resized {key}: {old} -> {new}',
            logger='current',
            level=logging.INFO)
    return report


def _assign(backbone: nn.Module, state_dict: Dict[str, Tensor],
            fmt: Format) -> Tuple[Dict[str, Tensor], LoadReport]:
    """Find the place of every key."""
    report = LoadReport(fmt.name)
    targets = backbone.state_dict()
    weights = {}
    for key, value in state_dict.items():
        if _matches(fmt.derived, key):
            continue
        renamed = fmt.rename(key, backbone.num_stages)
        if renamed is None:
            kind = 'dropped' if _matches(fmt.heads, key) else 'unexpected'
            getattr(report, kind).append(key)
            continue
        name, transform = renamed
        if name not in targets:
            # A norm of a map that is not returned here has no place.
            kind = 'dropped' if re.match(r'norm\d', name) else 'unexpected'
            getattr(report, kind).append(key)
            continue
        value = transform(value) if transform else value
        _place(name, value, targets[name], weights, report)
    own = _own_attention_keys(backbone) if fmt.plain else set()
    for name in targets:
        if name in weights or name in report.mismatched:
            continue
        by_design = name in own or re.match(r'norm\d', name)
        (report.new if by_design else report.missing).append(name)
    return weights, report


def _place(name: str, value: Tensor, target: Tensor, weights: dict,
           report: LoadReport) -> None:
    if value.shape == target.shape:
        report.matched.append(name)
    elif name.endswith('relative_position_bias_table') and (
            value.dim() == 2 and value.shape[1] == target.shape[1]):
        report.resized[name] = (tuple(value.shape), tuple(target.shape))
        value = resize_relative_table(value, target.shape[0])
    else:
        report.mismatched[name] = (tuple(value.shape), tuple(target.shape))
        return
    weights[name] = value


def resize_relative_table(table: Tensor, length: int) -> Tensor:
    """Resize the relative-position table of square windows in 2-D, bicubic.

    Args:
        table (Tensor): (old side squared, heads).
        length (int): New number of rows, a square number.

    Returns:
        Tensor: (length, heads).

    Raises:
        CheckpointError: If either is not the table of a square window.
    """
    sides = [round(n**0.5) for n in (len(table), length)]
    if sides[0]**2 != len(table) or sides[1]**2 != length:
        raise CheckpointError(
            f'a relative-position table of {len(table)} rows cannot become '
            f'one of {length}: only square windows are resized')
    # (L, H) -> (1, H, l, l) -> (1, H, l', l') -> (L', H)
    grid = table.float().t().reshape(1, -1, sides[0], sides[0])
    grid = F.interpolate(
        grid, size=(sides[1], ) * 2, mode='bicubic', align_corners=False)
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
                          f'{_cause(report)}.\n{report}\nGive min_coverage '
                          'below 1 to load what fits all the same.')


def _cause(report: LoadReport) -> str:
    if not report.num_loaded:
        return 'nothing in it matches'
    lacking = [*report.missing, *report.unexpected]
    if any(re.search(r'\.(attn\.qkv|downsample)', key) for key in lacking):
        return 'another arch: other blocks or stages'
    if any('.attn.reduce' in key for key in report.unexpected):
        return "it holds CSaN attention; set attention='CSaN'"
    if any('.attn.act.proj' in key for key in lacking):
        return "one is bounded and the other unbounded; set 'variant'"
    if any('posinfo' in key for key in lacking):
        return "one is V2 and the other V1; set 'posinfo'"
    if any('.attn.' in key for key in lacking):
        return 'the attention is another one, or incomplete'
    if any('patch_embed' in key for key in report.mismatched):
        return 'another width, patch size or number of image channels'
    if report.mismatched:
        return 'another arch: shapes differ'
    return 'keys are missing or have no place'


def _matches(patterns, key: str) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in patterns)
