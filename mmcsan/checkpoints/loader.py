"""Load a classification checkpoint into a backbone, with a full account."""
import logging
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.logging import print_log
from torch import Tensor

from .convert import Conversion, convert_checkpoint
from .errors import CheckpointError
from .resize import (BIAS_TABLE, ambiguity, position_grid, resize_positions,
                     resize_relative_table)

_CSAN_PART = re.compile(r'\.attn\.(u|reduce|act\.proj|ka|kv|magk|temp)\.')

_PLAIN_KEYS = ('qkv.', 'proj.', 'q_norm.', 'k_norm.', BIAS_TABLE)
"""What plain attention has; other keys of an attention are its own."""

_REDUCED_KEYS = ('q.', 'kv.', 'sr.', 'norm.')
"""What it has as well if keys and values have a projection of their own."""

_TABLE = ('resized', 'partial', 'cast', 'new', 'dropped', 'missing',
          'mismatched', 'unexpected')
"""Parts of a report that are shown beyond what matches."""


@dataclass
class LoadReport:
    """What became of every key, of the checkpoint and of the backbone.

    Args:
        format (str): The recognised format.
        matched (list[str]): Keys of the backbone filled as they were.
        resized (dict[str, tuple]): Keys filled after resizing: old and new
            shape.
        partial (dict[str, tuple]): Keys of which the first rows were filled,
            on request: the checkpoint's and the backbone's shape.
        cast (dict[str, tuple]): Filled keys whose precision differs: the
            checkpoint's and the backbone's.
        new (list[str]): Keys of the backbone that this kind of checkpoint
            lacks by design: output norms, CSaN's keys beside plain attention.
        missing (list[str]): Keys of the backbone it should have had.
        mismatched (dict[str, tuple]): Keys whose shapes differ: the
            checkpoint's and the backbone's.
        dropped (list[str]): Keys of the checkpoint left out by design: heads,
            buffers computed here, what stands beside a backbone, norms of
            maps not returned.
        unexpected (list[str]): Keys of the checkpoint with no place here.
        notes (list[str]): What should be looked at, as sentences.
    """

    format: str
    matched: List[str] = field(default_factory=list)
    resized: Dict[str, Tuple] = field(default_factory=dict)
    partial: Dict[str, Tuple] = field(default_factory=dict)
    cast: Dict[str, Tuple] = field(default_factory=dict)
    new: List[str] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    mismatched: Dict[str, Tuple] = field(default_factory=dict)
    dropped: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)

    @property
    def num_loaded(self) -> int:
        """Keys of the backbone that were filled."""
        return len(self.matched) + len(self.resized) + len(self.partial)

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
            for name in _TABLE if getattr(self, name)
        ]
        return line + (f'; {", ".join(parts)}' if parts else '')

    def to_dict(self) -> dict:
        """The report as plain data, fit for JSON."""
        return dict(asdict(self), coverage=self.coverage)

    def __str__(self) -> str:
        lines = [self.summary()]
        for name in _TABLE:
            keys = getattr(self, name)
            if not keys:
                continue
            shown = list(keys)[:4]
            if isinstance(keys, dict):
                shown = [f'{k} {keys[k][0]} -> {keys[k][1]}' for k in shown]
            more = f', ... ({len(keys)})' if len(keys) > 4 else ''
            lines.append(f'  {name + ":":<12}{", ".join(shown)}{more}')
        lines += [f'  note:       {note}' for note in self.notes]
        return '\n'.join(lines)


def load_classification_checkpoint(backbone: nn.Module,
                                   source: Union[str, Path, dict],
                                   *,
                                   min_coverage: float = 1.0,
                                   prefix: Optional[str] = None,
                                   ema: bool = False,
                                   partial: Optional[str] = None
                                   ) -> LoadReport:
    """Fill a backbone from a checkpoint, completely or not at all.

    The format is told from the keys. Nothing is written to the backbone
    before everything fits.

    Args:
        backbone (nn.Module): A backbone of mmcsan.
        source (str | Path | dict): A file, a URL, or a state dict.
        min_coverage (float): Part of the expected keys, 0 to 1, that must be
            filled. At 1, a key of the checkpoint that has no place is an
            error as well. Defaults to 1.
        prefix (str, optional): What stands before the keys of the network
            that is meant, if that is nothing usual or one of several; or the
            name of the entry that holds it. Defaults to None.
        ema (bool): Whether to take averaged weights. Defaults to False.
        partial (str, optional): ``'qkv'`` lets the projections of a plain
            attention fill the first blocks of projections that have more
            (q, k, v of ``qkvg``), as where Pola replaces softmax; their
            position tables are dropped there. Defaults to None: an error.

    Returns:
        LoadReport: What became of every key.

    Raises:
        CheckpointError: If the file cannot be read, is of no known format or
            of another family, or covers too little.
    """
    if not 0 <= min_coverage <= 1:
        raise ValueError(f'min_coverage={min_coverage} is not in [0, 1]')
    if partial not in (None, 'qkv'):
        raise ValueError(f"partial={partial!r} is neither None nor 'qkv'")
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
    weights, report = _assign(backbone, done, partial)
    _check(report, name, min_coverage, done.format.attention)
    backbone.load_state_dict(weights, strict=False)
    _log(report)
    return report


