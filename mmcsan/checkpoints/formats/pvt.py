"""PVT v1: this project's, PolaFormer's and the original's.

The original's classifiers may have a class token in the last stage, whose
position is the first row there; a backbone has neither. Their last norm, of
the class token, and PolaFormer's, which nothing reads, are left out as well.
"""
from typing import Dict, Union

from torch import Tensor

from .base import OUTPUT_NORMS, Format, Rule

_BLOCK = r'block(?P<stage>\d)\.(\d+)\.'
_HERE = r'stages.{prev}.blocks.\2.'
_HEADS = (r'(head|fc|norm|cls_token)(\..*)?', )
_LAST_POSITIONS = r'pos_embed(?P<stage>4)'
_POSITIONS = r'stages.{prev}.downsample.pos_embed'


def _without_first(table: Tensor) -> Tensor:
    """Positions (1, 1 + N, C) without that of a class token."""
    return table[:, 1:]


_RULES = (
    Rule(r'patch_embed1\.proj\.(.*)', r'patch_embed.projection.\1'),
    Rule(r'patch_embed1\.norm\.(.*)', r'patch_embed.norm.\1'),
    Rule(r'pos_embed1', r'patch_embed.pos_embed'),
    Rule(r'patch_embed(?P<stage>\d)\.proj\.(.*)',
         r'stages.{prev}.downsample.projection.\2'),
    Rule(r'patch_embed(?P<stage>\d)\.norm\.(.*)',
         r'stages.{prev}.downsample.norm.\2'),
    Rule(r'pos_embed(?P<stage>\d)', _POSITIONS),
    Rule(_BLOCK + r'mlp\.fc1\.(.*)', _HERE + r'ffn.layers.0.0.\3'),
    Rule(_BLOCK + r'mlp\.fc2\.(.*)', _HERE + r'ffn.layers.1.\3'),
    Rule(_BLOCK + r'((?:norm1|norm2|attn)\..*)', _HERE + r'\3'),
)
_CLASS_TOKEN_RULES = (
    Rule(_LAST_POSITIONS, _POSITIONS, _without_first), *_RULES)

_POLA_KEY = r'block\d\.\d+\.attn\.qg\.weight'
_KEYS = (r'block1\.0\.attn\.kv\.weight', r'pos_embed1')
_OWN = (r'patch_embed\.pos_embed',
        r'stages\.0\.blocks\.0\.ffn\.layers\.1\.weight')


def _guess(weights: Dict[str, Tensor]) -> dict:
    """Arch and attention of a PVT, from names and shapes."""
    stages = FORMATS[0].count_stages(weights)
    arch = dict(embed_dims=[], depths=[], num_heads=[], mlp_ratios=[])
    attentions = []
    for stage in range(stages):
        prefix = f'stages.{stage}.blocks.'
        hidden, dim = weights[f'{prefix}0.ffn.layers.0.0.weight'].shape
        power = weights.get(f'{prefix}0.attn.power')  # (1, H, 1, d)
        arch['embed_dims'].append(dim)
        arch['depths'].append(
            len({key.split('.')[3] for key in weights
                 if key.startswith(prefix)}))
        arch['num_heads'].append(None if power is None else power.shape[1])
        arch['mlp_ratios'].append(hidden // dim)
        attentions.append(_guess_attention(weights, f'{prefix}0.attn.'))
    alike = all(a == attentions[0] for a in attentions[1:])
    return dict(
        **arch, attention=attentions[0] if alike and attentions else
        attentions)


def _guess_attention(weights: Dict[str, Tensor],
                     prefix: str) -> Union[str, None]:
    if f'{prefix}power' in weights:
        return 'Pola'
    if f'{prefix}q.weight' in weights:
        return 'Softmax'
    return 'PolaPP' if f'{prefix}s1' in weights else None


def _pvt(name: str, has: tuple, rules: tuple, **kwargs) -> Format:
    return Format(
        name,
        'PyramidVisionTransformer',
        has,
        rules,
        heads=_HEADS,
        new=(OUTPUT_NORMS, ),
        guess=_guess,
        **kwargs)


def _original(name: str, has: tuple, rules: tuple, **kwargs) -> Format:
    return _pvt(
        name, _KEYS + has, rules,
        roots=tuple(f'{part}{stage}' for stage in range(1, 5)
                    for part in ('patch_embed', 'block')),
        stages=r'block(\d)\.',
        first_stage=1,
        **kwargs)


FORMATS = (
    _pvt(
        'mmcsan PVT', _OWN,
        (Rule(r'((?:patch_embed|stages|norm\d)\..*)', r'\1'), )),
    _original(
        'PolaFormer PVT', (_POLA_KEY, ), _RULES,
        attention="'Pola' in attention"),
    _original(
        'plain PVT', (), _RULES,
        lacks=(_POLA_KEY, r'cls_token'),
        plain=True,
        attention="attention='Softmax'"),
    _original(
        'plain PVT with a class token', (r'cls_token', ), _CLASS_TOKEN_RULES,
        lacks=(_POLA_KEY, ),
        plain=True,
        attention="attention='Softmax'"),
)
"""Every format of PVT that is recognised."""
