"""Hiera: this project's, CSaN's, and those of plain Hiera."""
import re
from typing import Dict, List

from torch import Tensor

from .base import OUTPUT_NORMS, Format, Rule
from .vision_transformer import HIERA_KEY, guess_attention


def _starts(weights: Dict[str, Tensor]) -> List[int]:
    """Numbers of the blocks that begin a stage: where the width grows."""
    starts, number = [0], 0
    while True:
        norms = [
            weights.get(f'blocks.{number}.norm{i}.weight') for i in (1, 2)
        ]
        if norms == [None, None]:
            return starts
        if None not in norms and norms[0].shape != norms[1].shape:
            starts.append(number)
        number += 1


def _in_stage(tail: str):
    """A name of a block by its stage and its number within."""

    def name(match: re.Match, weights: Dict[str, Tensor]) -> str:
        number = int(match[1])
        starts = [n for n in _starts(weights) if n <= number]
        return (f'stages.{len(starts) - 1}.blocks.{number - starts[-1]}.'
                f'{match.expand(tail)}')

    return name


_BLOCK = r'blocks\.(\d+)\.'
_HEADS = (r'(head|norm|encoder_norm)\..*',
          r'(decoder_.*|mask_token|multi_scale_fusion_heads\..*)')
"""Their norm is that of the pooled token."""

_RULES = (
    Rule(r'patch_embed\.proj\.(.*)', r'patch_embed.projection.\1'),
    Rule(r'(pos_embed|pos_embed_win)', r'\1'),
    Rule(_BLOCK + r'mlp\.fc1\.(.*)', _in_stage(r'ffn.layers.0.0.\2')),
    Rule(_BLOCK + r'mlp\.fc2\.(.*)', _in_stage(r'ffn.layers.1.\2')),
    Rule(_BLOCK + r'ls1\.gamma', _in_stage(r'ls1.weight')),
    Rule(_BLOCK + r'ls2\.gamma', _in_stage(r'ffn.gamma2.weight')),
    Rule(_BLOCK + r'((?:norm1|norm2|proj|attn)\..*)', _in_stage(r'\2')),
)
_CSAN_KEY = r'.*\.attn\.(u|reduce|act\.proj|ka|kv|magk|temp)\..*'
_POLA_KEY = r'.*\.attn\.(qkvg\.weight|positional_encoding|power|dwc\.weight)'
_TIMM_BLOCK = (_BLOCK + r'attn\.qkv\.weight', _BLOCK + r'mlp\.fc1\.weight',
               r'patch_embed\.proj\.weight', r'pos_embed', HIERA_KEY)
_OWN = (r'stages\.\d+\.blocks\.\d+\.attn\.(qkv|qkvg)\.weight',
        r'stages\.\d+\.blocks\.\d+\.ffn\.layers\.1\.weight',
        r'patch_embed\.projection\.weight', r'pos_embed')
_OWN_RULES = (Rule(
    r'((?:patch_embed|stages|norm\d)\..*|pos_embed|pos_embed_win)', r'\1'), )


def _guess(weights: Dict[str, Tensor]) -> dict:
    """Arch and attention of a Hiera, from names and shapes."""
    depths = []
    for stage in range(FORMATS[0].count_stages(weights)):
        prefix = f'stages.{stage}.blocks.'
        depths.append(
            len({key.split('.')[3] for key in weights
                 if key.startswith(prefix)}))
    stem = weights.get('patch_embed.projection.weight')
    first = 'stages.0.blocks.0.attn.'
    temp = weights.get(f'{first}temp.weight')
    return dict(
        embed_dims=None if stem is None else stem.shape[0],
        depths=depths,
        num_heads=None if temp is None else temp.shape[0],
        attention=guess_attention(weights, first))


def _hiera(name: str, has: tuple, rules: tuple, **kwargs) -> Format:
    kwargs = dict(
        dict(
            heads=_HEADS,
            new=(OUTPUT_NORMS, ),
            roots=('patch_embed', 'stages', 'blocks'),
            guess=_guess), **kwargs)
    return Format(name, 'Hiera', has, rules, **kwargs)


FORMATS = (
    _hiera(
        'mmcsan Hiera',
        _OWN + (_CSAN_KEY, ),
        _OWN_RULES,
        attention="attention='CSaN'"),
    _hiera(
        'mmcsan Hiera, Pola attention',
        _OWN + (_POLA_KEY, ),
        _OWN_RULES,
        lacks=(_CSAN_KEY, ),
        attention="'Pola' in attention"),
    _hiera(
        'mmcsan Hiera, plain attention',
        _OWN,
        _OWN_RULES,
        lacks=(_CSAN_KEY, _POLA_KEY),
        plain=True),
    _hiera(
        'CSaN Hiera',
        _TIMM_BLOCK + (_CSAN_KEY, ),
        _RULES,
        attention="attention='CSaN'"),
    _hiera(
        'plain Hiera (timm or original)',
        _TIMM_BLOCK,
        _RULES,
        lacks=(_CSAN_KEY, ),
        plain=True),
)
"""Every format of Hiera that is recognised."""