def _log(report: LoadReport) -> None:
    """One line, one more for each change, and warnings."""
    lines = [(report.summary(), logging.INFO)]
    for what in ('resized', 'partial'):
        lines += [(f'{what} {key}: {old} -> {new}', logging.INFO)
                  for key, (old, new) in getattr(report, what).items()]
    for old, new in sorted(set(report.cast.values())):
        count = list(report.cast.values()).count((old, new))
        lines.append((f'cast {count} tensors: {old} -> {new}', logging.INFO))
    lines += [(note, logging.WARNING) for note in report.notes]
    for line, level in lines:
        print_log(line, logger='current', level=level)


def _assign(backbone: nn.Module, done: Conversion,
            partial: Optional[str]) -> Tuple[Dict[str, Tensor], LoadReport]:
    """Find the place of every key."""
    report = LoadReport(
        done.format.name,
        dropped=list(done.dropped),
        unexpected=list(done.unexpected))
    targets = backbone.state_dict()
    wider = _wider_projections(backbone) if done.format.plain else {}
    renamed = _renamed_projections(backbone) if done.format.plain else {}
    weights = {}
    for name, value in done.weights.items():
        owner, _, part = name.rpartition('.')
        if owner in renamed:
            owner = renamed[owner]
            name = f'{owner}.{part}'
        if name in targets:
            _place(name, value, backbone, targets[name], weights, report)
        elif partial and owner in wider:
            name = f'{wider[owner]}.{part}'
            _place_rows(name, value, targets.get(name), weights, report)
        elif partial and part == BIAS_TABLE and any(
                key.startswith(f'{owner}.') for key in wider):
            report.dropped.append(name)
        elif _is_unused(name, backbone):
            report.dropped.append(name)
        else:
            report.unexpected.append(name)
    own = _own_attention_keys(backbone) if done.format.plain else set()
    if own & weights.keys():
        own = set()  # it has them, so it lacks none by design
    for name in targets:
        if name in weights or name in report.mismatched:
            continue
        by_design = (
            name in own or done.format.lacks_by_design(name, done.weights)
            or _is_new_norm(name, backbone, done.weights))
        (report.new if by_design else report.missing).append(name)
    return weights, report


def _fused_names(attention: nn.Module) -> Tuple[str, str]:
    """Names of its projection, and of the plain one it would replace."""
    reduced = attention.sr_ratio is not None
    name = attention.projections
    return (name.replace('kv', ''), 'q') if reduced else (name, 'qkv')


def _wider_projections(backbone: nn.Module) -> Dict[str, str]:
    """From plain projections to those here that have more blocks behind."""
    inside = {id(module) for module in backbone.attentions()}
    wider = {}
    for name, module in backbone.named_modules():
        if id(module) in inside:
            own, plain = _fused_names(module)
            if own != plain and own.startswith(plain):
                wider[f'{name}.{plain}'] = f'{name}.{own}'
    return wider


def _renamed_projections(backbone: nn.Module) -> Dict[str, str]:
    """From plain projections of reduced maps to those that are named
    otherwise here."""
    inside = {id(module) for module in backbone.attentions()}
    return {
        f'{name}.kv': f'{name}.{module.reduced_name}'
        for name, module in backbone.named_modules()
        if id(module) in inside and module.sr_ratio is not None
        and module.reduced_name != 'kv'
    }


def _place_rows(name: str, value: Tensor, target: Optional[Tensor],
                weights: dict, report: LoadReport) -> None:
    """Fill the first rows of a projection that has more."""
    if target is None or value.dim() != target.dim() or (
            value.shape[1:] != target.shape[1:] or len(value) >= len(target)
            or not value.is_floating_point()):
        report.mismatched[name] = (
            tuple(value.shape), None if target is None else tuple(
                target.shape))
        return
    report.partial[name] = (tuple(value.shape), tuple(target.shape))
    weights[name] = torch.cat([value.to(target.dtype), target[len(value):]])
    _look_at_numbers(name, value, target, report)


def _is_unused(name: str, backbone: nn.Module) -> bool:
    """Whether a key belongs to a stage, norm or token not built here."""
    if name in getattr(backbone, 'left_out', ()):
        return True
    match = re.match(r'(stages\.|blocks\.|norm)(\d+)\.', name)
    if match is None:
        return False
    stage = int(match[2])
    built = 0 if match[1] == 'norm' else len(backbone.stages)
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
    if target.is_floating_point() and not value.is_floating_point():
        report.mismatched[name] = (_kind(value), _kind(target))
        return
    owner, _, own = name.rpartition('.')
    grid = position_grid(backbone.get_submodule(owner), own)
    if grid is not None and target.dim() < 4 and value.dim() > 1:
        rows = value.shape[-2] - (
            0 if own == BIAS_TABLE else
            target.shape[-2] - grid[0] * grid[1])
        note = ambiguity(own, rows, grid)
        if note and note not in report.notes:
            report.notes.append(note)
    if shapes[0] == shapes[1]:
        report.matched.append(name)
    elif grid is not None:
        value = _resized(name, value, target, grid, report)
        if value is None:
            report.mismatched[name] = shapes
            return
        report.resized[name] = shapes
    else:
        report.mismatched[name] = shapes
        return
    weights[name] = value
    _look_at_numbers(name, value, target, report)


def _resized(name: str, value: Tensor, target: Tensor, grid: Tuple[int, int],
             report: LoadReport) -> Optional[Tensor]:
    """A position table in the size it has here; None if it cannot be."""
    if not name.endswith(BIAS_TABLE):
        try:
            return resize_positions(value, tuple(target.shape), grid)
        except CheckpointError as e:
            report.notes.append(f'{name}: {e}')
            return None
    if value.dim() != 2 or value.shape[1] != target.shape[1]:
        return None
    return resize_relative_table(value, grid)


def _kind(value: Tensor) -> str:
    return str(value.dtype).rpartition('.')[2]


def _look_at_numbers(name: str, value: Tensor, target: Tensor,
                     report: LoadReport) -> None:
    """Note another precision, and numbers that are none."""
    if value.dtype != target.dtype:
        report.cast[name] = (_kind(value), _kind(target))
    # A sum is not finite if a number is not, and cheaper to have; it may
    # overflow besides.
    if value.is_floating_point() and not value.sum().isfinite() and not (
            value.isfinite().all()):
        report.notes.append(f'{name} of the checkpoint holds NaN or infinity')


def _own_attention_keys(backbone: nn.Module) -> set:
    """Keys that the backbone's attentions have beyond plain attention."""
    inside = {id(module) for module in backbone.attentions()}
    own = set()
    for name, module in backbone.named_modules():
        if id(module) in inside:
            plain = _PLAIN_KEYS + (_fused_names(module)[0] + '.', )
            if module.sr_ratio is not None:
                plain += _REDUCED_KEYS + (f'{module.reduced_name}.', )
                if module.reduced_name != 'kv':
                    plain = tuple(key for key in plain if key != 'kv.')
            own.update(f'{name}.{key}' for key in module.state_dict()
                       if not key.startswith(plain))
    return own


def _check(report: LoadReport, name: str, min_coverage: float,
           attention: str) -> None:
    """Raise, with the likeliest cause, if too little fits."""
    complete = not (report.missing or report.mismatched or report.unexpected)
    enough = report.num_loaded and report.coverage >= min_coverage
    if complete and report.num_loaded or (enough and min_coverage < 1):
        return
    raise CheckpointError(f'{name} does not fit the backbone: '
                          f'{_cause(report, attention)}.\n{report}\nAt least '
                          f'{100 * min_coverage:.4g}% was asked for; a lower '
                          'min_coverage loads what fits.')


def _cause(report: LoadReport, attention: str) -> str:
    """The likeliest reason, and what to set."""
    lacking = [*report.missing, *report.unexpected]
    csan = [key for key in lacking if _CSAN_PART.search(key)]
    if any('int' in str(old) for old, _ in report.mismatched.values()):
        return 'it holds integers where weights are real numbers'
    if not report.num_loaded:
        return 'nothing in it matches'
    if {True, False} == {'.ffn.layers.' in key for key in lacking
                         if re.search(r'\.ffn\.(layers|proj)\.', key)}:
        return "one has attentions where the other has FFNs; set 'ffn'"
    if any(re.search(r'\.attn\.(qkv\w|qg)\.', k) for k in report.unexpected):
        return f'it holds another attention; set {attention}'
    if not attention and any(
            re.search(r'\.(qkv\w|qg)\.weight', k) for k in report.missing):
        return ('it has plain attention, the backbone one that projects to '
                "more; partial='qkv' takes what fits of it")
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
